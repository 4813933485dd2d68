//! Envoy's quota service, called by a gRPC client.

use std::{path::Path, time::Duration};

use futures_util::stream;
use tidegate_core::Nanos;
use tidegate_envoy::pb::envoy::{
    service::rate_limit_quota::v3::{
        BucketId, RateLimitQuotaResponse, RateLimitQuotaUsageReports,
        rate_limit_quota_response::{BucketAction, bucket_action::BucketAction as Action},
        rate_limit_quota_service_client::RateLimitQuotaServiceClient,
        rate_limit_quota_usage_reports::BucketQuotaUsage,
    },
    r#type::v3::rate_limit_strategy::{BlanketRule, Strategy},
};
use tidegate_server::{Ended, Options, Order};
use tokio::{runtime::Runtime, sync::mpsc};
use tonic::{Code, Status, Streaming, transport::Channel};

use crate::{
    client::{Client, one},
    harness::{PATIENCE, Running, scratch},
};

/// A quarter of an hour after noon of some day.
const START: Nanos = Nanos::from_secs(1_700_049_600 + 900);

const CONFIG: &str = "
domain: shop
descriptors:
  - {key: plan, value: second, rate_limit: {unit: second, requests_per_unit: 100}}
  - {key: plan, value: hour, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: plan, value: all, rate_limit: {unlimited: true}}
  - {key: plan, value: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: plan, value: same-*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 7200}}
  - {key: plan, value: pair, descriptors: [{key: zone, rate_limit: {unit: second, requests_per_unit: 10}}]}
";

fn serving(name: &str) -> Running {
    serving_from(&scratch(name).join("shop.yaml"))
}

fn serving_from(path: &Path) -> Running {
    serving_of(path, CONFIG)
}

fn serving_of(path: &Path, config: &str) -> Running {
    std::fs::write(path, config).unwrap();
    let (grpc, envoy_config) = (Some("127.0.0.1:0".to_owned()), Some(path.to_owned()));
    Running::start_at(
        Options {
            grpc,
            envoy_config,
            ..Options::default()
        },
        START,
    )
}

/// One stream, as an Envoy opens it.
pub struct Envoy {
    runtime: Runtime,
    say: Option<mpsc::UnboundedSender<RateLimitQuotaUsageReports>>,
    said: Streaming<RateLimitQuotaResponse>,
    _channel: Channel,
}

impl Envoy {
    pub fn of(server: &Running) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let address = format!("http://{}", server.grpc);
        let channel = runtime
            .block_on(Channel::from_shared(address).unwrap().connect())
            .unwrap();
        let (say, reports) = mpsc::unbounded_channel();
        let reports = stream::unfold(reports, async |mut reports| {
            Some((reports.recv().await?, reports))
        });
        let mut client = RateLimitQuotaServiceClient::new(channel.clone());
        let said = runtime
            .block_on(client.stream_rate_limit_quotas(reports))
            .unwrap()
            .into_inner();
        Self {
            runtime,
            say: Some(say),
            said,
            _channel: channel,
        }
    }

    pub fn report_as(&self, domain: &str, bucket: &[(&str, &str)], allowed: u64, denied: u64) {
        self.report_all(domain, vec![usage(bucket, allowed, denied)]);
    }

    fn report_all(&self, domain: &str, bucket_quota_usages: Vec<BucketQuotaUsage>) {
        let report = RateLimitQuotaUsageReports {
            domain: domain.to_owned(),
            bucket_quota_usages,
        };
        self.say.as_ref().unwrap().send(report).unwrap();
    }

    /// Reports this many requests of buckets with these names.
    pub fn report_many(&self, domain: &str, names: impl IntoIterator<Item = String>) {
        let usages = names
            .into_iter()
            .map(|name| usage(&[("plan", &name)], 1, 0));
        self.report_all(domain, usages.collect());
    }

    /// Reports the requests of several plans at once: how many were allowed, and how many denied.
    pub fn report_plans(&self, plans: &[(&str, u64, u64)]) {
        let of = |(plan, allowed, denied): &(&str, u64, u64)| {
            usage(&[("plan", plan)], *allowed, *denied)
        };
        self.report_all("shop", plans.iter().map(of).collect());
    }

    pub fn report(&self, plan: &str, allowed: u64, denied: u64) {
        self.report_as("shop", &[("plan", plan)], allowed, denied);
    }

    pub fn next(&mut self) -> Result<Option<RateLimitQuotaResponse>, Status> {
        let said = self.said.message();
        self.runtime.block_on(async {
            tokio::time::timeout(PATIENCE, said)
                .await
                .expect("something is said")
        })
    }

    /// The assignment in the next answer for its only bucket.
    pub fn told(&mut self) -> String {
        let answer = self.next().unwrap().expect("the stream goes on");
        let [action] = answer.bucket_action.as_slice() else {
            panic!("one action: {answer:?}")
        };
        assigned(action).0
    }
}

