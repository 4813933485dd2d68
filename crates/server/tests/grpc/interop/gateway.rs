//! The configurations that Envoy Gateway's own translator makes of its test inputs (files of its Go
//! module), from go-control-plane to both servers: each decision agrees.

use std::{env, fs, path::PathBuf};

use tidegate_core::Nanos;
use tidegate_envoy::pb::envoy::{
    extensions::common::ratelimit::v3::RateLimitDescriptor,
    service::ratelimit::v3::RateLimitRequest,
};
use tidegate_server::{Options, descriptors::Consume};

use super::{
    control_plane::ControlPlane,
    random::{Random, chain, same},
    seconds, shown,
    theirs::Theirs,
};
use crate::{
    client::{Client, request},
    harness::Running,
};

/// Requests for each of the files, of which there are 26: with `TIDEGATE_LONG=1` more than 100,000
/// in all.
fn requests() -> u64 {
    if env::var_os("TIDEGATE_LONG").is_some() {
        4_000
    } else {
        150
    }
}

/// A limit: its domain, and the keys and values down to it. An empty value stands for any.
struct Rule {
    domain: String,
    path: Vec<(String, String)>,
}

impl Rule {
    fn read(line: &str) -> Self {
        let mut words = line.split('\t').skip(1);
        let domain = words.next().unwrap().to_owned();
        let pair = |word: &str| {
            word.split_once('=')
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
        };
        Self {
            domain,
            path: words.map(|word| pair(word).unwrap()).collect(),
        }
    }

    /// A descriptor that Envoy could send for it, or one that misses it.
    fn descriptor(&self, random: &mut Random) -> RateLimitDescriptor {
        let mut path: Vec<_> = self
            .path
            .iter()
            .map(|(key, value)| {
                let any = format!("10.0.0.{}", random.below(6));
                (
                    key.as_str(),
                    if value.is_empty() { any } else { value.clone() },
                )
            })
            .collect();
        match random.below(12) {
            0 => path.truncate(path.len() - 1),
            1 => "another".clone_into(&mut path.last_mut().unwrap().1),
            2 => path.push(("beyond", "x".to_owned())),
            3 => path.reverse(),
            _ => {}
        }
        if path.is_empty() {
            path.push(("nothing", String::new()));
        }
        chain(
            &path
                .iter()
                .map(|(key, value)| (*key, value.as_str()))
                .collect::<Vec<_>>(),
        )
    }
}

fn ask(random: &mut Random, rules: &[Rule]) -> RateLimitRequest {
    let at = |random: &mut Random, of: usize| usize::try_from(random.below(of as u64)).unwrap();
    let domain = rules[at(random, rules.len())].domain.as_str();
    let its: Vec<&Rule> = rules.iter().filter(|rule| rule.domain == domain).collect();
    let count = 1 + random.below(4);
    let descriptors = (0..count)
        .map(|_| its[at(random, its.len())].descriptor(random))
        .collect();
    let mut request = request(domain, descriptors);
    request.hits_addend = u32::try_from(random.below(3)).unwrap();
    request
}

#[test]
#[ignore = "needs Go and envoyproxy/ratelimit: scripts/test.sh --interop"]
fn what_envoy_gateway_configures_is_decided_as_by_envoyproxy_ratelimit() {
    let module = env::var_os("TIDEGATE_GATEWAY").expect("scripts/servers.sh gateway names it");
    let directory =
        PathBuf::from(module).join("internal/xds/translator/testdata/out/ratelimit-config");
    let files = fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path());
    let mut files: Vec<PathBuf> = files
        .filter(|file| !file.to_str().unwrap().ends_with(".routes.yaml"))
        .collect();
    files.sort();
    assert!(files.len() >= 20, "{files:?}");

    let mut control_plane = ControlPlane::start(&["127.0.0.1:0", "envoy-ratelimit"]);
    let address = control_plane.line().split_once(' ').unwrap().1.to_owned();
    let theirs = Theirs::start_with(
        "gateway-theirs",
        &[],
        &[
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &address),
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ],
    );
    let options = Options {
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_xds: vec![
            format!("http://{address}?node=envoy-ratelimit&first_pause=10ms")
                .parse()
                .unwrap(),
        ],
        envoy_consume: Consume::Each,
        ..Options::default()
    };
    // No limit ends its window: all are per year.
    let server = Running::start_at(options, Nanos::from_secs(seconds()));
    let (mut ours, mut theirs) = (Client::of(server.grpc), Client::of(theirs.grpc));
    let mut random = Random(1);
    let (mut statuses, mut limited, mut over) = (0, 0, 0);
    for (version, file) in files.iter().enumerate() {
        control_plane.send(&format!("{version} @{}", file.display()));
        let mut rules = Vec::new();
        let first = loop {
            let line = control_plane.line();
            if !line.starts_with("rule\t") {
                break line;
            }
            rules.push(Rule::read(&line));
        };
        // Each of the two has it in force.
        let ack = format!("ACK {version}");
        assert_eq!(
            [first, control_plane.line()],
            [ack.clone(), ack],
            "{}",
            file.display()
        );
        for _ in 0..requests() {
            let request = ask(&mut random, &rules);
            let (here, there) = (
                ours.try_ask(request.clone()).unwrap(),
                theirs.try_ask(request.clone()).unwrap(),
            );
            let what = || {
                format!(
                    "{}: {request:?}\nours: {}\ntheirs: {}",
                    file.display(),
                    shown(&here),
                    shown(&there)
                )
            };
            assert_eq!(here.overall_code, there.overall_code, "{}", what());
            assert_eq!(here.statuses.len(), there.statuses.len(), "{}", what());
            for (here, there) in here.statuses.iter().zip(&there.statuses) {
                assert_eq!(here.current_limit, there.current_limit, "{}", what());
                assert_eq!(same(here), same(there), "{}", what());
                statuses += 1;
                limited += u64::from(here.current_limit.is_some());
                over += u64::from(same(here).0);
            }
        }
    }
    println!(
        "{} files: {statuses} statuses agree, {limited} of limits, {over} of them over",
        files.len()
    );
    assert!(limited > statuses / 2 && over > limited / 10);
}
