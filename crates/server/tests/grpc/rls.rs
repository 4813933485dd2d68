//! Envoy's rate limit service, called by a gRPC client.

use std::time::Duration;

use serde_json::json;
use tidegate_core::{MAX_LIMIT, Nanos};
use tidegate_envoy::pb::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    service::ratelimit::v3::{
        RateLimitRequest,
        rate_limit_response::{Code, rate_limit::Unit},
    },
    r#type::v3::RateLimitUnit,
};
use tidegate_redis_servers::eventually;
use tidegate_server::{
    Options,
    descriptors::{AnswerFields, Consume, Modes, field_names},
};

use crate::{
    client::{Client, hits, metadata, one, refund, request, shown, unsent},
    harness::{self, Http, PATIENCE, Running, replace, scratch},
};

/// A quarter of an hour after noon of some day.
pub const START: Nanos = Nanos::from_secs(1_700_049_600 + 900);

pub const CONFIG: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3, name: users}}
  - {key: path, value: /cart, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: vip, rate_limit: {unlimited: true, replaces: [{name: users}]}}
  - {key: pool, value: a, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: pool, value: b, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: team, metadata: {owner: payments}, rate_limit: {unit: week, requests_per_unit: 9}}
  - {key: smooth, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: sliding-log}}
";

pub fn options(name: &str, config: &str) -> Options {
    let path = scratch(name).join("shop.yaml");
    std::fs::write(&path, config).unwrap();
    Options {
        grpc: Some("127.0.0.1:0".to_owned()),
        envoy_config: Some(path),
        // What the default does is in `charges.rs`.
        envoy_consume: Consume::AllOrNone,
        ..Options::default()
    }
}

pub fn serving(name: &str, config: &str) -> Running {
    Running::start_at(options(name, config), START)
}

#[test]
fn an_answer_has_the_status_of_each_descriptor_in_order() {
    let server = serving("grpc-answer", CONFIG);
    let mut client = Client::of(server.grpc);
    let answer = client.ask(vec![
        one("user", "ada"),
        one("unknown", "x"),
        one("vipp", "x"),
        one("team", "t"),
    ]);
    assert_eq!(shown(&answer), "OK: OK/2 OK/0 OK/0 OK/8");
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.requests_per_unit, limit.unit()),
        ("users", 3, Unit::Minute)
    );
    assert_eq!(
        answer.statuses[0]
            .duration_until_reset
            .as_ref()
            .unwrap()
            .seconds,
        60
    );
    assert_eq!(
        (
            &answer.statuses[1].current_limit,
            &answer.statuses[1].duration_until_reset
        ),
        (&None, &None)
    );
    assert_eq!(
        answer.statuses[3].current_limit.as_ref().unwrap().unit(),
        Unit::Week
    );
    let metadata = answer.dynamic_metadata.unwrap();
    assert_eq!(
        format!("{:?}", metadata.fields["owner"])
            .matches("payments")
            .count(),
        1
    );
    assert!(answer.response_headers_to_add.is_empty());

    let unknown = client
        .try_ask(request("elsewhere", vec![one("user", "ada")]))
        .unwrap();
    assert_eq!(shown(&unknown), "OK: OK/0");
}

#[test]
fn on_request_an_answer_describes_the_request_and_what_is_left() {
    let config = "
domain: shop
descriptors:
  - key: user
    metadata: {owner: {team: payments, size: 2}, is_open: true}
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: path
    metadata: {owner: {team: other, sites: [a, ~]}, is_open: maybe, code: '5'}
    rate_limit: {unit: hour, requests_per_unit: 9}
  - key: backend_name
    descriptors:
      - {key: model_name_override, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: free, metadata: {plan: free}, rate_limit: {unlimited: true}}
";
    let envoy_modes = Modes {
        metadata: true,
        ..Modes::default()
    };
    let server = Running::start_at(
        Options {
            envoy_modes,
            ..options("grpc-description", config)
        },
        START,
    );
    let mut client = Client::of(server.grpc);
    let both = || vec![one("user", "ada"), hits(2, one("path", "/x"))];
    let descriptors =
        json!([{"entries": ["user=ada"]}, {"entries": ["path=/x"], "hitsAddend": 2.0}]);
    let merged = json!({
        "owner": {"team": "payments", "size": 2.0, "sites": ["a", null]}, "is_open": true, "code": "5",
    });
    let expected = json!({"domain": "shop", "descriptors": descriptors, "metadata": merged});
    assert_eq!(metadata(&client.ask(both())), expected);
    let denied = client.ask(both());
    assert_eq!(shown(&denied), "OVER: OVER/0 OK/7");
    let rest =
        json!({"owner": {"team": "other", "sites": ["a", null]}, "is_open": "maybe", "code": "5"});
    let expected = json!({"domain": "shop", "descriptors": descriptors, "metadata": rest});
    assert_eq!(metadata(&denied), expected, "only rules that admit");

    let model = |backend: &str| RateLimitDescriptor {
        entries: [
            one("backend_name", backend),
            one("model_name_override", "m"),
        ]
        .map(|one| one.entries)
        .concat(),
        ..RateLimitDescriptor::default()
    };
    let target = |backend: &str| json!({"backend_name": backend, "model_name_override": "m"});
    let answer = client.ask(vec![model("a"), model("a"), model("b")]);
    // One of the two quotas of `a` is over, so neither is charged.
    assert_eq!(shown(&answer), "OK: OK/1 OVER/0 OK/0");
    let described = metadata(&answer);
    assert_eq!(
        described["passedBackends"],
        json!([target("b")]),
        "{described}"
    );
    assert_eq!(
        described["descriptors"][0],
        json!({"entries": ["backend_name=a", "model_name_override=m"]})
    );
    assert_eq!(
        metadata(&client.ask(vec![model("c"), one("free", "x")]))["passedBackends"],
        json!([target("c")])
    );

    let mut changed = one("free", "x");
    changed.limit = Some(RateLimitOverride {
        requests_per_unit: 5,
        unit: RateLimitUnit::Day.into(),
    });
    let mut asked = request("elsewhere", vec![changed, one("free", "x")]);
    asked.hits_addend = 3;
    let free = json!({"entries": ["free=x"]});
    let changed = json!({"entries": ["free=x"], "limit": "requests_per_unit:5 unit:DAY"});
    assert_eq!(
        metadata(&client.try_ask(asked).unwrap()),
        json!({"domain": "elsewhere", "descriptors": [changed, free], "hitsAddend": 3.0})
    );
}

