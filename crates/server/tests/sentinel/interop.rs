//! Sentinel itself, as `scripts/servers.sh sentinel` builds it: its decisions, and its client. Run
//! by `scripts/test.sh --interop`.

use std::{
    env,
    fmt::Write as _,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tidegate_redis_servers::{eventually, free_port};
use tidegate_server::Options;

use super::{Client, Running, dashboard, options, scratch};

/// Sentinel's programs, each by the name of its class.
pub fn sentinel(class: &str) -> Command {
    let mut command =
        Command::new(env::var("TIDEGATE_SENTINEL").expect("scripts/servers.sh sentinel names it"));
    command
        .arg(class)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

pub fn answers(mut child: Child, input: &str) -> String {
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Numbers that look random, the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

const STEPS: usize = 20_000;

#[test]
#[ignore = "needs Sentinel: scripts/test.sh --interop"]
fn twenty_thousand_decisions_are_those_of_sentinels_own_token_server() {
    for (seed, has_priorities) in [(1, false), (2, true)] {
        let file = scratch("sentinel-oracle").join("shop.json");
        let flow = |id: i64, count: f64, kind: i64| {
            format!(
                r#"{{"resource":"r","count":{count},"clusterMode":true,"clusterConfig":{{"flowId":{id},"thresholdType":{kind}}}}}"#
            )
        };
        let param = |id: i64, count: i64, kind: i64| {
            let items = r#""paramIdx":0,"paramFlowItemList":[{"object":"vip","count":9}]"#;
            flow(id, count as f64, kind).replacen('{', &format!("{{{items},"), 1)
        };
        let rules = [
            flow(1, 10.0, 1),
            flow(2, 50.5, 1),
            flow(3, 7.0, 0),
            param(4, 5, 1),
            param(5, 2, 0),
        ];
        std::fs::write(&file, format!("[{}]", rules.join(","))).unwrap();
        let sentinel_token = Some("127.0.0.1:0".to_owned());
        let options = Options {
            sentinel: sentinel_token,
            sentinel_rules: Some(file),
            ..Options::default()
        };
        let server = Running::start(options);
        let mut clients: Vec<Client> = (0..3).map(|_| Client::of_shop(&server)).collect();

        let mut script =
            "flow 1 10 1 10 1000\nflow 2 50.5 1 10 1000\nflow 3 7 0 10 1000\n".to_owned();
        script += "param 4 5 1 vip=9\nparam 5 2 0 vip=9\nconnect\nconnect\nconnect\n";
        let (mut random, mut now, mut ours) = (Random(seed), 1_700_049_600_000_u64, Vec::new());
        // The rule whose units were just taken ahead. Sentinel counts these in the slot of the
        // rule's next request; here it is in the slot for which they were taken, as with Tidegate.
        let mut ahead = None;
        for step in 0..STEPS {
            let pause = match ahead {
                Some(_) => 100 - now % 100,
                None if random.below(50) == 0 => random.below(3_000),
                None => random.below(if has_priorities { 12 } else { 60 }),
            };
            now += pause;
            server.advance(Duration::from_millis(pause));
            let _ = writeln!(script, "at {now}");
            let id = ahead.take().unwrap_or(1 + random.below(5).cast_signed());
            let client = &mut clients[step % 3];
            // With units of one, the room that a prioritized request leaves is none, as with
            // Sentinel.
            let count = if has_priorities {
                1
            } else {
                1 + random.below(4) as i32
            };
            ours.push(if id <= 3 {
                let is_prioritized = has_priorities && random.below(2) == 0;
                let _ = writeln!(script, "ask {id} {count} {is_prioritized}");
                let answer = client.ask(id, count, is_prioritized);
                ahead = (answer.0 == 2).then_some(id);
                answer
            } else {
                let all = ["a", "b", "vip"];
                let values: Vec<&str> = all.into_iter().filter(|_| random.below(2) == 0).collect();
                let values = if values.is_empty() { vec!["c"] } else { values };
                let _ = writeln!(script, "values {id} {count} {}", values.join(" "));
                client.ask_values(id, count, &values)
            });
        }
        let theirs = answers(sentinel("Oracle").spawn().unwrap(), &script);
        let theirs: Vec<&str> = theirs.lines().collect();
        assert_eq!(theirs.len(), STEPS);
        let asked = script
            .lines()
            .filter(|line| line.starts_with(['a', 'v']) && !line.starts_with("at"));
        let mut differ = Vec::new();
        let mut by_status = [0; 3];
        for ((asked, (status, remaining, wait)), theirs) in asked.zip(&ours).zip(theirs) {
            by_status[usize::try_from(*status).unwrap()] += 1;
            if format!("{status} {remaining} {wait}") != theirs {
                differ.push(format!(
                    "{asked}: ours {status} {remaining} {wait}, theirs {theirs}"
                ));
            }
        }
        assert_eq!(differ.len(), 0, "{:#?}", &differ[..differ.len().min(20)]);
        println!("{STEPS} decisions agree: {by_status:?} are OK, BLOCKED, SHOULD_WAIT");
        assert!(by_status[0] > 1_000 && by_status[1] > 1_000);
        assert_eq!(by_status[2] > 50, has_priorities);
    }
}

#[test]
#[ignore = "needs Sentinel: scripts/test.sh --interop"]
fn two_programs_with_sentinels_client_never_take_more_than_there_is() {
    let (options, file) = options("sentinel-jvm");
    super::replace(
        &file,
        super::RULES.replacen("\"count\":10", "\"count\":1000", 1),
    );
    // The clock stands still, so there is one window.
    let server = Running::start(Options {
        sentinel_max_qps: 1_000_000,
        ..options
    });
    let client = || {
        let port = server.sentinel.port().to_string();
        sentinel("Client")
            .args([&port, "8", "6250", "20", "101"])
            .spawn()
            .unwrap()
    };
    let programs = [client(), client()];
    let said: String = programs
        .into_iter()
        .map(|program| answers(program, ""))
        .collect();
    let of = |status: &str| -> u64 {
        let counts = said
            .lines()
            .filter_map(|line| line.strip_prefix(status)?.strip_prefix(' '));
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    };
    let [passed, blocked, lost] = ["0", "1", "-1"].map(of);
    println!("{}", lost_with_sentinels_own_server());
    println!(
        "of 100,000 requests {passed} passed, {blocked} were blocked, {lost} answers were missed"
    );
    assert_eq!(passed + blocked + lost, 100_000, "{said}");
    assert!(passed <= 1_000 && passed + lost >= 1_000, "{said}");
}

/// The same programs with Sentinel's own token server, for comparison.
fn lost_with_sentinels_own_server() -> String {
    let port = free_port().to_string();
    let mut server = sentinel("TokenServer")
        .args([&port, "101", "1000"])
        .spawn()
        .unwrap();
    eventually("Sentinel's token server listens", || {
        TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()
    });
    let programs = [(); 2].map(|()| {
        sentinel("Client")
            .args([&port, "8", "6250", "20", "101"])
            .spawn()
            .unwrap()
    });
    let said: String = programs
        .into_iter()
        .map(|program| answers(program, ""))
        .collect();
    server.kill().unwrap();
    server.wait().unwrap();
    let lost = said
        .lines()
        .filter_map(|line| line.strip_prefix("-1 ")?.parse::<u64>().ok())
        .sum::<u64>();
    format!(
        "of 100,000 requests to Sentinel's own server {lost} answers came before the client waited for them"
    )
}

/// A program with Sentinel's HTTP transport, which ends when this is dropped.
struct Program(Child);

impl Program {
    /// It answers commands on this port.
    fn start(dashboard: SocketAddr, port: u16) -> Self {
        let mut child = sentinel("Program")
            .args([dashboard.to_string(), port.to_string()])
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "ready\n");
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs Sentinel: scripts/test.sh --interop"]
fn a_program_of_java_is_shown_and_keeps_its_pushed_rules_over_restarts_of_both() {
    const RULES: &str = "
flow:
  - { resource: pay, limit: 5/1s }
  - { pattern: 'GET:/orders/[0-9]+', in_flight: 7, origin: web }
  - { resource: warm, limit: 10/1s, behaviour: warm-up, warm_up: 20s }
  - { resource: even, limit: 20/1s, behaviour: throttle, max_wait: 250ms }
  - { resource: both, limit: 20/1s, behaviour: warm-up-throttle, warm_up: 10s, max_wait: 100ms, related: warm }
  - { resource: 'a+b%20 \"ü\"', limit: 3/1s, context: web }
isolation: [{ resource: db, in_flight: 20 }]
breakers:
  - { resource: db, slower_than: 50ms, ratio: 0.8, interval: 20s, open: 5s }
  - { resource: db, ratio: 0.5, min_calls: 10, open: 7s }
  - { resource: db, errors: 9, open: 7s }
hot_params:
  - { resource: search, arg: 0, limit: 5/2s, burst: 3, exceptions: { vip: 100, 7: 9 } }
system: [{ qps: 5000, in_flight: 300 }, { qps: 4000, mean_rt: 900ms }]
authority: [{ resource: admin, allow: [office, home] }, { resource: shop, deny: [robot] }]
";
    let directory = scratch("sentinel-jvm-rules");
    let options = |address: &str| Options {
        sentinel_dashboard: Some(address.to_owned()),
        flow_rules: Some(directory.clone()),
        ..Options::default()
    };
    let server = Running::start(options("127.0.0.1:0"));
    let dashboard = server.dashboard;
    let (first, second) = (free_port(), free_port());
    let program = Program::start(dashboard, first);
    let rate = |server: &Running, of: &str| {
        let app = dashboard::app(server, "shop");
        let pay = app["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|known| known["resource"] == "pay")
            .cloned();
        pay.and_then(|pay| pay[of].as_f64()).unwrap_or(0.0)
    };
    eventually("its metrics are shown", || {
        rate(&server, "pass_per_second") > 10.0
    });
    assert_eq!(rate(&server, "block_per_second").to_bits(), 0);
    dashboard::push(&server, RULES);
    let version = dashboard::app(&server, "shop")["rules"]["version"].clone();
    // The name of a program that has all rules, other than this one. If a port is taken, Sentinel
    // takes the next one.
    let with_rules = |server: &Running, other: &str| {
        let app = dashboard::app(server, "shop");
        let mut known = app["instances"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|known| known["instance"] != *other);
        let its = known.find(|known| known["version"] == version)?;
        Some(its["instance"].as_str()?.to_owned())
    };
    eventually("it has every rule as pushed", || {
        with_rules(&server, "").is_some()
    });
    let name = with_rules(&server, "").unwrap();
    eventually("the rules apply", || {
        rate(&server, "block_per_second") > 10.0
    });

    server.stop();
    let server = Running::start(options(&dashboard.to_string()));
    eventually("the new server shows its metrics", || {
        rate(&server, "block_per_second") > 10.0
    });
    eventually("the new server kept the rules", || {
        with_rules(&server, "").is_some()
    });
    drop(program);
    let program = Program::start(dashboard, second);
    eventually("the rules are pushed to the new program", || {
        with_rules(&server, &name).is_some()
    });
    drop(program);
}
