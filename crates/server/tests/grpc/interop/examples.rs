//! The examples of envoyproxy/ratelimit's README.

use tidegate_envoy::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use tidegate_redis_servers::eventually;
use tidegate_server::descriptors::Consume;

use super::{both, shown};
use crate::client::{Client, one, request};

const CONFIGS: [&str; 13] = [
    "domain: mongo_cps
descriptors:
  - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
  - {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 500}}
",
    "domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors: [{key: to_number, rate_limit: {unit: day, requests_per_unit: 5}}]
  - {key: to_number, rate_limit: {unit: day, requests_per_unit: 100}}
",
    "domain: edge_proxy_per_ip
descriptors:
  - {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: remote_address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
",
    "domain: example4a
descriptors:
  - {key: key, value: value, rate_limit: {unit: second, requests_per_unit: 300}}
",
    "domain: example4b
descriptors:
  - key: key
    value: value
    descriptors: [{key: subkey, rate_limit: {unit: second, requests_per_unit: 300}}]
",
    "domain: internal
descriptors:
  - {key: ldap, rate_limit: {unlimited: true}}
  - {key: azure, rate_limit: {unit: minute, requests_per_unit: 100}}
",
    "domain: example6
descriptors:
  - key: service
    descriptors:
      - {key: user, value: user-a, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 10}}
      - {key: user, value: user-b, rate_limit: {unit: second, requests_per_unit: 20}}
",
    "domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - {key: user, value: bkthomps, rate_limit: {name: specific_limit, unit: second, requests_per_unit: 5}}
  - key: key_2
    value: value_2
    descriptors:
      - {key: user, value: bkthomps, rate_limit: {replaces: [{name: specific_limit}], unit: second, requests_per_unit: 10}}
",
    "domain: example8
descriptors:
  - {key: key1, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: key1, value: value1, rate_limit: {unit: minute, requests_per_unit: 20}}
",
    "domain: example9
descriptors:
  - {key: key1, value: value*, rate_limit: {unit: minute, requests_per_unit: 20}}
",
    "domain: example10
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: http_method
        value_to_metric: true
        descriptors: [{key: subject_id, rate_limit: {unit: minute, requests_per_unit: 60}}]
",
    "domain: example10_wildcard
descriptors:
  - key: user
    value_to_metric: true
    descriptors:
      - key: action
        value: read*
        value_to_metric: true
        descriptors: [{key: resource, rate_limit: {unit: minute, requests_per_unit: 100}}]
",
    "domain: example11