#[test]
fn hits_above_every_limit_count_as_the_highest_cost() {
    let server = serving("grpc-hits", CONFIG);
    let mut client = Client::of(server.grpc);
    let denied = client.ask(vec![hits(u64::MAX, one("user", "ada"))]);
    assert_eq!(shown(&denied), "OVER: OVER/0");
    assert_eq!(
        server.metric(r#"tidegate_envoy_over_limit_total{domain="shop",rule="user"}"#),
        MAX_LIMIT
    );
}

#[test]
fn windows_are_aligned_to_the_unit_and_a_reset_is_rounded_up_to_a_second() {
    let server = serving("grpc-aligned", CONFIG);
    let mut client = Client::of(server.grpc);
    server.advance(Duration::from_millis(40_300));
    let ada = || vec![one("user", "ada")];
    for left in [2, 1, 0] {
        let answer = client.ask(ada());
        assert_eq!(answer.statuses[0].limit_remaining, left);
        assert_eq!(
            answer.statuses[0]
                .duration_until_reset
                .as_ref()
                .unwrap()
                .seconds,
            20
        );
    }
    let denied = client.ask(ada());
    assert_eq!(shown(&denied), "OVER: OVER/0");
    let why = denied.dynamic_metadata.as_ref().unwrap();
    let text = |name: &str| format!("{:?}", why.fields[name]);
    assert!(
        text("denied_reason").contains("\"quota\"") && text("denied_by").contains("\"shop.user\""),
        "{why:?}"
    );
    assert_eq!(
        denied.statuses[0]
            .duration_until_reset
            .as_ref()
            .unwrap()
            .seconds,
        20
    );
    server.advance(Duration::from_millis(19_699));
    assert_eq!(client.told(ada()), "OVER: OVER/0");
    server.advance(Duration::from_millis(1));
    assert_eq!(client.told(ada()), "OK: OK/2", "a new minute");
}

#[test]
fn without_reasons_a_denial_has_no_metadata() {
    let modes = Modes {
        without_reasons: true,
        ..Modes::default()
    };
    let options = Options {
        envoy_modes: modes,
        ..options("grpc-without-reasons", CONFIG)
    };
    let server = Running::start_at(options, START);
    let denied = Client::of(server.grpc).ask(vec![hits(4, one("user", "ada"))]);
    assert_eq!(
        (shown(&denied).as_str(), denied.dynamic_metadata),
        ("OVER: OVER/0", None)
    );
}

#[test]
fn a_request_that_one_limit_denies_consumes_nothing_from_the_others() {
    let server = serving("grpc-atomic", CONFIG);
    let mut client = Client::of(server.grpc);
    let both = || vec![one("user", "ada"), one("path", "/cart")];
    assert_eq!(client.told(both()), "OK: OK/2 OK/1");
    assert_eq!(client.told(both()), "OK: OK/1 OK/0");
    for _ in 0..3 {
        assert_eq!(client.told(both()), "OVER: OK/1 OVER/0");
    }
    assert_eq!(client.told(vec![one("user", "ada")]), "OK: OK/0");
}

#[test]
fn concurrent_requests_never_exceed_either_limit() {
    let config = "
domain: shop
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 150}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 100}}
";
    let server = serving("grpc-stress", config);
    let client = Client::of(server.grpc);
    let admitted: usize = client.runtime.block_on(async {
        let tasks: Vec<_> = (0..16)
            .map(|task| {
                let mut rls = client.rls.clone();
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..25 {
                        let mut descriptors = vec![one("a", "x"), one("b", "x")];
                        if task % 2 == 0 {
                            descriptors.reverse();
                        }
                        let answer = rls
                            .should_rate_limit(request("shop", descriptors))
                            .await
                            .unwrap();
                        admitted +=
                            usize::from(answer.into_inner().overall_code == i32::from(Code::Ok));
                    }
                    admitted
                })
            })
            .collect();
        let mut sum = 0;
        for task in tasks {
            sum += task.await.unwrap();
        }
        sum
    });
    assert_eq!(admitted, 100);
    assert_eq!(
        Client::of(server.grpc).told(vec![hits(0, one("a", "x"))]),
        "OK: OK/50",
        "denials took nothing"
    );
}

