//! The counters of envoyproxy/ratelimit, for `StatsD` and for Prometheus.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Read},
    net::{SocketAddr, TcpListener, UdpSocket},
};

use tidegate_redis_servers::free_port;
use tidegate_server::{Options, StatsdAddress};

use crate::{
    client::{Client, one, request},
    harness::{Http, Running},
    rls::{START, options},
};

const CONFIG: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: remote_address, value: 10.0.0.1, rate_limit: {unit: year, requests_per_unit: 9}}
  - {key: loud, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 1}}
";

fn serving(name: &str, statsd: Option<&str>) -> Running {
    let envoy_statsd = statsd.map(|address| address.parse().unwrap());
    Running::start_at(
        Options {
            envoy_statsd,
            envoy_metric_names: true,
            ..options(name, CONFIG)
        },
        START,
    )
}

fn ask(client: &mut Client) {
    for _ in 0..3 {
        client.told(vec![one("user", "ada")]);
    }
    client.told(vec![one("remote_address", "10.0.0.1"), one("loud", "a.b")]);
}

/// What `ask` counts.
const COUNTED: [&str; 13] = [
    "ratelimit.service.config_load_success:1|c",
    "ratelimit.service.rate_limit.shop.loud_a.b.near_limit:1|c",
    "ratelimit.service.rate_limit.shop.loud_a.b.total_hits:1|c",
    "ratelimit.service.rate_limit.shop.loud_a.b.within_limit:1|c",
    "ratelimit.service.rate_limit.shop.remote_address_10_0_0_1.total_hits:1|c",
    "ratelimit.service.rate_limit.shop.remote_address_10_0_0_1.within_limit:1|c",
    "ratelimit.service.rate_limit.shop.user.near_limit:1|c",
    "ratelimit.service.rate_limit.shop.user.over_limit:1|c",
    "ratelimit.service.rate_limit.shop.user.total_hits:3|c",
    "ratelimit.service.rate_limit.shop.user.within_limit:2|c",
    "ratelimit_server.ShouldRateLimit.total_requests:4|c",
    // The error below.
    "ratelimit.service.call.should_rate_limit.service_error:1|c",
    "ratelimit_server.ShouldRateLimit.total_requests:1|c",
];

#[test]
fn what_is_left_is_sent_when_the_server_stops() {
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!(
        "tcp://{}?interval=1h&tag=zone:a.b&tag=app:x",
        statsd.local_addr().unwrap()
    );
    let server = serving("statsd-stop", Some(&address));
    let mut client = Client::of(server.grpc);
    ask(&mut client);
    drop(client);
    server.stop();
    let mut sent = String::new();
    statsd
        .accept()
        .unwrap()
        .0
        .read_to_string(&mut sent)
        .unwrap();
    let expected = COUNTED[..11]
        .iter()
        .map(|line| line.replace(':', ".__app=x.__zone=a_b:"));
    assert_eq!(
        sent.lines().collect::<Vec<_>>(),
        expected.collect::<Vec<_>>()
    );
}

#[test]
fn datagrams_have_whole_lines_that_no_value_can_forge() {
    for (scheme, tag) in [("udp", ""), ("dogstatsd", "|#zone:a")] {
        let statsd = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = statsd.local_addr().unwrap().port();
        let options = if tag.is_empty() {
            "interval=1h"
        } else {
            "interval=1h&tag=zone:a"
        };
        let address = format!("{scheme}://localhost:{port}?{options}");
        let server = serving("statsd-datagrams", Some(&address));
        let mut client = Client::of(server.grpc);
        ask(&mut client);
        for at in 0..20 {
            client.told(vec![one("loud", &format!("value {at}"))]);
        }
        for value in [
            "x\nforged:5|c\n",
            "x|g|#a:b",
            "\u{7f}y",
            &"long".repeat(300),
        ] {
            client.told(vec![one("loud", value)]);
        }
        drop(client);
        server.stop();
        statsd.set_nonblocking(true).unwrap();
        let (mut lines, mut datagrams, mut bytes) = (Vec::new(), 0, [0; 8192]);
        while let Ok(length) = statsd.recv(&mut bytes) {
            assert!(length <= 1432, "{length}");
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            lines.extend(text.lines().map(str::to_owned));
            datagrams += 1;
        }
        assert!(datagrams > 1, "they do not fit into one");
        let total = |name: &str, count| {
            let line =
                format!("ratelimit.service.rate_limit.shop.{name}.total_hits:{count}|c{tag}");
            assert!(lines.contains(&line), "{line} in {lines:#?}");
        };
        total("user", 3);
        total("loud_x_forged_5_c_", 1);
        total("loud_x_g_#a_b", 1);
        total("loud__y", 1);
        assert!(
            lines
                .iter()
                .all(|line| line.starts_with("ratelimit") && line.ends_with(&format!("|c{tag}")))
        );
        assert!(
            !lines.iter().any(|line| line.contains("longlong")),
            "too long a name is left out"
        );
    }
}

