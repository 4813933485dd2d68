//! Quotas of backends and models: random requests against a plain reading of the rule, and limits
//! that do not fit into the protocol's 32 bits.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_envoy::pb::envoy::{
    config::core::v3::HeaderValue,
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    service::ratelimit::v3::{
        RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
    r#type::v3::RateLimitUnit,
};
use tidegate_redis_servers::{Server, eventually};
use tidegate_server::{
    Options,
    descriptors::{AnswerFields, Consume, Modes, field_names},
};

use crate::{
    client::{Client, hits, metadata, one, request},
    harness::Running,
    interop::random::{Random, chain},
    rls::{START, options, serving},
};

/// A limit of the random test: the entries of its descriptor, its number, and its modes.
struct Limit {
    entries: &'static [(&'static str, &'static str)],
    number: u64,
    is_quota: bool,
    is_shadow: bool,
}

const A: (&str, &str) = ("backend_name", "a");
const B: (&str, &str) = ("backend_name", "b");
const SMALL: (&str, &str) = ("model_name_override", "small");
const LARGE: (&str, &str) = ("model_name_override", "large");

const fn quota(entries: &'static [(&'static str, &'static str)], number: u64) -> Limit {
    Limit {
        entries,
        number,
        is_quota: true,
        is_shadow: false,
    }
}

/// The tenants of a model have quotas next to its own, as AI Gateway's rules do.
const LIMITS: [Limit; 10] = [
    quota(&[A, SMALL], 30),
    quota(&[A, SMALL, ("tenant", "t")], 20),
    quota(&[A, LARGE], 25),
    quota(&[A, LARGE, ("tenant", "t")], 40),
    quota(&[B, SMALL], 60),
    Limit {
        is_shadow: true,
        ..quota(&[B, LARGE], 10)
    },
    quota(&[B], 35),
    quota(&[("pool", "p")], 45),
    Limit {
        is_quota: false,
        ..quota(&[("user", "u")], 70)
    },
    Limit {
        is_quota: false,
        is_shadow: true,
        ..quota(&[("quiet", "q")], 5)
    },
];
/// Matches no rule.
const UNKNOWN: &[(&str, &str)] = &[B, ("model_name_override", "unknown")];

fn config() -> String {
    let mut text = "domain: shop\ndescriptors:\n  - key: run\n    descriptors:\n".to_owned();
    let nested = |text: &mut String,
                  depth: usize,
                  (key, value): (&str, &str),
                  limit: Option<&Limit>| {
        let indent = "  ".repeat(2 * depth + 3);
        let _ = writeln!(text, "{indent}- key: {key}\n{indent}  value: {value}");
        if let Some(limit) = limit {
            let Limit {
                number,
                is_quota,
                is_shadow,
                ..
            } = limit;
            let _ = writeln!(
                text,
                "{indent}  quota_mode: {is_quota}\n{indent}  shadow_mode: {is_shadow}\n{indent}  rate_limit: {{unit: year, requests_per_unit: {number}}}"
            );
        }
    };
    let of = |entries: &[(&str, &str)]| LIMITS.iter().find(|limit| limit.entries == entries);
    for (backend, models) in [(A, &[SMALL, LARGE]), (B, &[SMALL, LARGE])] {
        nested(&mut text, 0, backend, of(&[backend]));
        text += "        descriptors:\n";
        for model in models {
            nested(&mut text, 1, *model, of(&[backend, *model]));
            if let Some(tenant) = of(&[backend, *model, ("tenant", "t")]) {
                text += "            descriptors:\n";
                nested(&mut text, 2, ("tenant", "t"), Some(tenant));
            }
        }
    }
    for limit in LIMITS
        .iter()
        .filter(|limit| limit.entries[0].0 != "backend_name")
    {
        nested(&mut text, 0, limit.entries[0], Some(limit));
    }
    text
}

/// The backend and the model of a descriptor, or all its entries.
fn group(entries: &[(&str, &str)]) -> (Option<(String, String)>, String) {
    let last = |wanted: &str| {
        let found = entries.iter().rfind(|(key, _)| *key == wanted);
        found.map_or(String::new(), |(_, value)| (*value).to_owned())
    };
    let target = (last("backend_name"), last("model_name_override"));
    if target == (String::new(), String::new()) {
        (None, format!("{entries:?}"))
    } else {
        (Some(target), String::new())
    }
}

/// What is used of each limit.
#[derive(Default)]
struct Oracle {
    used: BTreeMap<usize, u64>,
}

