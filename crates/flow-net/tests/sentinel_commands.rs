//! The command API and the heartbeats of Sentinel's dashboard, over sockets.
#![cfg(feature = "sentinel")]

use std::{
    fs,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    Gate, ManualTimer,
    rules::{FlowRule, Rules},
};
use tidegate_flow_net::sentinel::{CommandApi, Commands};

/// A request, and the status and the body of its answer.
fn ask(address: SocketAddr, head: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    let length = body.len();
    let form = "Content-Type: application/x-www-form-urlencoded";
    write!(
        stream,
        "{head}\r\n{form}\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer[9..12].parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

fn get(commands: &Commands, path: &str) -> String {
    let (status, text) = ask(
        commands.address(),
        &format!("GET /{path} HTTP/1.1\r\nHost: {}", commands.address()),
        "",
    );
    assert_eq!(status, 200, "{path}: {text}");
    text
}

fn post(commands: &Commands, path: &str, body: &str) -> (u16, String) {
    ask(
        commands.address(),
        &format!("POST /{path} HTTP/1.1\r\nHost: {}", commands.address()),
        body,
    )
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn api() -> CommandApi {
    CommandApi::new("shop").port(0)
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("tidegate-commands-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&dir);
    dir
}

#[test]
fn commands_show_what_a_gate_counts() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let gate = Gate::sentinel().timer(timer.clone()).build();
    gate.load(Rules::from(vec![FlowRule::new("db", 2)]))
        .unwrap();
    let commands = api().serve(&gate).unwrap();
    let db = gate.resource("db");
    let held = db
        .entry()
        .origin("web")
        .context("jobs")
        .inbound()
        .enter()
        .unwrap();
    drop(db.entry().origin("app").enter().unwrap());
    assert!(db.enter().is_err());
    drop(gate.resource("idle"));

    assert_eq!(get(&commands, "version"), "1.8.9");
    assert!(json(&get(&commands, "basicInfo"))["ip"] == "127.0.0.1");
    assert_eq!(json(&get(&commands, "api")).as_array().unwrap().len(), 16);
    let role = json(&get(&commands, "getClusterMode"));
    // What Sentinel 1.8.9 answers for a program that is neither a client nor a server.
    assert_eq!(
        (&role["mode"], &role["lastModified"]),
        (&json("-1"), &json("-1"))
    );
    let nodes = json(&get(&commands, "clusterNode?type=notZero"));
    assert_eq!(nodes.as_array().unwrap().len(), 1, "{nodes}");
    let node = &nodes[0];
    for (field, want) in [
        ("threadNum", 1),
        ("passQps", 2),
        ("blockQps", 1),
        ("totalQps", 3),
        ("successQps", 1),
        ("oneMinutePass", 2),
        ("oneMinuteTotal", 3),
        ("timestamp", 1_000_000),
    ] {
        assert_eq!(node[field], want, "{field} of {node}");
    }
    assert_eq!(
        json(&get(&commands, "clusterNode"))
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(json(&get(&commands, "systemStatus"))["t"], 1);
    let row = get(&commands, "cnode?id=d");
    let row = row
        .lines()
        .nth(1)
        .unwrap()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    // The name of the other resource has the part, too, and is second.
    assert_eq!(row, "1 db 1 2 1 3 0 2 1 3");
    let origins = get(&commands, "origin?id=db");
    assert!(
        origins.starts_with("id: db\n\n") && origins.contains("app") && origins.contains("web"),
        "{origins}"
    );
    assert_eq!(
        get(&commands, "origin?id=x%20y"),
        "Not find cNode with id x y"
    );
    let tree = json(&get(&commands, "jsonTree"));
    let place = |id: &str| {
        let node = tree
            .as_array()
            .unwrap()
            .iter()
            .find(|node| node["id"] == id);
        node.map(|node| {
            (
                node["parentId"].as_str().map(str::to_owned),
                node["threadNum"].as_u64().unwrap(),
            )
        })
    };
    assert_eq!(place("machine-root"), Some((None, 1)));
    assert_eq!(place("jobs"), Some((Some("machine-root".to_owned()), 1)));
    assert_eq!(place("jobs/db"), Some((Some("jobs".to_owned()), 1)));
    assert_eq!(
        place("sentinel_default_context/idle"),
        Some((Some("sentinel_default_context".to_owned()), 0))
    );

    let metric = "metric?startTime=1000000&endTime=1000999&identity=db";
    assert_eq!(get(&commands, metric), "", "the second has not ended");
    timer.advance(Duration::from_secs(1));
    assert_eq!(get(&commands, metric), "1000000|db|2|1|1|0|0|0|2|0\n");
    assert_eq!(
        get(&commands, "metric?startTime=1001000&endTime=9000000"),
        ""
    );
    assert!(get(&commands, "metric?startTime=0").contains("|__total_inbound_traffic__|1|0|"));
    assert_eq!(
        get(&commands, "metric?startTime=0&maxLines=1")
            .lines()
            .count(),
        1
    );
    assert_eq!(post(&commands, "metric", "startTime=x").0, 400);
    assert!(
        post(&commands, "unheard", "")
            .1
            .contains("Unknown command `unheard`")
    );
    drop(held);
}

#[test]
fn pushed_rules_apply_at_once_and_survive_a_restart() {
    let dir = scratch("rules");
    let gate = Gate::new();
    let commands = api().keep_rules(&dir).serve(&gate).unwrap();
    let cases = [
        (
            "flow",
            r#"[{"resource":"a%2B%25b","count":5.0,"grade":1}]"#,
            "count",
        ),
        (
            "degrade",
            r#"[{"resource":"a","grade":1,"count":0.5,"timeWindow":7}]"#,
            "timeWindow",
        ),
        ("system", r#"[{"qps":100}]"#, "qps"),
        (
            "authority",
            r#"[{"resource":"a","limitApp":"x,y","strategy":1}]"#,
            "limitApp",
        ),
    ];
    for (kind, text, field) in cases {
        let body = format!("type={kind}&data={text}");
        assert_eq!(
            post(&commands, "setRules", &body),
            (200, "success".to_owned()),
            "{kind}"
        );
        let rules = json(&get(&commands, &format!("getRules?type={kind}")));
        assert_eq!(
            rules[0][field],
            json(&text.replace("%2B%25", "+%"))[0][field],
            "{rules}"
        );
    }
    let param = r#"data=[{"resource":"a","paramIdx":0,"count":3}]"#;
    assert_eq!(
        post(&commands, "setParamFlowRules", param),
        (200, "success".to_owned())
    );
    assert_eq!(json(&get(&commands, "getParamFlowRules"))[0]["count"], 3);
    assert_eq!(gate.rules().flow, [FlowRule::new("a+%b", 5)]);
    let all = gate.rules();
    drop(commands);

    // Another process, and then one whose file has become bad in part.
    let again = Gate::new();
    drop(api().keep_rules(&dir).serve(&again).unwrap());
    assert_eq!(again.rules(), all);
    fs::write(
        dir.join("flow.json"),
        r#"[{"resource":"a","count":1},{"resource":"b"}]"#,
    )
    .unwrap();
    let again = Gate::new();
    let commands = api().keep_rules(&dir).serve(&again).unwrap();
    assert_eq!(
        (again.rules().flow, again.rules().breakers),
        (vec![FlowRule::new("a", 1)], all.breakers)
    );

    for (body, says) in [
        ("type=gateway&data=[]", "invalid type"),
        ("type=flow&data=[1]", "rule 0"),
        ("type=flow&data={", "not well formed"),
        (r#"type=flow&data=[{"resource":"b"}]"#, "count is missing"),
    ] {
        let (status, said) = post(&commands, "setRules", body);
        assert!(
            status == 400 && said.contains(says),
            "{body}: {status} {said}"
        );
    }
    assert_eq!(
        again.rules().flow,
        [FlowRule::new("a", 1)],
        "the previous rules stay active"
    );
    let body = r#"type=flow&data=[{"resource":"a","count":2},{"resource":"b"}]"#;
    let (status, said) = post(&commands, "setRules", body);
    assert!(
        status == 200 && said.starts_with("partial success (") && said.contains("rule 1"),
        "{said}"
    );
    assert_eq!(again.rules().flow, [FlowRule::new("a", 2)]);
}

#[test]
fn the_switch_turns_rules_off_and_rules_pushed_meanwhile_apply_later() {
    let gate = Gate::new();
    gate.load(Rules::from(vec![FlowRule::new("a", 0)])).unwrap();
    let commands = api().serve(&gate).unwrap();
    assert_eq!(get(&commands, "getSwitch"), "Sentinel switch value: true");
    for _ in 0..2 {
        assert_eq!(
            get(&commands, "setSwitch?value=false"),
            "Sentinel set switch value: false"
        );
    }
    assert!(gate.resource("a").enter().is_ok());
    assert_eq!(json(&get(&commands, "getRules?type=flow"))[0]["count"], 0.0);
    assert_eq!(
        post(
            &commands,
            "setRules",
            r#"type=flow&data=[{"resource":"b","count":0}]"#
        )
        .0,
        200
    );
    assert!(gate.resource("b").enter().is_ok());
    for _ in 0..2 {
        get(&commands, "setSwitch?value=true");
    }
    assert_eq!(get(&commands, "getSwitch"), "Sentinel switch value: true");
    assert!(gate.resource("a").enter().is_ok() && gate.resource("b").enter().is_err());
}

#[test]
fn a_web_page_cannot_send_commands_and_a_long_body_is_refused() {
    let gate = Gate::new();
    let commands = api().serve(&gate).unwrap();
    let address = commands.address();
    for head in [
        "Host: evil.example",
        "Host: 127.0.0.1\r\nOrigin: http://evil.example",
        "",
    ] {
        let (status, said) = ask(
            address,
            &format!("GET /setSwitch?value=false HTTP/1.1\r\n{head}"),
            "",
        );
        assert_eq!((status, &*said), (403, "not from a web page"), "{head}");
    }
    for host in ["localhost:8719", "127.0.0.1", "[::1]:8719"] {
        assert_eq!(
            ask(
                address,
                &format!("GET /version HTTP/1.1\r\nHost: {host}"),
                ""
            )
            .0,
            200,
            "{host}"
        );
    }
    assert_eq!(get(&commands, "getSwitch"), "Sentinel switch value: true");
    let (status, _) = post(
        &commands,
        "setRules",
        &format!("type=flow&data={}", " ".repeat(2 << 20)),
    );
    assert_eq!(status, 413);
}

#[test]
fn the_next_free_port_is_taken_and_heartbeats_name_it() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let dashboard = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = taken.local_addr().unwrap().port();
    let api = CommandApi::new("shop & co")
        .port(first)
        .dashboard(dashboard.local_addr().unwrap().to_string());
    let commands = api.serve(&Gate::new()).unwrap();
    let port = commands.address().port();
    assert!(port > first && commands.address().ip() == IpAddr::from([127, 0, 0, 1]));
    let (mut stream, _) = dashboard.accept().unwrap();
    stream
        .set_read_timeout(Some(Duration::from_mins(1)))
        .unwrap();
    let mut request = String::new();
    let mut bytes = [0; 4_096];
    while !request.contains("pid=") {
        let read = stream.read(&mut bytes).unwrap();
        assert!(read > 0, "{request}");
        request.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
    }
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    assert!(
        request.starts_with("POST /registry/machine HTTP/1.1\r\n"),
        "{request}"
    );
    for part in [
        "&ip=127.0.0.1&",
        "&app=shop+%26+co&",
        &format!("&port={port}&"),
        "&v=1.8.9&version=",
    ] {
        assert!(request.contains(part), "{part}: {request}");
    }
}
