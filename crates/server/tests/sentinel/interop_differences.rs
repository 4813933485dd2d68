//! The table "Differences from Sentinel's token server" of the book: its rows have a scenario here,
//! except for those that need a race or a store.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    io::Read as _,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use tidegate_redis_servers::{eventually, free_port};
use tidegate_server::Options;

use super::{
    Client, Running, digits,
    harness::PATIENCE,
    interop::{answers, sentinel},
    interop_library::listed,
    scratch,
};

/// Rows that one client without a store does not show, each with the tests that do, and the
/// settings that Tidegate does not have.
const ELSEWHERE: [&str; 3] = [
    "threads", // eight_connections_never_take_more_than_there_is, two_programs_with_sentinels_client_never_take_more_than_there_is
    "store",   // two_servers_never_give_more_than_there_is asks with priority
    "settings", // nothing to set
];

const BEGIN: u64 = 1_700_049_600_000;

/// A rule as Sentinel's program and as Tidegate's file have it, requests at milliseconds, and both
/// answers to the last one.
struct Row {
    id: &'static str,
    rule: &'static str,
    json: &'static str,
    asks: &'static [(u64, &'static str)],
    theirs: &'static str,
    ours: &'static str,
}

const ONE: &str = r#"[{"resource":"r","count":1,"clusterMode":true,"clusterConfig":{"flowId":1,"thresholdType":1}}]"#;
const LONG: &str = r#"[{"resource":"r","count":1,"clusterMode":true,
    "clusterConfig":{"flowId":1,"thresholdType":1,"sampleCount":10,"windowIntervalMs":2000}}]"#;

const ROWS: [Row; 5] = [
    Row {
        id: "ahead",
        rule: "flow 1 1 1 10 1000",
        json: ONE,
        asks: &[
            (0, "ask 1 1 false"),
            (900, "ask 1 1 true"),
            (1_500, "ask 1 1 false"),
            (2_050, "ask 1 1 false"),
        ],
        theirs: "1 0 0",
        ours: "0 0 0",
    },
    Row {
        id: "not-prioritized",
        rule: "flow 1 3 1 10 1000",
        json: r#"[{"resource":"r","count":3,"clusterMode":true,"clusterConfig":{"flowId":1,"thresholdType":1}}]"#,
        asks: &[
            (0, "ask 1 2 false"),
            (900, "ask 1 2 true"),
            (900, "ask 1 1 false"),
        ],
        theirs: "0 0 0",
        ours: "1 0 0",
    },
    Row {
        id: "wait",
        rule: "flow 1 1 1 10 2000",
        json: LONG,
        asks: &[
            (0, "ask 1 1 false"),
            (0, "ask 1 1 false"),
            (1_800, "ask 1 1 true"),
        ],
        theirs: "2 0 100",
        ours: "2 0 200",
    },
    Row {
        id: "window",
        rule: "flow 1 1 1 10 2000",
        json: LONG,
        asks: &[(0, "ask 1 1 false"), (1, "ask 1 1 false")],
        theirs: "1 0 0",
        ours: "0 0 0",
    },
    Row {
        id: "types",
        rule: "param 1 1 1",
        json: r#"[{"resource":"r","count":1,"paramIdx":0,"clusterMode":true,"clusterConfig":{"flowId":1,"thresholdType":1}}]"#,
        asks: &[(0, "values 1 1 7"), (0, "values 1 1 #7")],
        theirs: "0 0 0",
        ours: "1 0 0",
    },
];

fn theirs(row: &Row) -> String {
    let mut script = format!("{}\nconnect\n", row.rule);
    for (ms, ask) in row.asks {
        let _ = writeln!(script, "at {}\n{ask}", BEGIN + ms);
    }
    let said = answers(sentinel("Oracle").spawn().unwrap(), &script);
    said.lines().last().unwrap().to_owned()
}

fn ours(row: &Row) -> String {
    let file = scratch(&format!("sentinel-difference-{}", row.id)).join("shop.json");
    fs::write(&file, row.json).unwrap();
    let sentinel = Some("127.0.0.1:0".to_owned());
    let server = Running::start(Options {
        sentinel,
        sentinel_rules: Some(file),
        ..Options::default()
    });
    let (mut client, mut now, mut last) = (Client::of_shop(&server), 0, (0, 0, 0));
    for (ms, ask) in row.asks {
        server.advance(Duration::from_millis(ms - now));
        now = *ms;
        let words: Vec<&str> = ask.split(' ').collect();
        let (id, count) = (words[1].parse().unwrap(), words[2].parse().unwrap());
        last = match words[0] {
            "ask" => client.ask(id, count, words[3] == "true"),
            _ => client.ask_values(id, count, &words[3..]),
        };
    }
    format!("{} {} {}", last.0, last.1, last.2)
}

/// The answer to a bad frame with the request number 9 before a good one with 2; `None` if there is
/// none, or only to the good one, within three seconds.
fn answer_to(address: SocketAddr, bad: &str) -> Option<String> {
    let mut client = Client(TcpStream::connect(address).unwrap());
    // A JVM may need long for its first answer.
    client.0.set_read_timeout(Some(PATIENCE)).unwrap();
    client.says("000d 00000001 00 00000004 73686f70", None);
    let seconds = Duration::from_secs(3);
    client.0.set_read_timeout(Some(seconds)).unwrap();
    client.send(bad);
    client.send("0012 00000002 01 0000000000000065 00000001 00");
    let mut answer = [0; 8];
    let first = client
        .0
        .read_exact(&mut answer)
        .ok()
        .map(|()| digits(&answer[2..]));
    first.filter(|answer| answer.starts_with("00000009"))
}

#[test]
#[ignore = "needs Sentinel: scripts/test.sh --interop"]
fn each_difference_from_sentinels_token_server_is_what_both_answer() {
    let mut shown: BTreeSet<String> = ELSEWHERE.map(str::to_owned).into();
    for row in &ROWS {
        assert_eq!(
            (theirs(row), ours(row)),
            (row.theirs.to_owned(), row.ours.to_owned()),
            "{}",
            row.id
        );
        shown.insert(row.id.to_owned());
    }

    let port = free_port();
    let mut server = sentinel("TokenServer")
        .args([&port.to_string(), "101", "1000"])
        .spawn()
        .unwrap();
    let theirs = SocketAddr::from(([127, 0, 0, 1], port));
    eventually("Sentinel's token server listens", || {
        TcpStream::connect(theirs).is_ok()
    });
    let ours = super::server("sentinel-difference-frames");
    for (id, bad, answer) in [
        (
            "cut-off",
            "0010 00000009 01 0000000000000065 000000",
            "0000000901fc",
        ),
        ("unknown-type", "0005 00000009 03", "0000000903ff"),
    ] {
        assert_eq!(answer_to(theirs, bad), None, "{id}");
        assert_eq!(
            answer_to(ours.sentinel, bad).as_deref(),
            Some(answer),
            "{id}"
        );
        shown.insert(id.to_owned());
    }
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(
        listed("Differences from Sentinel's token server"),
        shown,
        "rows of the book, and scenarios of this test"
    );
}