/// Whether the request is denied, the statuses, and the backends that are left.
type Expected = (bool, Vec<(bool, u64)>, Option<Vec<Value>>);

impl Oracle {
    /// The rule, read word by word. `asked` has the limit of each descriptor, and its hits.
    fn decide(
        &mut self,
        asked: &[(&'static [(&'static str, &'static str)], u64)],
        each: bool,
    ) -> Expected {
        let limits: Vec<Option<usize>> = asked
            .iter()
            .map(|(entries, _)| LIMITS.iter().position(|limit| limit.entries == *entries))
            .collect();
        let mut used = self.used.clone();
        let mut statuses = vec![(false, 0); asked.len()];
        // Everything is asked; what does not fit is over.
        let mut groups: BTreeMap<_, bool> = BTreeMap::new();
        let mut is_over = false;
        for ((limit, (entries, hits)), status) in limits.iter().zip(asked).zip(&mut statuses) {
            let Some(at) = *limit else { continue };
            let limit = &LIMITS[at];
            let after = used.get(&at).unwrap_or(&0) + hits;
            used.insert(at, after);
            let fits = after <= limit.number;
            *status = (
                !fits && !limit.is_shadow,
                limit.number.saturating_sub(after),
            );
            if limit.is_quota {
                *groups.entry(group(entries)).or_default() |= status.0;
            } else {
                is_over |= status.0;
            }
        }
        is_over |= !groups.is_empty() && groups.values().all(|over| *over);
        if each {
            self.used = used;
        } else {
            for ((limit, (entries, hits)), status) in limits.iter().zip(asked).zip(&mut statuses) {
                let Some(at) = *limit else { continue };
                let limit = &LIMITS[at];
                let group_over = limit.is_quota && groups[&group(entries)];
                let before = *self.used.get(&at).unwrap_or(&0);
                let charged = !is_over && !group_over && before + hits <= limit.number;
                if charged {
                    self.used.insert(at, before + hits);
                }
                let is_denied = before + hits > limit.number;
                status.1 = match (is_denied, charged) {
                    (true, _) => 0,
                    (false, true) => limit.number - before - hits,
                    (false, false) => limit.number - before,
                };
            }
        }
        let mut left = Vec::new();
        let mut seen = BTreeSet::new();
        for ((entries, _), status) in asked.iter().zip(&statuses) {
            let group = group(entries);
            if let (Some((backend, model)), false) = (&group.0, status.0)
                && groups.get(&group) != Some(&true)
                && !groups.is_empty()
                && seen.insert(group.0.clone())
            {
                left.push(json!({"backend_name": backend, "model_name_override": model}));
            }
        }
        let has_targets = groups.keys().any(|(target, _)| target.is_some());
        let left = (has_targets || !left.is_empty()).then_some(left);
        (is_over, statuses, left)
    }
}

/// Asks a server and compares every answer.
fn compare(server: &Running, seed: u64, requests: usize, each: bool) {
    let mut client = Client::of(server.grpc);
    let mut random = Random(seed);
    let mut oracle = Oracle::default();
    let (mut denied, mut left_out) = (0, 0);
    for at in 0..requests {
        // Everything is used up after a while. Then other keys are asked.
        let run = (at / 120).to_string();
        if at % 120 == 0 {
            oracle = Oracle::default();
        }
        let mut asked: Vec<(&'static [(&'static str, &'static str)], u64)> = Vec::new();
        for _ in 0..=random.below(5) {
            let entries = match random.below(LIMITS.len() as u64 + 1) {
                at if at < LIMITS.len() as u64 => LIMITS[usize::try_from(at).unwrap()].entries,
                _ => UNKNOWN,
            };
            let hits = random.below(8);
            if asked.iter().all(|(known, _)| *known != entries) {
                asked.push((entries, hits));
            }
        }
        let descriptors = asked.iter().map(|(entries, cost)| {
            let entries = [&[("run", run.as_str())], *entries].concat();
            hits(*cost, chain(&entries))
        });
        let answer = client
            .try_ask(request("shop", descriptors.collect()))
            .unwrap();
        let (is_over, statuses, left) = oracle.decide(&asked, each);
        let is = |code: i32| code == i32::from(Code::OverLimit);
        let said: Vec<(bool, u64)> = answer
            .statuses
            .iter()
            .map(|status| (is(status.code), status.limit_remaining.into()))
            .collect();
        let said_left = metadata(&answer).get("passedBackends").cloned();
        assert_eq!(
            (is(answer.overall_code), said, said_left),
            (is_over, statuses, left.clone().map(Value::from)),
            "request {at} of seed {seed}: {asked:?}"
        );
        denied += usize::from(is_over);
        left_out += usize::from(!is_over && left.is_some_and(|left| left.is_empty()));
    }
    assert!(
        denied > requests / 20 && denied < requests * 19 / 20,
        "{denied} of {requests} denied"
    );
    assert!(
        left_out > 0,
        "no request passed without a backend that is left"
    );
}

fn quota_options(name: &str, consume: Consume) -> Options {
    Options {
        envoy_consume: consume,
        envoy_modes: Modes {
            metadata: true,
            ..Modes::default()
        },
        ..options(name, &config())
    }
}

/// 100,000 in the long run.
fn requests(usual: usize) -> usize {
    if std::env::var_os("TIDEGATE_LONG").is_some() {
        100_000
    } else {
        usual
    }
}

#[test]
fn random_quotas_are_decided_in_groups() {
    for (seed, consume) in [(1, Consume::Each), (2, Consume::AllOrNone)] {
        let server = Running::start_at(quota_options("grpc-quota-groups", consume), START);
        compare(&server, seed, requests(6_000), consume == Consume::Each);
    }
}

#[test]
fn random_quotas_are_decided_in_groups_over_a_store() {
    for (seed, consume) in [(3, Consume::Each), (4, Consume::AllOrNone)] {
        let redis = Server::start(&[]);
        let options = Options {
            store: Some(redis.address()),
            store_deadline: std::time::Duration::from_secs(5).into(),
            ..quota_options("grpc-quota-groups-store", consume)
        };
        let server = Running::start_at(options, START);
        eventually("the store has been reached", || {
            server.get("/readyz").json()["status"] == "ready"
        });
        compare(&server, seed, requests(1_200), consume == Consume::Each);
    }
}

/// The three cases of AI Gateway's issue 2460: a spent model leaves the others, the list says which
/// they are, and a tenant's quota is enforced next to the model's.
#[test]
fn a_tenants_quota_that_is_used_up_denies_although_its_models_is_not() {
    let config = "
domain: shop
descriptors:
  - key: backend_name
    value: default/openai
    descriptors:
      - key: model_name_override
        value: gpt
        quota_mode: true
        rate_limit: {unit: hour, requests_per_unit: 3}
        descriptors:
          - {key: tenant, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - key: backend_name
    value: default/other
    descriptors:
      - {key: model_name_override, value: gpt, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
";
    let modes = Modes {
        metadata: true,
        ..Modes::default()
    };
    for consume in [Consume::Each, Consume::AllOrNone] {
        let options = Options {
            envoy_consume: consume,
            envoy_modes: modes,
            ..options("grpc-quota-2460", config)
        };
        let server = Running::start_at(options, START);
        let mut client = Client::of(server.grpc);
        let model = ("model_name_override", "gpt");
        let openai = ("backend_name", "default/openai");
        let quotas = || {
            vec![
                chain(&[openai, model]),
                chain(&[openai, model, ("tenant", "eve")]),
            ]
        };
        let mut ask = |descriptors: Vec<RateLimitDescriptor>| {
            let answer = client.ask(descriptors);
            let left = metadata(&answer)["passedBackends"].clone();
            (answer.overall_code == i32::from(Code::Ok), left)
        };
        let target = |backend: &str| json!({"backend_name": backend, "model_name_override": "gpt"});
        let openai_left = || (true, json!([target("default/openai")]));
        assert_eq!(
            [ask(quotas()), ask(quotas())],
            [openai_left(), openai_left()]
        );
        // The tenant has used its two, the model two of three.
        assert_eq!(ask(quotas()), (false, json!([])));
        // With another backend that has something left the request goes there.
        let mut both = quotas();
        both.push(chain(&[("backend_name", "default/other"), model]));
        assert_eq!(ask(both), (true, json!([target("default/other")])));
        // Another tenant: denied requests are counted for the model by default, as in
        // envoyproxy/ratelimit, and not with joint decisions.
        let ada = vec![
            chain(&[openai, model]),
            chain(&[openai, model, ("tenant", "ada")]),
        ];
        let expected = match consume {
            Consume::Each => (false, json!([])),
            Consume::AllOrNone => openai_left(),
        };
        assert_eq!(ask(ada), expected);
    }
}

fn limits_and_left(answer: &RateLimitResponse) -> Vec<(u32, u32)> {
    let status = |status: &DescriptorStatus| {
        let limit = status.current_limit.as_ref();
        (
            limit.map_or(0, |limit| limit.requests_per_unit),
            status.limit_remaining,
        )
    };
    answer.statuses.iter().map(status).collect()
}

#[test]
fn a_limit_of_more_than_32_bits_is_scaled_with_what_remains_and_exact_in_the_metadata() {
    let config = "
domain: shop
descriptors:
  - {key: money, rate_limit: {unit: month, requests_per_unit: 10000000000}}
  - {key: most, rate_limit: {unit: month, requests_per_unit: 4294967295}}
";
    let server = serving("grpc-wide", config);
    let mut client = Client::of(server.grpc);
    let descriptors = |cost| vec![hits(cost, one("money", "acme")), hits(1, one("most", "x"))];
    let answer = client.ask(descriptors(3_000_000_000));
    // 10^10 needs two bits more.
    assert_eq!(
        limits_and_left(&answer),
        [(2_500_000_000, 1_750_000_000), (u32::MAX, u32::MAX - 1)]
    );
    assert_eq!(
        metadata(&answer)["exact_limits"],
        json!([
            {"requests_per_unit": 10_000_000_000.0, "limit_remaining": 7_000_000_000.0},
            {"requests_per_unit": 4_294_967_295.0, "limit_remaining": 4_294_967_294.0},
        ])
    );
    let body = json!({"domain": "shop", "descriptors": [
        {"entries": [{"key": "money", "value": "acme"}], "hitsAddend": "6999999999"}]});
    let said = server.post("/json", &body.to_string()).json();
    // One is left: not 0, which would say that nothing is.
    assert_eq!(
        (
            &said["statuses"][0]["currentLimit"]["requestsPerUnit"],
            &said["statuses"][0]["limitRemaining"]
        ),
        (&json!(2_500_000_000_u64), &json!(1))
    );
    assert_eq!(
        said["dynamicMetadata"]["exact_limits"][0]["limit_remaining"],
        1
    );
    // Limits that fit need no second set of numbers.
    let narrow = client.ask(vec![one("most", "x")]);
    assert_eq!(narrow.dynamic_metadata, None);
}

#[test]
fn requests_get_header_fields_too_and_responses_a_pair_for_each_unit() {
    let config = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: team, rate_limit: {unit: day, requests_per_unit: 7}}
";
    let mut options = options("grpc-request-headers", config);
    options.envoy_headers = AnswerFields::None;
    options.envoy_request_headers = field_names("x-limit,x-left,x-reset".split(','));
    options.envoy_modes.each_unit = true;
    let server = Running::start_at(options, START);
    let answer =
        Client::of(server.grpc).ask(vec![one("path", "/"), one("user", "ada"), one("team", "t")]);
    let shown = |headers: &[HeaderValue]| {
        let lines = headers
            .iter()
            .map(|field| format!("{}: {}", field.key, field.value));
        lines.collect::<Vec<_>>().join(", ")
    };
    assert_eq!(
        shown(&answer.request_headers_to_add),
        "x-limit: 3, x-left: 2, x-reset: 60"
    );
    assert_eq!(
        shown(&answer.response_headers_to_add),
        "ratelimit-limit-minutes: 3, ratelimit-remaining-minutes: 2, ratelimit-limit-days: 7, ratelimit-remaining-days: 6"
    );
}

#[test]
fn months_of_the_calendar_end_with_the_month() {
    let config = "
domain: shop
descriptors:
  - {key: team, rate_limit: {unit: month, requests_per_unit: 2}}
  - {key: own, rate_limit: {unit: month, requests_per_unit: 2, calendar: false}}
";
    // Noon of 30 November 2023: the month ends in 12 hours.
    let start = Nanos::from_secs(1_701_345_600);
    let mut options = options("grpc-calendar", config);
    options.envoy_modes.calendar_months = true;
    let server = Running::start_at(options, start);
    let brought = RateLimitDescriptor {
        limit: Some(RateLimitOverride {
            requests_per_unit: 2,
            unit: RateLimitUnit::Month.into(),
        }),
        ..one("brought", "x")
    };
    let answer = Client::of(server.grpc).ask(vec![one("team", "t"), one("own", "t"), brought]);
    let reset = |at: usize| {
        answer.statuses[at]
            .duration_until_reset
            .as_ref()
            .unwrap()
            .seconds
    };
    let month = 30 * 24 * 60 * 60;
    let fixed = month - 1_701_345_600 % month;
    assert_eq!(
        [reset(0), reset(1), reset(2)],
        [12 * 60 * 60, fixed, 12 * 60 * 60]
    );
}
