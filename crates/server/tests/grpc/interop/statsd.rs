//! The counters that both send to `StatsD` and show to Prometheus.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener, UdpSocket},
    sync::{Arc, Mutex},
    thread,
};

use tidegate_core::Nanos;
use tidegate_envoy::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_redis_servers::{eventually, free_port};
use tidegate_server::{Options, descriptors::Consume};

use super::{
    seconds,
    theirs::{Theirs, gather, of_the_service},
};
use crate::{
    client::{Client, one, request},
    harness::{Http, Running},
    rls::options,
};

const CONFIG: &str = "
domain: my.shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: remote_address, value: 10.1.2.3, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: remote_address, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: open, rate_limit: {unlimited: true}}
  - {key: path, value: /cart*, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: loud, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 4}}
  - {key: shown, value_to_metric: true, descriptors: [{key: deep, rate_limit: {unit: year, requests_per_unit: 6}}]}
  - {key: outer, value: a:b|c, descriptors: [{key: inner, value: x, descriptors: [{key: last, rate_limit: {unit: year, requests_per_unit: 7}}]}]}
";

fn entries(all: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = all.iter().flat_map(|(key, value)| one(key, value).entries);
    RateLimitDescriptor {
        entries: entries.collect(),
        ..RateLimitDescriptor::default()
    }
}

/// The same requests to both. Each descriptor is asked until it is over its limit.
fn ask(client: &mut Client) {
    for round in 0..12 {
        let ip = [
            "10.1.2.3",
            "192.168.0.1",
            "1234.5.6.7890",
            "1.2.3.4.5.6.7.8",
        ][round % 4];
        for descriptors in [
            vec![one("user", "ada"), one("quiet", "x")],
            vec![one("remote_address", ip), one("open", "y")],
            vec![one("path", "/cart/7")],
            vec![one("loud", ip)],
            vec![one("loud", "a|b:c")],
            vec![entries(&[("shown", "v1.2"), ("deep", "z")])],
            vec![entries(&[
                ("outer", "a:b|c"),
                ("inner", "x"),
                ("last", "q"),
            ])],
            vec![one("unknown", "x")],
        ] {
            client.try_ask(request("my.shop", descriptors)).unwrap();
        }
    }
    for _ in 0..3 {
        client
            .try_ask(request("", vec![one("user", "ada")]))
            .unwrap_err();
    }
}

fn ours(name: &str, change: impl FnOnce(&mut Options)) -> Running {
    let mut options = options(name, CONFIG);
    options.envoy_consume = Consume::Each;
    change(&mut options);
    Running::start_at(options, Nanos::from_secs(seconds()))
}

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn statsd_gets_the_same_counters_with_the_same_tags() {
    let tags = [("EXTRA_TAGS", "zone:eu.1,app:shop")];
    let theirs = Theirs::start_with("interop-statsd", &[CONFIG.to_owned()], &tags);
    let statsd = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!(
        "tcp://{}?interval=200ms&tag=zone:eu.1&tag=app:shop",
        statsd.local_addr().unwrap()
    );
    let counters: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    thread::spawn({
        let counters = Arc::clone(&counters);
        move || gather(&statsd, &counters)
    });
    let server = ours("interop-statsd-ours", |options| {
        options.envoy_statsd = Some(address.parse().unwrap());
    });
    for grpc in [server.grpc, theirs.grpc] {
        ask(&mut Client::of(grpc));
    }
    let calls = "ratelimit_server.ShouldRateLimit.total_requests.__app=shop.__zone=eu_1";
    eventually("both have sent all", || {
        let both = [theirs.counters(), of_the_service(&counters)];
        both.iter().all(|sent| sent.get(calls) == Some(&99))
    });
    // The last counters of a flush may come after that one.
    eventually("both have sent the same", || {
        theirs.counters() == of_the_service(&counters)
    });
    let sent = theirs.counters();
    println!("{} counters:\n{sent:#?}", sent.len());
    assert!(sent.len() > 40, "{sent:#?}");
}