#[test]
fn shadow_quota_unlimited_and_replacing_rules_work_as_configured() {
    let server = serving("grpc-modes", CONFIG);
    let mut client = Client::of(server.grpc);
    for told in ["OK: OK/0", "OK: OK/0"] {
        assert_eq!(client.told(vec![one("quiet", "x")]), told);
    }
    assert_eq!(
        server.metric(r#"tidegate_envoy_shadow_mode_total{domain="shop",rule="quiet"}"#),
        1
    );

    // A request is denied once both quotas are used up. A quota that is used up is not charged.
    let pools = || vec![one("pool", "a"), one("pool", "b")];
    assert_eq!(client.told(pools()), "OK: OK/0 OK/1");
    assert_eq!(client.told(pools()), "OK: OVER/0 OK/0");
    assert_eq!(client.told(pools()), "OVER: OVER/0 OVER/0");
    // A plain limit denies alone, and then no quota is charged.
    let server = serving("grpc-quota", CONFIG);
    let mut client = Client::of(server.grpc);
    client.ask(vec![hits(2, one("path", "/cart"))]);
    assert_eq!(
        client.told([pools(), vec![one("path", "/cart")]].concat()),
        "OVER: OK/1 OK/2 OVER/0"
    );
    assert_eq!(client.told(pools()), "OK: OK/0 OK/1");

    let vip = || vec![one("user", "ada"), one("vip", "yes")];
    for _ in 0..5 {
        assert_eq!(client.told(vip()), format!("OK: OK/0 OK/{}", u32::MAX));
    }
    assert_eq!(
        client.told(vec![one("user", "ada")]),
        "OK: OK/2",
        "what is replaced is not charged"
    );
}

#[test]
fn hits_add_up_zero_looks_and_negative_hits_refund() {
    let server = serving("grpc-hits", CONFIG);
    let mut client = Client::of(server.grpc);
    let ada = || one("user", "ada");
    assert_eq!(client.told(vec![hits(2, ada())]), "OK: OK/1");
    assert_eq!(client.told(vec![hits(0, ada())]), "OK: OK/1", "a look");
    assert_eq!(
        client.told(vec![hits(2, ada())]),
        "OVER: OVER/0",
        "two do not fit"
    );
    assert_eq!(
        client.told(vec![ada(), ada()]),
        "OVER: OK/1 OVER/0",
        "two descriptors of one key add up"
    );
    assert_eq!(client.told(vec![refund(hits(1, ada()))]), "OK: OK/2");
    assert_eq!(
        client.told(vec![refund(hits(9, ada()))]),
        "OK: OK/3",
        "no more than was taken"
    );
    // The request's hits apply to descriptors without their own; 0 stands for 1.
    let asked = RateLimitRequest {
        hits_addend: 2,
        ..request("shop", vec![ada(), hits(1, one("path", "/cart"))])
    };
    assert_eq!(shown(&client.try_ask(asked).unwrap()), "OK: OK/1 OK/1");
    // A refund together with other descriptors, as at the end of a stream.
    assert_eq!(
        client.told(vec![refund(ada()), one("path", "/cart")]),
        "OK: OK/2 OK/0"
    );
    assert_eq!(
        client.told(vec![hits(1 << 40, ada())]),
        "OVER: OVER/0",
        "more than any limit"
    );
}

#[test]
fn an_override_in_a_request_replaces_the_rule() {
    let server = serving("grpc-override", CONFIG);
    let mut client = Client::of(server.grpc);
    let with = |requests_per_unit, unit: RateLimitUnit, descriptor| RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: unit.into(),
        }),
        ..descriptor
    };
    let ada = || vec![with(1, RateLimitUnit::Hour, one("user", "ada"))];
    let answer = client.ask(ada());
    assert_eq!(shown(&answer), "OK: OK/0");
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!(
        (limit.name.as_str(), limit.requests_per_unit, limit.unit()),
        ("", 1, Unit::Hour)
    );
    assert_eq!(client.told(ada()), "OVER: OVER/0");
    assert_eq!(
        client.told(vec![with(1, RateLimitUnit::Hour, one("user", "bob"))]),
        "OK: OK/0"
    );
    assert_eq!(
        client.told(vec![one("user", "ada")]),
        "OK: OK/2",
        "the rule has a count of its own"
    );
    assert_eq!(
        client.told(vec![with(1, RateLimitUnit::Day, one("no", "rule"))]),
        "OK: OK/0"
    );
    let elsewhere = request("elsewhere", ada());
    assert_eq!(shown(&client.try_ask(elsewhere).unwrap()), "OK: OK/0");
    let error = client
        .try_ask(request(
            "shop",
            vec![with(1, RateLimitUnit::Unknown, one("a", "b"))],
        ))
        .unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
}