descriptors:
  - {key: files, value: files/*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: files_no_share, value: files_no_share/*, share_threshold: false, rate_limit: {unit: hour, requests_per_unit: 10}}
",
];

/// Domain; descriptors, as in `key=value,key=value + key=value`; the hits of each; the answer.
/// Limits per second or minute are first asked once, and then for more than they ever admit,
/// because a window may end at any time.
const ASKED: [(&str, &str, u32, &str); 36] = [
    ("mongo_cps", "database=users", 1, "OK: OK 499 of 500/SECOND"),
    (
        "mongo_cps",
        "database=default",
        500,
        "OK: OK 0 of 500/SECOND",
    ),
    (
        "mongo_cps",
        "database=users",
        501,
        "OVER: OVER 0 of 500/SECOND",
    ),
    ("mongo_cps", "database=other", 501, "OK: OK 0"),
    (
        "messaging",
        "message_type=marketing,to_number=1 + to_number=1",
        1,
        "OK: OK 4 of 5/DAY, OK 99 of 100/DAY",
    ),
    (
        "messaging",
        "message_type=marketing,to_number=1 + to_number=1",
        4,
        "OK: OK 0 of 5/DAY, OK 95 of 100/DAY",
    ),
    (
        "messaging",
        "message_type=marketing,to_number=1",
        1,
        "OVER: OVER 0 of 5/DAY",
    ),
    (
        "messaging",
        "message_type=marketing,to_number=2",
        1,
        "OK: OK 4 of 5/DAY",
    ),
    ("messaging", "to_number=1", 95, "OK: OK 0 of 100/DAY"),
    (
        "messaging",
        "message_type=marketing,to_number=3 + to_number=1",
        1,
        "OVER: OK 4 of 5/DAY, OVER 0 of 100/DAY",
    ),
    ("messaging", "message_type=marketing", 1, "OK: OK 0"),
    (
        "edge_proxy_per_ip",
        "remote_address=50.0.0.1",
        1,
        "OK: OK 9 of 10/SECOND",
    ),
    (
        "edge_proxy_per_ip",
        "remote_address=50.0.0.2",
        11,
        "OVER: OVER 0 of 10/SECOND",
    ),
    (
        "edge_proxy_per_ip",
        "remote_address=50.0.0.5",
        1,
        "OVER: OVER 0 of 0/SECOND",
    ),
    ("example4a", "key=value,subkey=subvalue", 301, "OK: OK 0"),
    ("example4a", "key=value", 301, "OVER: OVER 0 of 300/SECOND"),
    (
        "example4b",
        "key=value,subkey=subvalue",
        1,
        "OK: OK 299 of 300/SECOND",
    ),
    ("example4b", "key=value", 301, "OK: OK 0"),
    ("internal", "ldap=any", 1_000, "OK: OK 4294967295"),
    ("internal", "azure=any", 101, "OVER: OVER 0 of 100/MINUTE"),
    ("internal", "else=any", 1_000, "OK: OK 0"),
    (
        "example6",
        "service=auth-service,user=user-a",
        11,
        "OK: OK 0 of 10/SECOND",
    ),
    (
        "example6",
        "service=auth-service,user=user-b",
        21,
        "OVER: OVER 0 of 20/SECOND",
    ),
    (
        "example7",
        "key_1=value_1,user=bkthomps + key_2=value_2,user=bkthomps",
        1,
        "OK: OK 0, OK 9 of 10/SECOND",
    ),
    (
        "example7",
        "key_1=value_1,user=bkthomps",
        5,
        "OK: OK 0 of 5/SECOND (specific_limit)",
    ),
    (
        "example7",
        "key_2=value_2,user=bkthomps",
        11,
        "OVER: OVER 0 of 10/SECOND",
    ),
    (
        "example8",
        "key1=unspecified_value",
        1,
        "OK: OK 9 of 10/MINUTE",
    ),
    (
        "example8",
        "key1=unspecified_value2",
        10,
        "OK: OK 0 of 10/MINUTE",
    ),
    ("example8", "key1=value1", 21, "OVER: OVER 0 of 20/MINUTE"),
    ("example9", "key1=value_1", 1, "OK: OK 19 of 20/MINUTE"),
    ("example9", "key1=value_2", 20, "OK: OK 0 of 20/MINUTE"),
    (
        "example10",
        "route=api,http_method=GET,subject_id=123",
        1,
        "OK: OK 59 of 60/MINUTE",
    ),
    (
        "example10_wildcard",
        "user=alice,action=readfile,resource=documents",
        1,
        "OK: OK 99 of 100/MINUTE",
    ),
    ("example11", "files=files/a.pdf", 5, "OK: OK 5 of 10/HOUR"),
    ("example11", "files=files/b.csv", 5, "OK: OK 0 of 10/HOUR"),
    (
        "example11",
        "files=files/c.txt",
        1,
        "OVER: OVER 0 of 10/HOUR",
    ),
];

/// The hits that they count, and those that we count: number 2 of the list.
const COUNTED: [(&str, &str, u64, u64); 12] = [
    ("example6", "service.user_user-a.shadow_mode", 1, 11),
    ("example6", "service.user_user-a.over_limit", 1, 11),
    ("example8", "key1_unspecified_value.total_hits", 1, 1),
    ("example8", "key1_unspecified_value2.within_limit", 10, 10),
    ("example8", "key1_unspecified_value2.near_limit", 2, 2),
    ("example8", "key1_value1.over_limit", 1, 21),
    ("example9", "key1_value*.total_hits", 21, 21),
    (
        "example10",
        "route_api.http_method_GET.subject_id.total_hits",
        1,
        1,
    ),
    (
        "example10_wildcard",
        "user_alice.action_readfile.resource.total_hits",
        1,
        1,
    ),
    ("example11", "files_files/*.total_hits", 11, 11),
    (
        "messaging",
        "message_type_marketing.to_number.total_hits",
        8,
        8,
    ),
    ("internal", "azure.total_hits", 101, 101),
];

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn both_servers_answer_the_examples_of_its_readme_as_documented() {
    let (our_server, their_server) =
        both("interop-readme", &CONFIGS.map(str::to_owned), Consume::Each);
    let (mut ours, mut theirs) = (Client::of(our_server.grpc), Client::of(their_server.grpc));
    for (domain, descriptors, hits_addend, told) in ASKED {
        let descriptors: Vec<RateLimitDescriptor> = descriptors
            .split(" + ")
            .map(|entries| RateLimitDescriptor {
                entries: entries
                    .split(',')
                    .filter_map(|entry| entry.split_once('='))
                    .flat_map(|(key, value)| one(key, value).entries)
                    .collect(),
                ..RateLimitDescriptor::default()
            })
            .collect();
        for client in [&mut ours, &mut theirs] {
            let mut request = request(domain, descriptors.clone());
            request.hits_addend = hits_addend;
            assert_eq!(
                shown(&client.try_ask(request).unwrap()),
                told,
                "{domain} {descriptors:?}"
            );
        }
    }
    let metrics = our_server.get("/metrics").body;
    let ours = |domain: &str, name: &str| -> Option<u64> {
        let (rule, counter) = name.rsplit_once('.')?;
        let series =
            format!("tidegate_envoy_{counter}_total{{domain=\"{domain}\",rule=\"{rule}\"}} ");
        metrics
            .lines()
            .find_map(|line| line.strip_prefix(&series)?.parse().ok())
    };
    for (domain, name, there, here) in COUNTED {
        let what = format!("{domain}.{name}");
        eventually("envoyproxy/ratelimit sends its statistics", || {
            their_server.counter(&what) >= there
        });
        assert_eq!(their_server.counter(&what), there, "{what}");
        assert_eq!(ours(domain, name), Some(here), "{what} in {metrics}");
    }
}