fn usage(bucket: &[(&str, &str)], allowed: u64, denied: u64) -> BucketQuotaUsage {
    let pairs = bucket
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    BucketQuotaUsage {
        bucket_id: Some(BucketId {
            bucket: pairs.collect(),
        }),
        time_elapsed: None,
        num_requests_allowed: allowed,
        num_requests_denied: denied,
    }
}

/// What a bucket is assigned: tokens per second, `all` or `none`, and for how many seconds; or that
/// it is abandoned.
pub fn assigned(action: &BucketAction) -> (String, u64) {
    let assigned = match action.bucket_action.as_ref().unwrap() {
        Action::AbandonAction(_) => return ("forget".to_owned(), 0),
        Action::QuotaAssignmentAction(assigned) => assigned,
    };
    let told = match assigned
        .rate_limit_strategy
        .as_ref()
        .unwrap()
        .strategy
        .as_ref()
        .unwrap()
    {
        Strategy::TokenBucket(bucket) => {
            assert_eq!(bucket.fill_interval.unwrap().seconds, 1);
            assert_eq!(bucket.tokens_per_fill.unwrap().value, bucket.max_tokens);
            bucket.max_tokens.to_string()
        }
        Strategy::BlanketRule(rule) if *rule == i32::from(BlanketRule::AllowAll) => {
            "all".to_owned()
        }
        Strategy::BlanketRule(_) => "none".to_owned(),
        Strategy::RequestsPerTimeUnit(_) => panic!("Envoy ignores it"),
    };
    let seconds = assigned.assignment_time_to_live.unwrap().seconds;
    assert!(
        if told == "all" {
            seconds == 60
        } else {
            (1..=5).contains(&seconds)
        },
        "{assigned:?}"
    );
    (told, seconds.cast_unsigned())
}

#[test]
fn a_first_report_is_answered_immediately_and_each_second_has_a_share() {
    let server = serving("quota-first");
    let mut one = Envoy::of(&server);
    one.report("second", 0, 1);
    assert_eq!(
        one.told(),
        "50",
        "half of the second: Envoy's bucket is full and fills again"
    );
    server.advance(Duration::from_secs(1));
    assert_eq!(one.told(), "100");
    // The whole current second is assigned; the next one is shared.
    let mut other = Envoy::of(&server);
    other.report("second", 0, 1);
    assert_eq!(other.told(), "none");
    server.advance(Duration::from_secs(1));
    let shares = [one.told(), other.told()];
    assert_eq!(
        shares,
        ["50", "25"],
        "half of it each, the second with a full bucket"
    );
    server.advance(Duration::from_secs(1));
    assert_eq!([one.told(), other.told()], ["50", "50"]);
    assert_eq!(server.metric("tidegate_grpc_quota_streams"), 2);
    assert_eq!(server.metric("tidegate_grpc_quota_buckets"), 2);
}