/// A customer with a limit for a day that the request brings.
pub fn a_day(requests_per_unit: u32, customer: &str) -> RateLimitDescriptor {
    RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit,
            unit: RateLimitUnit::Day.into(),
        }),
        ..one("customer", customer)
    }
}

#[test]
fn a_changed_override_number_keeps_the_count() {
    let server = serving("grpc-overrides", CONFIG);
    let mut client = Client::of(server.grpc);
    assert_eq!(
        client.told(vec![a_day(3, "ada"), a_day(3, "ada")]),
        "OK: OK/2 OK/1"
    );
    assert_eq!(
        client.told(vec![a_day(5, "ada")]),
        "OK: OK/2",
        "two of three are used, so three of five remain before this"
    );
    assert_eq!(client.told(vec![a_day(2, "ada")]), "OVER: OVER/0");
}

#[test]
fn a_descriptor_that_cannot_be_decided_does_not_release_the_others() {
    let server = serving("grpc-undecided", CONFIG);
    let mut client = Client::of(server.grpc);
    let wrong = || RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 1,
            unit: RateLimitUnit::Unknown.into(),
        }),
        ..one("a", "b")
    };
    let both =
        |client: &mut Client| client.try_ask(request("shop", vec![one("user", "eve"), wrong()]));
    for _ in 0..3 {
        let error = both(&mut client).unwrap_err();
        assert_eq!(
            error.code(),
            tonic::Code::InvalidArgument,
            "the operator's failure mode decides"
        );
    }
    assert_eq!(
        shown(&both(&mut client).unwrap()),
        "OVER: OVER/0 OK/0",
        "the three were charged"
    );
    let metrics = Http::connect(server.admin).send("GET", "/metrics", "").body;
    assert!(
        metrics.contains("tidegate_grpc_errors_total{cause=\"invalid_argument\"} 3"),
        "{metrics}"
    );
}

#[test]
fn no_path_that_envoy_can_send_gets_past_the_limits() {
    let server = serving("grpc-long-paths", CONFIG);
    let mut client = Client::of(server.grpc);
    for size in [1_000, 34_000, 59_000] {
        let path = "p".repeat(size);
        let ask = || (0..4).map(|_| one("user", &path)).collect::<Vec<_>>();
        // Four descriptors of one key add up, so three units do not suffice.
        assert_eq!(client.told(ask()), "OVER: OK/3 OK/2 OK/1 OVER/0", "{size}");
        for _ in 0..3 {
            client.ask(vec![one("user", &path)]);
        }
        assert_eq!(
            client.told(vec![one("user", &path)]),
            "OVER: OVER/0",
            "{size}"
        );
    }
    let large = "p".repeat(5 << 20);
    let error = client
        .try_ask(request("shop", vec![one("user", &large)]))
        .unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");
    let many = vec![one("user", "x"); 3_000];
    let error = client.try_ask(request("shop", many)).unwrap_err();
    assert!(error.message().contains("more than 4096 parts"), "{error}");
}

#[test]
fn a_rule_with_another_algorithm_returns_the_wait() {
    let server = serving("grpc-algorithm", CONFIG);
    let mut client = Client::of(server.grpc);
    client.ask(vec![hits(5, one("smooth", "x"))]);
    server.advance(Duration::from_secs(20));
    assert_eq!(client.told(vec![one("smooth", "x")]), "OK: OK/0");
    server.advance(Duration::from_millis(500));
    let denied = client.ask(vec![one("smooth", "x")]);
    assert_eq!(shown(&denied), "OVER: OVER/0");
    assert_eq!(
        denied.statuses[0]
            .duration_until_reset
            .as_ref()
            .unwrap()
            .seconds,
        40,
        "39.5 s, rounded up"
    );
    server.advance(Duration::from_millis(39_500));
    assert_eq!(client.told(vec![one("smooth", "x")]), "OK: OK/4");
}

/// Tenants that share one limit of 200 requests a minute.
pub const SHARED: &str = "
domain: shop
descriptors:
  - key: tenant
    rate_limit: {unit: minute, requests_per_unit: 200, shares: {weights: {acme: 3}, ceiling: 80%}}
  - {key: path, value: /cart, rate_limit: {unit: hour, requests_per_unit: 2}}
";

/// What two tenants get in an hour of which each of them asks for more than all of the limit.
fn admitted_by_shares(server: &Running) -> [u64; 2] {
    let mut client = Client::of(server.grpc);
    let mut got = [0; 2];
    for second in 0..4 * 60 {
        for _ in 0..5 {
            for (tenant, got) in ["acme", "beta"].iter().zip(&mut got) {
                let told = client.told(vec![one("tenant", tenant)]);
                // After a minute, in which both have become known.
                *got += u64::from(second >= 60 && told.starts_with("OK"));
            }
        }
        server.advance(Duration::from_secs(1));
    }
    got
}

