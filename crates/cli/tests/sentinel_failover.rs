//! Two token servers over one Redis, behind a load balancer: one is killed while programs of Java
//! ask. Needs Sentinel: `scripts/test.sh --interop`.
#![cfg(feature = "servers")]

#[path = "integration/program/mod.rs"]
mod program;

use std::{
    env, fs, io,
    io::{BufRead as _, BufReader},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
};

use program::{PATIENCE, Serving, scratch, tidegate};
use tidegate_redis_servers::{Server, free_port};

/// Units for all programs in an hour.
const UNITS: u64 = 60_000;
/// Calls that a program lets pass in a second without the token server.
const LOCAL: u64 = 5;

/// Forwards each connection to the first of the servers that accepts it.
fn balance(servers: [u16; 2]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let connect = |port| TcpStream::connect(("127.0.0.1", port)).ok();
            let Some(server) = servers.into_iter().find_map(connect) else {
                continue;
            };
            for stream in [&client, &server] {
                stream.set_nodelay(true).unwrap();
            }
            for (from, to) in [(&client, &server), (&server, &client)] {
                let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                thread::spawn(move || {
                    let _ = io::copy(&mut from, &mut to);
                    let _ = to.shutdown(Shutdown::Both);
                });
            }
        }
    });
    port
}

/// A program of Java, and the sums that it prints each 100 ms: passed, blocked, and the answers OK,
/// BLOCKED and others.
struct Java {
    child: Child,
    sums: mpsc::Receiver<[u64; 5]>,
}

impl Java {
    fn start(port: u16) -> Self {
        let program = env::var("TIDEGATE_SENTINEL").expect("scripts/servers.sh sentinel names it");
        let mut child = Command::new(program)
            .args([
                "Failover",
                &port.to_string(),
                "8",
                "101",
                &LOCAL.to_string(),
            ])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (send, sums) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let numbers: Vec<u64> = line.split(' ').map(|sum| sum.parse().unwrap()).collect();
                if send.send(numbers.try_into().unwrap()).is_err() {
                    return;
                }
            }
        });
        Self { child, sums }
    }

    fn next(&self) -> [u64; 5] {
        self.sums.recv_timeout(PATIENCE).unwrap()
    }

    /// Waits until the token server does not answer. Returns the number of its answers.
    fn unserved(&self) -> u64 {
        let mut answers = None;
        loop {
            let sums = self.next();
            if answers.replace(sums[2] + sums[3]) == Some(sums[2] + sums[3]) {
                return sums[2] + sums[3];
            }
        }
    }

    /// Waits for more answers of the token server than these. Returns the lines until then.
    fn served(&self, beyond: u64) -> Vec<[u64; 5]> {
        let mut lines = Vec::new();
        while lines
            .last()
            .is_none_or(|sums: &[u64; 5]| sums[2] + sums[3] <= beyond)
        {
            lines.push(self.next());
            assert!(
                lines.len() < 600,
                "no answer in a minute: {:?}",
                lines.last()
            );
        }
        lines
    }
}

impl Drop for Java {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "needs Sentinel: scripts/test.sh --interop"]
fn interop_a_killed_token_server_is_replaced_and_no_unit_is_given_twice() {
    let directory = scratch("sentinel-failover");
    let rules = directory.join("rules");
    fs::create_dir(&rules).unwrap();
    let per_second = UNITS as f64 / 3_600.0;
    let rule = format!(
        r#"[{{"resource":"pay","count":{per_second},"clusterMode":true,
            "clusterConfig":{{"flowId":101,"thresholdType":1,"windowIntervalMs":3600000}}}}]"#
    );
    fs::write(rules.join("shop.json"), rule).unwrap();
    let store = Server::start(&[]);
    let ports = [free_port(), free_port()];
    let [mut first, _second] = ports.map(|port| {
        Serving::run(
            tidegate()
                .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
                .args([
                    &format!("--sentinel-token=127.0.0.1:{port}"),
                    &format!("--sentinel-rules={}", rules.display()),
                    &format!("--store={}", store.address()),
                    "--sentinel-max-qps=1000000",
                ]),
        )
    });
    let balancer = balance(ports);
    let programs = [Java::start(balancer), Java::start(balancer)];
    for program in &programs {
        program.served(5_000);
    }
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    // Lines that the programs wrote before the kill.
    let before = programs.each_ref().map(|program| {
        program
            .sums
            .try_iter()
            .last()
            .unwrap_or_else(|| program.next())
    });
    for (program, before) in programs.iter().zip(before) {
        let away = program.served(program.unserved());
        let (steps, last) = (away.len(), away.last().unwrap());
        let others = last[0] - before[0] - (last[2] - before[2]);
        println!(
            "served again after {steps} steps of 100 ms; {others} calls passed by the local rule until then"
        );
        assert!(steps <= 40, "{steps} steps of 100 ms");
        // A second of two slots has at most LOCAL units, so each second that has begun has at most
        // twice as many.
        assert!(
            (1..=2 * LOCAL * (steps as u64 / 10 + 2)).contains(&others),
            "{others} in {steps} steps"
        );
    }
    let mut sums = [[0; 5]; 2];
    while sums.iter().map(|sums| sums[2] + sums[3]).sum::<u64>() < 100_000 {
        for (sums, program) in sums.iter_mut().zip(&programs) {
            *sums = program.next();
        }
    }
    let of = |at: usize| sums.iter().map(|sums| sums[at]).sum::<u64>();
    println!(
        "{} answers OK, {} BLOCKED, {} others (most of them without a connection)",
        of(2),
        of(3),
        of(4)
    );
    assert!(of(2) <= UNITS, "{} of {UNITS}", of(2));
    assert!(of(3) > 0, "the units were used up");
}