/// Adds up the counters in datagrams, by name and tags.
fn datagrams() -> (u16, Arc<Mutex<BTreeMap<String, u64>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let counters: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let theirs = Arc::clone(&counters);
    thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(length) = socket.recv(&mut bytes) {
            let text = std::str::from_utf8(&bytes[..length]).unwrap();
            for line in text.lines() {
                let (name, rest) = line.split_once(':').unwrap();
                let mut parts = rest.split('|');
                let by = parts.next().unwrap().parse::<u64>();
                let (Ok(by), Some("c")) = (by, parts.next()) else {
                    continue;
                };
                let tags = parts
                    .find_map(|part| part.strip_prefix('#'))
                    .unwrap_or_default();
                let mut tags: Vec<&str> = tags.split(',').collect();
                tags.sort_unstable();
                *theirs
                    .lock()
                    .unwrap()
                    .entry(format!("{name} {}", tags.join(" ")))
                    .or_default() += by;
            }
        }
    });
    (port, counters)
}

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn dogstatsd_gets_the_same_counters_with_the_same_tags() {
    let ((theirs_at, theirs), (ours_at, ours_sent)) = (datagrams(), datagrams());
    let there = Theirs::start_with(
        "interop-dogstatsd",
        &[CONFIG.to_owned()],
        &[
            ("USE_STATSD", "false"),
            ("USE_DOG_STATSD", "true"),
            ("SHADOW_MODE", "true"),
            ("STATSD_PORT", &theirs_at.to_string()),
            ("EXTRA_TAGS", "zone:eu.1,app:shop"),
        ],
    );
    let address =
        format!("dogstatsd://localhost:{ours_at}?interval=200ms&tag=zone:eu.1&tag=app:shop");
    let here = ours("interop-dogstatsd-ours", |options| {
        options.envoy_statsd = Some(address.parse().unwrap());
        options.envoy_modes.shadow = true;
    });
    for grpc in [here.grpc, there.grpc] {
        ask(&mut Client::of(grpc));
    }
    let calls = "ratelimit_server.ShouldRateLimit.total_requests app:shop zone:eu_1";
    eventually("both have sent all", || {
        [&theirs, &ours_sent]
            .iter()
            .all(|sent| of_the_service(sent).get(calls) == Some(&99))
    });
    eventually("both have sent the same", || {
        of_the_service(&theirs) == of_the_service(&ours_sent)
    });
    let sent = of_the_service(&theirs);
    println!("{} counters", sent.len());
    let shadowed = sent.get("ratelimit.service.global_shadow_mode app:shop zone:eu_1");
    assert!(sent.len() > 40 && shadowed > Some(&10), "{sent:#?}");
}

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn prometheus_gets_the_same_families_and_labels() {
    let port = free_port();
    let theirs = Theirs::start_with(
        "interop-prometheus",
        &[CONFIG.to_owned()],
        &[
            ("USE_STATSD", "false"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", &format!("127.0.0.1:{port}")),
        ],
    );
    let server = ours("interop-prometheus-ours", |options| {
        options.envoy_metric_names = true;
    });
    for grpc in [server.grpc, theirs.grpc] {
        ask(&mut Client::of(grpc));
    }
    let metrics = |address: SocketAddr| {
        let text = Http::connect(address).send("GET", "/metrics", "").body;
        let is_there = |line: &&str| {
            let is_type = line.starts_with("# TYPE ratelimit_service_");
            let is_count = line.starts_with("ratelimit_service_") && !line.ends_with(" 0");
            // Times differ.
            is_type || is_count && !line.contains("_bucket") && !line.contains("_sum")
        };
        let mut lines: Vec<String> = text.lines().filter(is_there).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let there = || metrics(SocketAddr::from(([127, 0, 0, 1], port)));
    let here = metrics(server.admin);
    let is_counted = |line: &String| {
        line.starts_with("ratelimit_service_total_requests") && line.ends_with(" 99")
    };
    eventually("it has counted all", || there().iter().any(is_counted));
    let missing = || {
        here.iter()
            .filter(|line| !there().contains(line))
            .cloned()
            .collect::<Vec<_>>()
    };
    // It has no family without a count.
    let without = ["config_load_error", "global_shadow_mode"];
    let without = without.map(|name| format!("# TYPE ratelimit_service_{name} counter"));
    eventually("both have the same", || missing() == without);
    let known = |line: &&String| here.contains(line);
    // Hits of its local cache, which the mapping does not know, have the rule in the family's name.
    let more: Vec<_> = there().into_iter().filter(|line| !known(&line)).collect();
    assert_eq!(more, Vec::<String>::new());
    println!("{} lines:\n{}", here.len(), here.join("\n"));
}