#[test]
fn the_values_of_a_key_share_its_limit_by_weight() {
    for consume in [Consume::Each, Consume::AllOrNone] {
        let server = Running::start_at(
            Options {
                envoy_consume: consume,
                ..options("grpc-shares", SHARED)
            },
            START,
        );
        let [acme, beta] = admitted_by_shares(&server);
        assert!(acme + beta <= 600 && acme + beta >= 590, "{acme}, {beta}");
        assert!((430..=470).contains(&acme), "{acme}, {beta}");
        // A request that another limit denies takes nothing from the share.
        let mut client = Client::of(server.grpc);
        server.advance(Duration::from_mins(10));
        let both = || vec![one("tenant", "gamma"), one("path", "/cart")];
        assert_eq!(client.told(both()), "OK: OK/199 OK/1");
        assert_eq!(client.told(both()), "OK: OK/198 OK/0");
        let told = client.told(both());
        let left = if consume == Consume::Each { 197 } else { 198 };
        assert_eq!(told, format!("OVER: OK/{left} OVER/0"));
        let told = server.get("/v1/explain?limit=shop.tenant&key=acme").json();
        assert_eq!(told["tenant"]["terms"], "weight 3, ceiling 80 %");
        assert_eq!(server.resp("OVERRIDE shop.tenant beta weight=2"), "OK");
    }
}

#[test]
fn a_request_without_domain_or_descriptors_is_refused() {
    let server = serving("grpc-refused", CONFIG);
    let mut client = Client::of(server.grpc);
    let error = client
        .try_ask(request("", vec![one("a", "b")]))
        .unwrap_err();
    assert!(
        error
            .message()
            .starts_with("rate limit domain must not be empty"),
        "{error}"
    );
    let error = client.try_ask(request("shop", vec![])).unwrap_err();
    assert!(
        error
            .message()
            .starts_with("rate limit descriptor list must not be empty"),
        "{error}"
    );
}

#[test]
fn responses_have_the_rate_limit_fields_if_enabled() {
    let mut options = options("grpc-headers", CONFIG);
    options.envoy_headers = AnswerFields::RateLimit;
    let server = Running::start_at(options, START);
    let answer = Client::of(server.grpc).ask(vec![one("user", "ada"), one("path", "/cart")]);
    let headers: Vec<_> = answer
        .response_headers_to_add
        .iter()
        .map(|h| format!("{}: {}", h.key, h.value))
        .collect();
    assert_eq!(headers.len(), 2, "{headers:?}");
    assert!(
        headers[0].starts_with(r#"ratelimit-policy: "shop.user";q=3;w=60, "shop.path"#),
        "{headers:?}"
    );
    assert!(
        headers[1].starts_with(r#"ratelimit: "shop.user";r=2;t=60, "#),
        "{headers:?}"
    );
}

#[test]
fn the_three_fields_are_those_of_the_descriptor_that_denies_or_has_least_left() {
    let mut options = options("grpc-three-headers", CONFIG);
    let names = field_names("X-Limit,x-left, x-reset".split(',')).unwrap();
    options.envoy_headers = AnswerFields::Named(names);
    let server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    let mut fields = |descriptors| {
        let answer = client.ask(descriptors);
        let headers: Vec<_> = answer
            .response_headers_to_add
            .iter()
            .map(|h| format!("{}: {}", h.key, h.value))
            .collect();
        headers.join(", ")
    };
    // The user has two left of three, the cart one of two.
    assert_eq!(
        fields(vec![one("user", "ada"), one("path", "/cart")]),
        "x-limit: 2, x-left: 1, x-reset: 2700"
    );
    assert_eq!(
        fields(vec![one("path", "/cart"), one("path", "/cart")]),
        "x-limit: 2, x-left: 0, x-reset: 2700"
    );
    // The cart denies, although the user is asked, too.
    assert_eq!(
        fields(vec![one("path", "/cart"), one("user", "bob")]),
        "x-limit: 2, x-left: 0, x-reset: 2700"
    );
    assert_eq!(fields(vec![one("unknown", "x"), one("vip", "x")]), "");
    for wrong in ["a,b", "a,b,c,d", "a,b,c d"] {
        assert_eq!(field_names(wrong.split(',')), None, "{wrong}");
    }
}

#[test]
fn in_shadow_mode_everything_is_admitted_and_said_and_counted() {
    let mut options = options("grpc-shadow", CONFIG);
    options.envoy_consume = Consume::Each;
    options.envoy_modes = Modes {
        shadow: true,
        ..Modes::default()
    };
    let server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    for told in ["OK: OK/1", "OK: OK/0", "OK: OVER/0", "OK: OVER/0"] {
        assert_eq!(client.told(vec![one("path", "/cart")]), told);
    }
    assert_eq!(
        server.metric(r#"tidegate_envoy_over_limit_total{domain="shop",rule="path_/cart"}"#),
        2
    );
    let json = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"path","value":"/cart"}]}]}"#;
    let answer = server.post("/json", json);
    assert_eq!(
        (answer.status, &answer.json()["statuses"][0]["code"]),
        (200, &json!("OVER_LIMIT"))
    );
}