#[test]
fn buckets_without_a_limit_are_admitted_and_idle_ones_abandoned() {
    let server = serving("quota-free");
    for plan in ["all", "shadow", "unknown"] {
        let mut envoy = Envoy::of(&server);
        envoy.report(plan, 1, 0);
        assert_eq!(envoy.told(), "all", "{plan}");
        for _ in 0..2 {
            server.advance(Duration::from_secs(5));
            envoy.report(plan, 0, 0);
            assert_eq!(envoy.told(), "all", "{plan}");
        }
        server.advance(Duration::from_secs(5));
        envoy.report(plan, 0, 0);
        assert_eq!(envoy.told(), "forget", "{plan}");
        envoy.report(plan, 1, 0);
        assert_eq!(envoy.told(), "all", "{plan}: it may begin again");
    }
    assert_eq!(
        server.metric(r#"tidegate_envoy_total_hits_total{domain="shop",rule="plan_all"}"#),
        2
    );
}

#[test]
fn a_limit_that_tenants_share_has_no_assignments() {
    let path = scratch("quota-shared").join("shop.yaml");
    let rule =
        "  - {key: tenant, rate_limit: {unit: minute, requests_per_unit: 200, shares: {}}}\n";
    let server = serving_of(&path, &format!("{CONFIG}{rule}"));
    let mut envoy = Envoy::of(&server);
    envoy.report_as("shop", &[("tenant", "acme")], 5, 0);
    envoy.report("all", 1, 0);
    // The first answer is that of the second report.
    assert_eq!(envoy.told(), "all");
    let told = Client::of(server.grpc).told(vec![one("tenant", "acme")]);
    assert_eq!(told, "OK: OK/199");
}

#[test]
fn a_bucket_s_entries_have_no_order() {
    let server = serving("quota-order");
    for (zone, bucket) in [
        ("a", [("zone", "a"), ("plan", "pair")]),
        ("b", [("plan", "pair"), ("zone", "b")]),
    ] {
        let mut envoy = Envoy::of(&server);
        envoy.report_as("shop", &bucket, 0, 1);
        assert_eq!(envoy.told(), "5", "{zone}");
    }
}

#[test]
fn quotas_and_calls_spend_the_same_limit_and_unused_units_are_given_back() {
    let server = serving("quota-same");
    let left = || {
        let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "plan", "value": "hour"}], "hits_addend": 0}]}"#;
        let answer = server.post("/json", body).body;
        let answer: serde_json::Value =
            serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}"));
        answer["statuses"][0]["limitRemaining"]
            .as_u64()
            .unwrap_or(0)
    };
    assert_eq!(left(), 1_000);
    let mut envoy = Envoy::of(&server);
    envoy.report("hour", 1, 0);
    assert_eq!(envoy.told(), "50");
    assert_eq!(
        left(),
        899,
        "the request before, a full bucket, and what comes in a second"
    );
    for _ in 0..4 {
        server.advance(Duration::from_secs(1));
        assert_eq!(envoy.told(), "50");
    }
    assert_eq!(left(), 699);
    server.advance(Duration::from_secs(1));
    assert_eq!(envoy.told(), "50");
    // It has used 20, and may still use 100.
    envoy.report("hour", 20, 0);
    tidegate_redis_servers::eventually("the rest is given back", || left() == 1_000 - 21 - 100);
}

#[test]
fn a_change_of_the_configuration_reaches_an_open_stream() {
    let path = scratch("quota-reload").join("shop.yaml");
    let mut server = serving_from(&path);
    let mut envoy = Envoy::of(&server);
    envoy.report("second", 0, 1);
    assert_eq!(envoy.told(), "50");
    let change = |text: &str| {
        std::fs::write(
            &path,
            CONFIG.replace("{unit: second, requests_per_unit: 100}", text),
        )
        .unwrap();
    };
    let orders = server.orders();
    server.reloading(|| {
        change("{unit: second, requests_per_unit: 30}");
        orders.blocking_send(Order::Reload).unwrap();
    });
    server.advance(Duration::from_secs(1));
    assert_eq!(envoy.told(), "30");
    server.reloading(|| {
        change("{unlimited: true}");
        orders.blocking_send(Order::Reload).unwrap();
    });
    envoy.report("second", 5, 5);
    assert_eq!(envoy.told(), "all");
}

