//! The token server for Sentinel's clients, byte by byte. The first test repeats what was seen
//! between Sentinel's own client and server.
#![cfg(all(feature = "sentinel", not(loom)))]

mod dashboard;
#[path = "../integration/harness/mod.rs"]
mod harness;
mod interop;
mod interop_differences;
mod interop_library;

use std::{
    fmt::Write as _,
    io::{Read, Write},
    net::TcpStream,
    path::PathBuf,
    thread,
    time::Duration,
};

use harness::{Running, replace, scratch};
use proptest::{
    prelude::Rng as _,
    test_runner::{RngAlgorithm, TestRng},
};
use tidegate_server::{Mode, Options};

const RULES: &str = r#"[
    {"resource":"all","count":10,"clusterMode":true,"clusterConfig":{"flowId":101,"thresholdType":1}},
    {"resource":"each","count":10,"clusterMode":true,"clusterConfig":{"flowId":102}},
    {"resource":"values","count":3,"paramIdx":0,"clusterMode":true,
     "clusterConfig":{"flowId":201,"thresholdType":1},"paramFlowItemList":[{"object":"vip","count":5}]},
    {"resource":"each-value","count":2,"paramIdx":0,"clusterMode":true,"clusterConfig":{"flowId":202},
     "paramFlowItemList":[{"object":"vip","count":5}]}
]"#;

fn options(name: &str) -> (Options, PathBuf) {
    let file = scratch(name).join("shop.json");
    std::fs::write(&file, RULES).unwrap();
    let sentinel = Some("127.0.0.1:0".to_owned());
    (
        Options {
            sentinel,
            sentinel_rules: Some(file.clone()),
            ..Options::default()
        },
        file,
    )
}

fn server(name: &str) -> Running {
    Running::start(options(name).0)
}

/// A client, byte by byte.
struct Client(TcpStream);