#[test]
fn in_quota_mode_a_request_is_denied_if_all_its_limits_are_over() {
    let mut options = options("grpc-all-quotas", CONFIG);
    options.envoy_modes = Modes {
        quota: true,
        ..Modes::default()
    };
    let server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    let both = || vec![one("path", "/cart"), one("user", "ada")];
    for told in [
        "OK: OK/1 OK/2",
        "OK: OK/0 OK/1",
        "OK: OVER/0 OK/0",
        "OVER: OVER/0 OVER/0",
    ] {
        assert_eq!(client.told(both()), told);
    }
}

#[test]
fn a_changed_configuration_is_used_and_a_bad_one_is_rejected() {
    let options = options("grpc-reload", CONFIG);
    let path = options.envoy_config.clone().unwrap();
    let mut server = Running::start_at(options, START);
    let mut client = Client::of(server.grpc);
    assert_eq!(client.told(vec![hits(2, one("user", "ada"))]), "OK: OK/1");
    let more = CONFIG.replace("requests_per_unit: 3", "requests_per_unit: 10");
    server.reloading(|| replace(&path, &more));
    assert_eq!(
        client.told(vec![one("user", "ada")]),
        "OK: OK/7",
        "what was used is kept"
    );
    assert_eq!(
        server.metric(r#"tidegate_envoy_total_hits_total{domain="shop",rule="user"}"#),
        3
    );
    server.reloading(|| replace(&path, more.replace("unit: minute", "unit: fortnight")));
    assert_eq!(
        client.told(vec![one("user", "ada")]),
        "OK: OK/6",
        "the good one goes on"
    );
    server.reloading(|| replace(&path, CONFIG.replace("key: user", "key: account")));
    assert_eq!(
        client.told(vec![one("user", "ada"), one("account", "ada")]),
        "OK: OK/0 OK/2"
    );
}

#[test]
fn the_configuration_works_beside_rules_and_their_names_must_differ() {
    let mut options = options("grpc-beside", CONFIG);
    let rules = scratch("grpc-beside-rules").join("rules.yaml");
    std::fs::write(&rules, "limits: [{name: own, limit: 1/1m}]\n").unwrap();
    options.rules = Some(rules.clone());
    let server = Running::start_at(options.clone(), START);
    assert_eq!(harness::acquire(&server, "own", "a").0, 200);
    // A descriptor's limit can also be asked by its name; it is one limit.
    assert_eq!(
        harness::acquire(&server, "shop.user", "ada").1["remaining"],
        2
    );
    assert_eq!(
        Client::of(server.grpc).told(vec![one("user", "ada")]),
        "OK: OK/1"
    );
    drop(server);
    std::fs::write(&rules, "limits: [{name: shop.user, limit: 1/1m}]\n").unwrap();
    let error = Running::try_start_at(options, START)
        .err()
        .expect("refused");
    assert!(
        error.contains("a descriptor's limit is called `shop.user`, as another limit is"),
        "{error}"
    );
}

#[test]
fn json_is_answered_like_the_message() {
    let server = serving("grpc-json", CONFIG);
    let ask = |body: serde_json::Value| {
        let response = server.post("/json", &body.to_string());
        (response.status, response.json())
    };
    let cart = json!({"domain": "shop", "hitsAddend": 2, "descriptors": [
        {"entries": [{"key": "path", "value": "/cart"}]}, {"entries": [{"key": "user", "value": "x"}], "hits_addend": "1"}]});
    let (status, body) = ask(cart.clone());
    assert_eq!(status, 200);
    assert_eq!(
        body,
        json!({"overallCode": "OK", "statuses": [
            {"code": "OK", "currentLimit": {"requestsPerUnit": 2, "unit": "HOUR"}, "durationUntilReset": "2700s"},
            {"code": "OK", "currentLimit": {"name": "users", "requestsPerUnit": 3, "unit": "MINUTE"},
                "limitRemaining": 2, "durationUntilReset": "60s"}]})
    );
    let (status, body) = ask(cart);
    assert_eq!(
        (status, &body["overallCode"], &body["statuses"][0]["code"]),
        (429, &json!("OVER_LIMIT"), &json!("OVER_LIMIT"))
    );
    assert_eq!(ask(json!({"domain": "shop"})).0, 400);
    assert_eq!(
        ask(json!({"domain": "shop", "descriptors": [{"entry": []}]})).0,
        400
    );
    let over = json!({"domain": "shop", "descriptors": [
        {"entries": [{"key": "a"}], "limit": {"requestsPerUnit": 1, "unit": "DAY"}, "hitsAddend": 2}]});
    assert_eq!(ask(over).0, 429);
    let health = server.get("/healthcheck");
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
}

#[test]
fn the_counters_of_each_rule_are_in_the_metrics() {
    let config = CONFIG.replace("key: user,", "key: user, detailed_metric: true,");
    let server = serving("grpc-metrics", &config);
    let mut client = Client::of(server.grpc);
    for _ in 0..3 {
        client.ask(vec![one("path", "/cart"), one("user", "ada")]);
    }
    let metric = |name: &str, rule: &str| {
        server.metric(&format!(
            "tidegate_envoy_{name}_total{{domain=\"shop\",rule=\"{rule}\"}}"
        ))
    };
    let of = |rule: &str| {
        ["total_hits", "within_limit", "near_limit", "over_limit"].map(|name| metric(name, rule))
    };
    assert_eq!(of("path_/cart"), [3, 2, 1, 1]);
    // A request that another limit denied is a hit, but neither used this limit nor exceeded it.
    assert_eq!(of("user_ada"), [3, 2, 0, 0]);
    // There is no store that a block on this server could spare: no local cache, in their words.
    assert_eq!(server.resp("BLOCK shop.user bob"), "OK");
    client.ask(vec![one("user", "bob")]);
    assert_eq!(
        ["over_limit", "over_limit_with_local_cache"].map(|name| metric(name, "user_bob")),
        [1, 0]
    );
    for _ in 0..2 {
        client.ask(vec![one("quiet", "x")]);
    }
    assert_eq!(
        ["total_hits", "shadow_mode"].map(|name| metric(name, "quiet")),
        [2, 1]
    );
    assert_eq!(
        server.metric(r#"tidegate_grpc_requests_total{code="OVER_LIMIT"}"#),
        2
    );
    assert_eq!(
        server.metric(r#"tidegate_grpc_requests_total{code="OK"}"#),
        4
    );
    assert_eq!(server.metric("tidegate_grpc_connections"), 1);
}

#[test]
fn hits_beyond_four_fifths_of_a_limit_are_near_it_and_values_have_counters_up_to_a_bound() {
    let config = "domain: shop
descriptors:
  - {key: ten, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: across, rate_limit: {unit: hour, requests_per_unit: 10}}
  - {key: each, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 10}}
";
    let server = serving("grpc-near", config);
    let mut client = Client::of(server.grpc);
    for taken in [7, 1, 1, 1, 5] {
        client.ask(vec![hits(taken, one("ten", "x"))]);
    }
    client.ask(vec![hits(9, one("across", "x"))]);
    let metrics = |rule: &str| {
        ["total_hits", "over_limit", "near_limit", "within_limit"].map(|name| {
            server.metric(&format!(
                "tidegate_envoy_{name}_total{{domain=\"shop\",rule=\"{rule}\"}}"
            ))
        })
    };
    assert_eq!(
        [metrics("ten"), metrics("across")],
        [[15, 5, 2, 10], [9, 0, 1, 9]]
    );
    for round in 0..12 {
        client.ask(
            (0..100)
                .map(|value| one("each", &format!("{round}-{value}")))
                .collect(),
        );
    }
    let body = server.get("/metrics").body;
    assert_eq!(
        body.matches("tidegate_envoy_total_hits_total{domain=\"shop\",rule=\"each_")
            .count(),
        1_000
    );
    assert_eq!(
        metrics("each")[0],
        200,
        "the others are counted with the rule"
    );
}

#[test]
fn programs_such_as_grpcurl_learn_the_services_from_the_server() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let server = serving("grpc-reflection", CONFIG);
    let client = Client::of(server.grpc);
    let ask = |question: MessageRequest| {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(question),
        };
        let mut reflection = ServerReflectionClient::new(client.channel.clone());
        client.runtime.block_on(async {
            let requests = futures_util::stream::iter([request]);
            let mut answers = reflection
                .server_reflection_info(requests)
                .await
                .unwrap()
                .into_inner();
            answers
                .message()
                .await
                .unwrap()
                .unwrap()
                .message_response
                .unwrap()
        })
    };
    let MessageResponse::ListServicesResponse(list) =
        ask(MessageRequest::ListServices(String::new()))
    else {
        panic!("a list");
    };
    let names: Vec<&str> = list
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    for name in [
        "envoy.service.ratelimit.v3.RateLimitService",
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ] {
        assert!(names.contains(&name), "{name} is not among {names:?}");
        let asked = MessageRequest::FileContainingSymbol(name.to_owned());
        assert!(
            matches!(ask(asked), MessageResponse::FileDescriptorResponse(_)),
            "{name}"
        );
    }
    let file = MessageRequest::FileByFilename("google/protobuf/struct.proto".to_owned());
    assert!(matches!(
        ask(file),
        MessageResponse::FileDescriptorResponse(_)
    ));
}