/// Adds up what connections send until the sums are as expected.
fn sums(statsd: &TcpListener, expected: &[&str]) {
    let number = |line: &str| {
        let (name, rest) = line.split_once(':').unwrap();
        (
            name.to_owned(),
            rest.trim_end_matches("|c").parse::<u64>().unwrap(),
        )
    };
    let mut wanted: BTreeMap<String, u64> = BTreeMap::new();
    expected
        .iter()
        .map(|line| number(line))
        .for_each(|(name, by)| *wanted.entry(name).or_default() += by);
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    while found != wanted {
        let (stream, _) = statsd.accept().unwrap();
        for line in BufReader::new(stream).lines() {
            let (name, by) = number(&line.unwrap());
            *found.entry(name).or_default() += by;
        }
        assert!(
            found.iter().all(|(name, sum)| wanted[name] >= *sum),
            "{found:#?}\nare more than\n{wanted:#?}"
        );
    }
}

#[test]
fn counts_wait_for_a_statsd_that_is_away() {
    let port = free_port();
    let server = serving(
        "statsd-away",
        Some(&format!("tcp://127.0.0.1:{port}?interval=10ms")),
    );
    let mut client = Client::of(server.grpc);
    ask(&mut client);
    let statsd = TcpListener::bind(("127.0.0.1", port)).unwrap();
    sums(&statsd, &COUNTED[..11]);
    drop(statsd);
    assert!(client.try_ask(request("", Vec::new())).is_err());
    let statsd = TcpListener::bind(("127.0.0.1", port)).unwrap();
    sums(&statsd, &COUNTED[11..]);
}

#[test]
fn prometheus_gets_the_names_of_the_usual_mapping() {
    let server = serving("statsd-prometheus", None);
    ask(&mut Client::of(server.grpc));
    let metrics = server.get("/metrics").body;
    for line in [
        "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"user\"} 3",
        "ratelimit_service_rate_limit_over_limit{domain=\"shop\",key1=\"user\"} 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"remote_address_10_0_0_1\"} 1",
        "ratelimit_service_rate_limit_total_hits{domain=\"shop\",key1=\"loud_a\",key2=\"b\"} 1",
        "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"} 4",
        "ratelimit_service_should_rate_limit_error{err_type=\"redis_error\"} 0",
        "ratelimit_service_config_load_success 1",
        "ratelimit_service_response_time_seconds_count{grpc_method=\"ShouldRateLimit\"} 4",
        "# TYPE ratelimit_service_rate_limit_total_hits counter",
        "# TYPE ratelimit_service_response_time_seconds histogram",
    ] {
        assert!(
            metrics.lines().any(|there| there == line),
            "{line} in\n{metrics}"
        );
    }
    let open = accepting(server.admin, "application/openmetrics-text");
    assert!(
        open.contains("# TYPE ratelimit_service_rate_limit_total_hits unknown\n"),
        "{open}"
    );
    assert!(open.ends_with("# EOF\n"));
    assert!(
        open.contains("tidegate_envoy_total_hits_total{domain=\"shop\",rule=\"user\"} 3"),
        "both names are there"
    );
}

fn accepting(admin: SocketAddr, kind: &str) -> String {
    let asked = format!("GET /metrics HTTP/1.1\r\nhost: localhost\r\naccept: {kind}\r\n\r\n");
    let mut http = Http::connect(admin);
    http.write(asked.as_bytes());
    http.read().body
}

#[test]
fn an_address_says_what_is_wrong_with_it() {
    for address in [
        "tcp://localhost",
        "udp://[::1]:8125?interval=1m",
        "dogstatsd://a:1?tag=a:b&tag=c:d:e",
    ] {
        address.parse::<StatsdAddress>().unwrap();
    }
    for (address, says) in [
        ("localhost:8125", "write tcp://HOST:PORT"),
        ("http://localhost", "none of tcp, udp and dogstatsd"),
        ("tcp://a?interval=0s", "interval is `0s`"),
        ("tcp://a?tag=b", "tag is `b`; write it as in tag=NAME:VALUE"),
        ("tcp://a?prefix=b", "no option `prefix`"),
    ] {
        let said = address.parse::<StatsdAddress>().unwrap_err().to_string();
        assert!(said.contains(says), "{address}: {said}");
    }
}