#[test]
fn invalid_streams_are_refused_and_all_streams_end_with_the_server() {
    let server = serving("quota-wrong");
    for (first, second) in [("", ""), ("shop", "other")] {
        let mut envoy = Envoy::of(&server);
        envoy.report_as(first, &[("plan", "all")], 1, 0);
        if first.is_empty() {
            let error = envoy.next().unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
            assert!(error.message().contains("domain"), "{error:?}");
            continue;
        }
        assert_eq!(envoy.told(), "all");
        envoy.report_as(second, &[("plan", "all")], 1, 0);
        assert_eq!(envoy.next().unwrap_err().code(), Code::InvalidArgument);
    }
    let mut envoy = Envoy::of(&server);
    envoy.report("all", 1, 0);
    assert_eq!(envoy.told(), "all");
    assert_eq!(
        server.stop(),
        Ended::Complete,
        "an open stream keeps no server from stopping"
    );
    assert!(matches!(envoy.next(), Ok(None) | Err(_)), "and it ends");
}

#[test]
fn new_buckets_in_one_report_get_what_they_get_in_separate_reports() {
    let granted = |at_once: usize| {
        let server = serving(&format!("quota-at-once-{at_once}"));
        let mut envoy = Envoy::of(&server);
        let names: Vec<String> = (0..12).map(|at| format!("same-{at}")).collect();
        let mut actions = Vec::new();
        for names in names.chunks(at_once) {
            envoy.report_many("shop", names.iter().cloned());
            actions.extend(envoy.next().unwrap().unwrap().bucket_action);
        }
        let left = Client::of(server.grpc).told(vec![one("plan", "same-x")]);
        (actions, left)
    };
    let one_by_one = granted(1);
    assert_eq!(one_by_one.0.len(), 12);
    assert_ne!(
        one_by_one.0[0].bucket_action,
        one_by_one.0[11].bucket_action
    );
    for at_once in [2, 5, 12] {
        assert_eq!(granted(at_once), one_by_one, "{at_once} in a report");
    }
}

#[test]
fn reports_and_streams_with_too_many_buckets_are_ended_with_an_error() {
    let server = serving("quota-many");
    let ends = |envoy: &mut Envoy| loop {
        if let Err(error) = envoy.next() {
            break (error.code(), error.message().to_owned());
        }
    };
    // A million empty buckets: 2 MB.
    let mut envoy = Envoy::of(&server);
    envoy.say.as_ref().unwrap().send(empty_report()).unwrap();
    let (code, message) = ends(&mut envoy);
    assert_eq!(code, Code::InvalidArgument);
    assert!(
        message.contains("more than 20000 parts; send fewer at once"),
        "{message}"
    );
    let mut envoy = Envoy::of(&server);
    for from in [0, 4_000, 8_000] {
        envoy.report_many("shop", (from..from + 4_000).map(|at| at.to_string()));
    }
    let (code, message) = ends(&mut envoy);
    assert_eq!(code, Code::InvalidArgument);
    assert!(
        message.contains("more than 10000 buckets; make fewer"),
        "{message}"
    );
    let gone = || server.metric("tidegate_grpc_quota_buckets") == 0;
    tidegate_redis_servers::eventually("its buckets are gone", gone);
    let mut envoy = Envoy::of(&server);
    envoy.report_many(&"x".repeat(1_025), ["all".to_owned()]);
    assert_eq!(ends(&mut envoy).0, Code::InvalidArgument);
    // A value that a client of an Envoy makes long ends nothing.
    let mut envoy = Envoy::of(&server);
    envoy.report_many("shop", ["x".repeat(5_000), "all".to_owned()]);
    assert_eq!(envoy.told(), "all");
    assert_eq!(server.metric("tidegate_grpc_quota_buckets"), 1);
}

/// A report of 2 MB: a million buckets without a name.
pub fn empty_report() -> RateLimitQuotaUsageReports {
    let usages = vec![BucketQuotaUsage::default(); 1_000_000];
    RateLimitQuotaUsageReports {
        domain: "shop".to_owned(),
        bucket_quota_usages: usages,
    }
}