#[test]
fn a_connection_of_the_maximum_age_is_replaced_without_a_failed_call_and_a_stream_ends_with_the_grace()
 {
    use tidegate_envoy::pb::envoy::service::rate_limit_quota::v3::{
        RateLimitQuotaUsageReports, rate_limit_quota_service_client::RateLimitQuotaServiceClient,
    };
    let aged = |name, grace| {
        let grpc_max_age = Some(Duration::from_millis(100));
        Running::start_at(
            Options {
                grpc_max_age,
                grpc_max_age_grace: grace,
                ..options(name, CONFIG)
            },
            START,
        )
    };
    // The client reads the end of a connection only during a call, so the server must wait for it.
    let server = aged("grpc-age", PATIENCE);
    let mut client = Client::of(server.grpc);
    let accepted = || server.metric("tidegate_grpc_connections_accepted_total");
    let mut answered = 0;
    eventually("three more connections", || {
        match client.try_ask(request("shop", vec![one("path", "/cart")])) {
            Ok(_) => answered += 1,
            // tonic had not sent it yet when it read that the connection ends, so it is safe to
            // repeat.
            Err(status) => assert!(unsent(&status), "{status:?}"),
        }
        accepted() >= 4
    });
    let decided =
        |code: &str| server.metric(&format!("tidegate_grpc_requests_total{{code=\"{code}\"}}"));
    assert_eq!(decided("OK") + decided("OVER_LIMIT"), answered);
    let server = aged("grpc-age-grace", Duration::from_millis(100));
    let client = Client::of(server.grpc);
    // A stream that the client keeps open.
    let Client {
        runtime, channel, ..
    } = &client;
    let ended = runtime.block_on(async {
        let reports = futures_util::stream::pending::<RateLimitQuotaUsageReports>();
        let mut quotas = RateLimitQuotaServiceClient::new(channel.clone());
        let mut answers = quotas.stream_rate_limit_quotas(reports).await?.into_inner();
        tokio::time::timeout(PATIENCE, answers.message())
            .await
            .expect("it ends")
            .map(drop)
    });
    assert!(ended.is_err(), "the connection is closed");
}