impl Client {
    fn of(server: &Running) -> Self {
        let stream = TcpStream::connect(server.sentinel).unwrap();
        stream.set_read_timeout(Some(harness::PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    /// One that has named its namespace.
    fn of_shop(server: &Running) -> Self {
        let mut client = Self::of(server);
        client.says("000d 00000000 00 00000004 73686f70", None);
        client
    }

    fn send(&mut self, frame: &str) {
        self.0.write_all(&hex(frame)).unwrap();
    }

    fn read(&mut self) -> String {
        let mut length = [0; 2];
        self.0.read_exact(&mut length).unwrap();
        let mut frame = vec![0; u16::from_be_bytes(length).into()];
        self.0.read_exact(&mut frame).unwrap();
        digits(&[&length[..], &frame].concat())
    }

    /// Sends a frame and reads the answer, which is this one.
    fn says(&mut self, frame: &str, answer: Option<&str>) {
        self.send(frame);
        let said = self.read();
        if let Some(answer) = answer {
            assert_eq!(said, answer.replace(' ', ""), "{frame}");
        }
    }

    /// Status, remaining and wait of a request for tokens.
    fn ask(&mut self, id: i64, count: i32, is_prioritized: bool) -> (i8, i32, i32) {
        self.send(&format!(
            "0012 00000001 01 {id:016x} {count:08x} {:02x}",
            u8::from(is_prioritized)
        ));
        self.answer()
    }

    /// The same for values, which are texts, or numbers after a `#`.
    fn ask_values(&mut self, id: i64, count: i32, values: &[&str]) -> (i8, i32, i32) {
        let mut data = format!("00000001 02 {id:016x} {count:08x} {:08x}", values.len());
        for value in values {
            let _ = match value
                .strip_prefix('#')
                .map(|number| number.parse::<i32>().unwrap())
            {
                Some(number) => write!(data, "00 {number:08x}"),
                None => write!(data, "07 {:08x} {}", value.len(), digits(value.as_bytes())),
            };
        }
        self.send(&format!("{:04x} {data}", hex(&data).len()));
        self.answer()
    }

    fn answer(&mut self) -> (i8, i32, i32) {
        let frame = hex(&self.read());
        assert_eq!(frame.len(), 16, "{frame:?}");
        let number = |at: usize| i32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
        (frame[7].cast_signed(), number(8), number(12))
    }
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let pair = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(pair).collect()
}

#[test]
fn a_transcript_of_sentinels_own_server_is_repeated() {
    let server = server("sentinel-transcript");
    let mut client = Client::of(&server);
    let mut says = |frame: &str, answer: &str| client.says(frame, Some(answer));
    // PING "shop", from its only connection.
    says(
        "000d 00000000 00 00000004 73686f70",
        "000a 00000000 00 00 00000001",
    );
    says(
        "0012 00000001 01 0000000000000065 00000001 00",
        "000e 00000001 01 00 00000009 00000000",
    );
    // Without the byte for the priority, as old clients send it.
    says(
        "0011 00000002 01 0000000000000065 00000003",
        "000e 00000002 01 00 00000006 00000000",
    );
    says(
        "0012 00000003 01 0000000000000065 00000007 00",
        "000e 00000003 01 01 00000000 00000000",
    );
    says(
        "0012 00000004 01 0000000000000065 00000007 01",
        "000e 00000004 01 01 00000000 00000000",
    );
    says(
        "0012 00000004 01 0000000000000065 0000000b 00",
        "000e 00000004 01 01 00000000 00000000",
    );
    // No such rule; flowId 0; a count of 0 and of -1; and one byte too few.
    says(
        "0012 00000005 01 00000000000003e7 00000001 00",
        "000e 00000005 01 03 00000000 00000000",
    );
    says(
        "0012 00000006 01 0000000000000000 00000001 00",
        "000e 00000006 01 fc 00000000 00000000",
    );
    says(
        "0012 00000007 01 0000000000000065 00000000 00",
        "000e 00000007 01 fc 00000000 00000000",
    );
    says(
        "0012 00000008 01 0000000000000065 ffffffff 00",
        "000e 00000008 01 fc 00000000 00000000",
    );
    says(
        "0010 00000009 01 0000000000000065 000000",
        "000e 00000009 01 fc 00000000 00000000",
    );
    // Values: one, one of each type, too many, an exception, none.
    let x = "00000001 07 00000001 78";
    says(
        &format!("001b 00000006 02 00000000000000c9 00000001 {x}"),
        "000e 00000006 02 00 00000002 00000000",
    );
    says(
        "0042 00000007 02 00000000000000c9 00000001 00000008 00 00000001 01 0000000000000002 02 03
         03 4012000000000000 04 40b00000 05 0006 06 01 07 00000005 6bc3a47365",
        "000e 00000007 02 00 ffffffff 00000000",
    );
    says(
        &format!("001b 00000008 02 00000000000000c9 00000003 {x}"),
        "000e 00000008 02 01 00000000 00000000",
    );
    says(
        "001d 00000009 02 00000000000000c9 00000005 00000001 07 00000003 766970",
        "000e 00000009 02 00 00000000 00000000",
    );
    says(
        "0015 0000000a 02 00000000000000c9 00000001 00000000",
        "000e 0000000a 02 fc 00000000 00000000",
    );
    // A PING without a name, and types that do not exist.
    says("0005 0000000b 00", "0006 0000000b 00 ff");
    says("0009 0000000c 00 00000000", "0006 0000000c 00 ff");
    says("0005 0000000d 03", "0006 0000000d 03 ff");
    // The connection is in step: empty and too long frames have no answer, several in one packet
    // are answered in order.
    let long = format!("0400 {}", "01".repeat(0x400));
    let one = "0012 00000001 01 0000000000000066 00000001 00";
    client.send(&format!(
        "0000 {long} {one} {}",
        one.replace("00000001 01", "00000002 01")
    ));
    assert_eq!(
        client.read(),
        "000e000000010100000000090000000000000000"[..32]
    );
    assert_eq!(
        client.read(),
        "000e000000020100000000080000000000000000"[..32]
    );
}

#[test]
fn a_prioritized_request_takes_from_the_next_slot_and_no_one_else_does() {
    let server = server("sentinel-priority");
    let mut client = Client::of_shop(&server);
    for remaining in (0..10).rev() {
        assert_eq!(client.ask(101, 1, false), (0, remaining, 0));
    }
    // As seen: blocked up to 800 ms later, then told to wait for the slot in which the ten are
    // gone.
    for _ in 0..8 {
        server.advance(Duration::from_millis(100));
        assert_eq!(client.ask(101, 1, true), (1, 0, 0));
    }
    server.advance(Duration::from_millis(100));
    assert_eq!(client.ask(101, 1, false), (1, 0, 0));
    assert_eq!(client.ask(101, 1, true), (2, 0, 100));
    assert_eq!(client.ask(101, 9, true), (2, 0, 100));
    assert_eq!(
        client.ask(101, 1, true),
        (1, 0, 0),
        "the next slot has no more than ten"
    );
    assert_eq!(
        client.ask(101, 1, false),
        (1, 0, 0),
        "and its room is not there before it begins"
    );
    server.advance(Duration::from_millis(100));
    assert_eq!(
        client.ask(101, 1, false),
        (1, 0, 0),
        "those that waited are counted"
    );
    server.advance(Duration::from_secs(1));
    assert_eq!(client.ask(101, 10, false), (0, 0, 0));
    let metrics = server.get("/metrics").body;
    let has = |line: &str| assert!(metrics.contains(line), "{line}: {metrics}");
    has("tidegate_sentinel_requests_total{type=\"flow\",status=\"should_wait\"} 2");
    has("tidegate_sentinel_requests_total{type=\"flow\",status=\"ok\"} 11");
    has("tidegate_decisions_total{limit=\"shop.flow.101\",outcome=\"allowed\"} 13");
}

#[test]
fn each_connection_adds_to_an_average_threshold() {
    let server = server("sentinel-average");
    let mut stranger = Client::of(&server);
    assert_eq!(
        stranger.ask(102, 1, false),
        (1, 0, 0),
        "no connection has said that it is of this namespace"
    );
    let mut one = Client::of_shop(&server);
    assert_eq!(one.ask(102, 1, false), (0, 9, 0));
    let two = Client::of_shop(&server);
    assert_eq!(one.ask(102, 1, false), (0, 18, 0));
    assert_eq!(one.ask(102, 18, true), (0, 0, 0));
    assert_eq!(one.ask_values(202, 4, &["x"]), (0, 0, 0));
    assert_eq!(one.ask_values(202, 10, &["vip"]), (0, 0, 0));
    assert_eq!(one.ask_values(202, 1, &["vip"]), (1, 0, 0));
    drop(two);
    // The server sees the end of a connection a moment later.
    server.advance(Duration::from_secs(1));
    let mut pings = 0;
    loop {
        one.send("000d 00000000 00 00000004 73686f70");
        pings += 1;
        if one.read().ends_with("00000001") {
            break;
        }
        assert!(pings < 10_000);
    }
    assert_eq!(one.ask(102, 11, false), (1, 0, 0));
    assert_eq!(one.ask(102, 10, false), (0, 0, 0));
}

#[test]
fn all_values_are_counted_or_none() {
    let server = server("sentinel-values");
    let mut client = Client::of_shop(&server);
    assert_eq!(client.ask_values(201, 2, &["a", "b"]), (0, -1, 0));
    assert_eq!(client.ask_values(201, 2, &["c", "b"]), (1, 0, 0));
    assert_eq!(
        client.ask_values(201, 3, &["c"]),
        (0, 0, 0),
        "nothing was counted"
    );
    assert_eq!(
        client.ask_values(201, 1, &["a", "a"]),
        (1, 0, 0),
        "one is left, and two are asked for"
    );
    assert_eq!(client.ask_values(201, 1, &[&"long".repeat(200)]), (0, 2, 0));
    // 7 as an int, a long, a byte and a short, 7.5 twice, true, and a text: a value counts by how
    // Java prints it.
    client.send(
        "0042 00000007 02 00000000000000c9 00000001 00000008 00 00000007 01 0000000000000007 02 07
         03 401e000000000000 04 40f00000 05 0007 06 01 07 00000005 6bc3a47365",
    );
    assert_eq!(client.answer(), (1, 0, 0), "four of the three");
    assert_eq!(
        client.ask_values(201, 3, &["7"]),
        (0, 0, 0),
        "nothing was counted"
    );
    assert_eq!(
        client.ask_values(101, 1, &["a"]),
        (3, 0, 0),
        "a rule without values"
    );
    assert_eq!(client.ask(201, 1, false), (3, 0, 0), "a rule with values");
}

#[test]
fn a_frame_is_read_however_its_bytes_arrive_and_what_no_rule_can_answer_is_bad() {
    let server = server("sentinel-frames");
    let mut client = Client::of_shop(&server);
    let flow = hex("0012 00000001 01 0000000000000065 00000001 00");
    for step in [1, 7, 13] {
        flow.chunks(step)
            .for_each(|piece| client.0.write_all(piece).unwrap());
        assert_eq!(client.answer().0, 0, "{step}");
    }
    for data in [
        "01",                                                    // nothing at all
        "01 00000000 00000065 000000",                           // one byte too few
        "01 ffffffff fffffffb 00000001",                         // flowId -5
        "02 00000000 000000c9 00000001",                         // no number of values
        "02 00000000 000000c9 00000001 ffffffff 07",             // -1 values
        "02 00000000 000000c9 00000001 00000001 08 00",          // no such type
        "02 00000000 000000c9 00000001 00000001 07 00000002 78", // a text that is cut off
        "02 00000000 000000c9 00000001 00000001 07 ffffffff",    // a text of -1 bytes
        "02 00000000 000000c9 00000001 00000002 02 07", // two values, one of which is missing
    ] {
        client.send(&format!("{:04x} 00000001 {data}", 4 + hex(data).len()));
        assert_eq!(client.answer(), (-4, 0, 0), "{data}");
    }
    // A name that is cut off. A frame without a type has no answer.
    client.says("000a 00000001 00 00000005 73", Some("0006 00000001 00 ff"));
    client.send("0004 00000001");
    assert_eq!(client.ask(101, 1, false).0, 0);
    // Any bytes are answered or skipped.
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[5; 32]);
    for _ in 0..200 {
        let mut bytes = vec![0; random.next_u32() as usize % 300];
        random.fill_bytes(&mut bytes);
        let mut client = Client::of(&server);
        let _ = client.0.write_all(&bytes);
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = client.0.read_to_end(&mut bytes);
    }
    assert_eq!(client.ask(101, 1, false).0, 0, "others are served");
}

#[test]
fn a_namespace_asks_at_most_so_often() {
    let (options, _) = options("sentinel-qps");
    let server = Running::start(Options {
        sentinel_max_qps: 3,
        ..options
    });
    let mut client = Client::of_shop(&server);
    assert_eq!(client.ask(999, 1, false).0, 3, "not counted");
    for _ in 0..3 {
        assert_eq!(client.ask(101, 1, false).0, 0);
    }
    assert_eq!(client.ask(101, 1, false), (-2, 0, 0));
    assert_eq!(client.ask_values(201, 1, &["a"]), (-2, 0, 0));
    server.advance(Duration::from_secs(1));
    assert_eq!(client.ask(101, 1, false), (0, 9, 0));
}

#[test]
fn changed_rules_keep_what_was_used_and_bad_ones_change_nothing() {
    let (options, file) = options("sentinel-reload");
    let mut server = Running::start(options);
    let mut client = Client::of_shop(&server);
    assert_eq!(client.ask(101, 8, false), (0, 2, 0));
    server.reloading(|| replace(&file, RULES.replacen("\"count\":10", "\"count\":12", 1)));
    assert_eq!(client.ask(101, 1, false), (0, 3, 0));
    server.reloading(|| replace(&file, RULES.replace("\"flowId\":102", "\"flowId\":101")));
    assert_eq!(
        client.ask(101, 1, false),
        (0, 2, 0),
        "two rules with one id are refused"
    );
    server.reloading(|| replace(&file, "[]"));
    assert_eq!(client.ask(101, 1, false), (3, 0, 0));
    // The limits are those of HTTP as well.
    server.reloading(|| replace(&file, RULES));
    let body = r#"{"limit":"shop.flow.101"}"#;
    assert_eq!(server.post("/v1/acquire", body).status, 200);
}

#[test]
fn eight_connections_never_take_more_than_there_is() {
    let server = server("sentinel-threads");
    let taken: usize = thread::scope(|scope| {
        let ask = || {
            let mut client = Client::of_shop(&server);
            (0..500)
                .filter(|at| client.ask(101, 1, at % 3 == 0).0 == 0)
                .count()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(ask)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert_eq!(taken, 10);
}

#[test]
fn nothing_is_served_to_a_stranger() {
    let (options, file) = options("sentinel-access");
    let access = file.with_file_name("access.yaml");
    let digest = "ab".repeat(32);
    let entry = |shown: &str| {
        format!("access: [{{name: a, roles: [decide], limits: [shop.flow], {shown}}}]")
    };
    std::fs::write(&access, entry(&format!("tokens: ['sha256:{digest}']"))).unwrap();
    let started = Options {
        access: Some(access.clone()),
        ..options
    };
    let server = Running::start(started.clone());
    let mut client = Client::of_shop(&server);
    assert_eq!(
        client.ask(101, 1, false),
        (-1, 0, 0),
        "its rule falls back to the program"
    );
    std::fs::write(&access, entry("addresses: [127.0.0.0/8]")).unwrap();
    let server = Running::start(started.clone());
    let mut client = Client::of_shop(&server);
    assert_eq!(client.ask(101, 1, false), (0, 9, 0));
    assert_eq!(
        client.ask_values(201, 1, &["a"]),
        (-1, 0, 0),
        "not among its limits"
    );
    // Other machines are only served by an access file, or if the operator says that all may ask.
    let everywhere = Options {
        sentinel: Some("0.0.0.0:0".to_owned()),
        access: None,
        ..started
    };
    let said = Running::try_start_at(everywhere.clone(), tidegate_core::Nanos::ZERO)
        .err()
        .unwrap();
    assert!(
        said.contains("--sentinel-token") && said.contains("addresses"),
        "{said}"
    );
    Running::start(Options {
        insecure: true,
        ..everywhere
    });
}

#[test]
fn a_client_that_only_ends_its_side_gets_its_answers() {
    let server = server("sentinel-half-closed");
    let mut client = Client::of_shop(&server);
    client.send("0012 00000001 01 0000000000000065 00000001 00");
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(client.answer(), (0, 9, 0));
    assert_eq!(client.0.read(&mut [0]).unwrap(), 0);
}

#[cfg(feature = "servers")]
mod over_a_store {
    use tidegate_redis_servers::Server;

    use super::*;

    /// 36 units for all programs, 36 for each value, and 36 for each connection, in an hour.
    const RULES: &str = r#"[
        {"resource":"all","count":0.01,"clusterMode":true,
         "clusterConfig":{"flowId":101,"thresholdType":1,"windowIntervalMs":3600000}},
        {"resource":"each","count":0.01,"clusterMode":true,"clusterConfig":{"flowId":102,"windowIntervalMs":3600000}},
        {"resource":"values","count":0.01,"paramIdx":0,"clusterMode":true,
         "clusterConfig":{"flowId":201,"thresholdType":1,"windowIntervalMs":3600000}},
        {"resource":"values","count":0.01,"paramIdx":0,"clusterMode":true,
         "clusterConfig":{"flowId":202,"windowIntervalMs":3600000}}
    ]"#;

    fn passed(
        client: &mut Client,
        requests: usize,
        mut ask: impl FnMut(&mut Client) -> i8,
    ) -> usize {
        (0..requests).filter(|_| ask(client) == 0).count()
    }

    fn two_servers(name: &str, store: &Server, mode: Option<Mode>) -> [Running; 2] {
        ["one", "two"].map(|which| {
            let name = format!("sentinel-{name}-{which}");
            let (options, file) = options(&name);
            replace(&file, RULES);
            let (store, name) = (Some(store.address()), Some(name));
            let server = Running::start(Options {
                store,
                name,
                sentinel_sharing: mode,
                // A machine that is busy decides nothing locally.
                store_deadline: Duration::from_secs(5).into(),
                ..options
            });
            let ready = || server.get("/readyz").json()["status"] == "ready";
            tidegate_redis_servers::eventually("the store has been reached", ready);
            server
        })
    }

    #[test]
    fn servers_that_take_tokens_ahead_never_give_more_than_there_is() {
        let store = Server::start(&[]);
        let servers = two_servers("leased", &store, Some(Mode::Leased));
        let asks = servers.each_ref().map(|server| {
            let client = &mut Client::of_shop(server);
            passed(client, 60, |client| client.ask(101, 1, false).0)
        });
        assert!(asks[0] > 0 && asks.iter().sum::<usize>() <= 36, "{asks:?}");
        let shown = servers[0].get("/v1/limits").body;
        assert!(shown.contains(r#""sharing":"leased""#), "{shown}");
    }

    #[test]
    fn two_servers_never_give_more_than_there_is() {
        let store = Server::start(&[]);
        let servers = two_servers("store", &store, None);
        let both = |ask: &(dyn Fn(&mut Client) -> i8 + Sync)| -> usize {
            thread::scope(|scope| {
                let servers = servers.iter().flat_map(|server| [server; 2]);
                let ask =
                    |server| scope.spawn(move || passed(&mut Client::of_shop(server), 30, ask));
                let asking: Vec<_> = servers.map(ask).collect();
                asking.into_iter().map(|asked| asked.join().unwrap()).sum()
            })
        };
        assert_eq!(both(&|client| client.ask(101, 1, true).0), 36);
        assert_eq!(both(&|client| client.ask_values(201, 1, &["a"]).0), 36);
        assert_eq!(both(&|client| client.ask_values(201, 1, &["b", "a"]).0), 0);
        assert_eq!(
            both(&|client| client.ask_values(201, 1, &["b", "c"]).0),
            36,
            "nothing was taken before"
        );
        // An average threshold is each server's own: as many units as it has connections, times the
        // count.
        for server in &servers {
            let mut clients = [Client::of_shop(server), Client::of_shop(server)];
            let taken =
                |client: &mut Client| passed(client, 90, |client| client.ask(102, 1, false).0);
            assert_eq!(clients.iter_mut().map(taken).sum::<usize>(), 72);
            assert_eq!(clients[0].ask_values(202, 72, &["a", "b"]), (0, -1, 0));
            assert_eq!(clients[0].ask_values(202, 1, &["c", "b"]), (1, 0, 0));
            assert_eq!(
                clients[0].ask_values(202, 72, &["c"]),
                (0, 0, 0),
                "all values are counted, or none"
            );
        }
    }

    #[test]
    fn requests_in_flight_at_once_share_round_trips_and_keep_their_ids() {
        let store = Server::start(&[]);
        let (options, file) = options("sentinel-store-pipeline");
        replace(&file, RULES);
        let server = Running::start(Options {
            store: Some(store.address()),
            // A busy machine may be late, and then the answer has another status.
            store_deadline: Duration::from_secs(5).into(),
            ..options
        });
        let mut client = Client::of_shop(&server);
        let frames: Vec<String> = (0..500)
            .map(|xid| format!("0012 {xid:08x} 01 0000000000000065 00000001 00"))
            .collect();
        client.send(&frames.concat());
        let mut answers: Vec<(u32, u8)> = (0..500)
            .map(|_| {
                let frame = hex(&client.read());
                (
                    u32::from_be_bytes(frame[2..6].try_into().unwrap()),
                    frame[7],
                )
            })
            .collect();
        answers.sort_unstable();
        assert!(answers.iter().map(|(xid, _)| *xid).eq(0..500));
        assert_eq!(
            answers.iter().filter(|(_, status)| *status == 0).count(),
            36
        );
    }
}

/// Each connection adds the rule's units, also where they pass what the rule's own number would
/// need for its counts: 26 × 10 units need more bits than 10 do.
#[test]
fn connections_add_units_beyond_any_width_of_a_count() {
    let server = server("sentinel-connections");
    let mut all = Vec::new();
    for connections in 1..=40 {
        let mut client = Client::of_shop(&server);
        let (status, _, _) = client.ask(102, 1, false);
        assert!(status == 0 || status == 1, "{connections}: {status}");
        let (status, _, _) = client.ask_values(202, 1, &["vip"]);
        assert!(status == 0 || status == 1, "{connections}: {status}");
        all.push(client);
    }
    // 40 of 400 units were taken, in the same window: time stands still. Of the value, 40 of 200.
    let one = all.last_mut().expect("there are 40");
    assert_eq!(one.ask(102, 361, false).0, 1);
    assert_eq!(one.ask(102, 359, false), (0, 1, 0));
    assert_eq!(one.ask(102, 1, false), (0, 0, 0));
    assert_eq!(one.ask(102, 1, false).0, 1);
    assert_eq!(one.ask_values(202, 161, &["vip"]).0, 1);
    assert_eq!(one.ask_values(202, 160, &["vip"]), (0, 0, 0));
}