#[test]
fn health_is_served_by_the_grpc_health_protocol() {
    let server = serving("grpc-health", CONFIG);
    let mut client = Client::of(server.grpc);
    for service in [
        "",
        "ratelimit",
        "envoy.service.ratelimit.v3.RateLimitService",
    ] {
        let mut told = client.health(service);
        tidegate_redis_servers::eventually("the first report is there", || {
            told = client.health(service);
            told.as_ref().is_ok_and(|status| *status == 1)
        });
    }
    assert_eq!(
        client.health("other").unwrap_err().code(),
        tonic::Code::NotFound
    );
}

#[test]
fn heavy_keys_and_the_trace_have_what_descriptors_asked() {
    let share = Some("100%".parse().unwrap());
    let server = Running::start_at(
        Options {
            trace_keys: share,
            ..options("grpc-heavy", CONFIG)
        },
        START,
    );
    let mut client = Client::of(server.grpc);
    for _ in 0..4 {
        client.ask(vec![one("user", "ada"), one("team", "t")]);
    }
    let top = server.get("/v1/top?limit=shop.user").json();
    assert_eq!(
        top["asked_most"][0],
        json!({
            "key": "ada", "count": 4, "at_least": 4, "at_most": 4,
            "since_ms": START.get() / 1_000_000,
        })
    );
    assert_eq!(
        (&top["denied_most"][0]["key"], &top["denials"]),
        (&json!("ada"), &json!(1))
    );
    let trace = server.get("/v1/trace?limit=shop.user").body;
    assert!(
        trace.contains("\"name\":\"ada\"") && trace.ends_with("{\"end\":4}\n"),
        "{trace}"
    );
    // The fourth took nothing from the other limit.
    assert!(
        server
            .get("/v1/trace?limit=shop.team")
            .body
            .ends_with("{\"end\":3}\n")
    );
}

#[test]
fn parts_of_a_domain_are_merged_if_that_is_chosen_and_no_descriptor_is_in_two() {
    let try_with = |keys: &[&str], merge_domains| {
        let directory = scratch("grpc-merged");
        for (at, key) in keys.iter().enumerate() {
            let rule = format!("{{key: {key}, rate_limit: {{unit: hour, requests_per_unit: 2}}}}");
            let text = format!("domain: shop\ndescriptors: [{rule}]\n");
            std::fs::write(directory.join(format!("part-{at}")), text).unwrap();
        }
        let envoy_modes = Modes {
            merge_domains,
            ..Modes::default()
        };
        let options = Options {
            envoy_config: Some(directory),
            envoy_modes,
            ..Options::default()
        };
        Running::try_start_at(options, START)
    };
    let all = ["user", "user, value: vip", "user, value: v*", "tenant"];
    let server = try_with(&all, true).unwrap();
    assert_eq!(
        server.get("/v1/limits").json()["limits"]
            .as_array()
            .map(Vec::len),
        Some(4)
    );
    for key in all {
        let error = try_with(&["other", key, key], true).err().unwrap();
        assert!(
            error.contains("is already in") && error.contains("part-2"),
            "{error}"
        );
    }
    assert!(
        try_with(&all, false)
            .err()
            .unwrap()
            .contains("--envoy-merge-domains")
    );
}
