//! Envoy's rate limit service, asked by a gRPC client.
#![cfg(feature = "grpc")]

mod harness;

use std::time::Duration;

use envoy_types::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{
            RateLimitDescriptor,
            rate_limit_descriptor::{Entry, RateLimitOverride},
        },
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
            rate_limit_service_client::RateLimitServiceClient,
        },
        r#type::v3::RateLimitUnit,
    },
    google::protobuf::UInt64Value,
};
use harness::{Running, scratch};
use serde_json::json;
use tidegate_core::Nanos;
use tidegate_server::{Options, rate_limits::Consume};
use tokio::runtime::Runtime;
use tonic::{Status, transport::Channel};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// A quarter of an hour after noon of some day.
const START: Nanos = Nanos::from_secs(1_700_049_600 + 900);

const CONFIG: &str = "
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

fn options(name: &str, config: &str) -> Options {
    let path = scratch(name).join("shop.yaml");
    std::fs::write(&path, config).unwrap();
    Options { grpc: Some("127.0.0.1:0".to_owned()), envoy_config: Some(path), ..Options::default() }
}

fn serving(name: &str, config: &str) -> Running {
    Running::start_at(options(name, config), START)
}

struct Client {
    runtime: Runtime,
    rls: RateLimitServiceClient<Channel>,
    health: HealthClient<Channel>,
}

impl Client {
    fn of(server: &Running) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let address = format!("http://{}", server.grpc);
        let channel = runtime.block_on(Channel::from_shared(address).unwrap().connect()).unwrap();
        let rls = RateLimitServiceClient::new(channel.clone());
        Self { runtime, rls, health: HealthClient::new(channel) }
    }

    fn try_ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let answer = self.runtime.block_on(self.rls.should_rate_limit(request));
        answer.map(tonic::Response::into_inner)
    }

    fn ask(&mut self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.try_ask(request("shop", descriptors)).unwrap()
    }

    /// The overall code, and for each descriptor its code and what remains, as `OVER: OVER/0 OK/2`.
    fn told(&mut self, descriptors: Vec<RateLimitDescriptor>) -> String {
        shown(&self.ask(descriptors))
    }

    fn health(&mut self, service: &str) -> Result<i32, Status> {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = self.runtime.block_on(self.health.check(request));
        answer.map(|answer| answer.into_inner().status)
    }
}

fn shown(answer: &RateLimitResponse) -> String {
    let code = |code| if code == i32::from(Code::Ok) { "OK" } else { "OVER" };
    let status = |status: &DescriptorStatus| format!(" {}/{}", code(status.code), status.limit_remaining);
    format!("{}:{}", code(answer.overall_code), answer.statuses.iter().map(status).collect::<String>())
}

fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.to_owned(), descriptors, hits_addend: 0 }
}

fn one(key: &str, value: &str) -> RateLimitDescriptor {
    let entries = vec![Entry { key: key.to_owned(), value: value.to_owned() }];
    RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }
}

fn hits(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value: hits }), ..descriptor }
}

fn refund(descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor }
}

#[test]
fn an_answer_says_everything_about_each_descriptor_in_order() {
    let server = serving("grpc-answer", CONFIG);
    let mut client = Client::of(&server);
    let answer =
        client.ask(vec![one("user", "ada"), one("unknown", "x"), one("vipp", "x"), one("team", "t")]);
    assert_eq!(shown(&answer), "OK: OK/2 OK/0 OK/0 OK/8");
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit()), ("users", 3, Unit::Minute));
    assert_eq!(answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds, 60);
    assert_eq!((&answer.statuses[1].current_limit, &answer.statuses[1].duration_until_reset), (&None, &None));
    assert_eq!(answer.statuses[3].current_limit.as_ref().unwrap().unit(), Unit::Week);
    let metadata = answer.dynamic_metadata.unwrap();
    assert_eq!(format!("{:?}", metadata.fields["owner"]).matches("payments").count(), 1);
    assert!(answer.response_headers_to_add.is_empty());

    let unknown = client.try_ask(request("elsewhere", vec![one("user", "ada")])).unwrap();
    assert_eq!(shown(&unknown), "OK: OK/0");
}

#[test]
fn windows_are_aligned_to_the_unit_and_a_reset_is_rounded_up_to_a_second() {
    let server = serving("grpc-aligned", CONFIG);
    let mut client = Client::of(&server);
    server.advance(Duration::from_millis(40_300));
    let ada = || vec![one("user", "ada")];
    for left in [2, 1, 0] {
        let answer = client.ask(ada());
        assert_eq!(answer.statuses[0].limit_remaining, left);
        assert_eq!(answer.statuses[0].duration_until_reset.as_ref().unwrap().seconds, 20);
    }
    let denied = client.ask(ada());
    assert_eq!(shown(&denied), "OVER: OVER/0");
    assert_eq!(denied.statuses[0].duration_until_reset.as_ref().unwrap().seconds, 20);
    server.advance(Duration::from_millis(19_699));
    assert_eq!(client.told(ada()), "OVER: OVER/0");
    server.advance(Duration::from_millis(1));
    assert_eq!(client.told(ada()), "OK: OK/2", "a new minute");
}

#[test]
fn a_request_that_one_limit_denies_consumes_nothing_of_the_others() {
    let server = serving("grpc-atomic", CONFIG);
    let mut client = Client::of(&server);
    let both = || vec![one("user", "ada"), one("path", "/cart")];
    assert_eq!(client.told(both()), "OK: OK/2 OK/1");
    assert_eq!(client.told(both()), "OK: OK/1 OK/0");
    for _ in 0..3 {
        assert_eq!(client.told(both()), "OVER: OK/1 OVER/0");
    }
    assert_eq!(client.told(vec![one("user", "ada")]), "OK: OK/0");
}

#[test]
fn a_limit_that_admits_is_charged_for_denied_requests_where_each_consumes() {
    let mut options = options("grpc-each", CONFIG);
    options.envoy_consume = Consume::Each;
    let server = Running::start_at(options, START);
    let mut client = Client::of(&server);
    let both = || vec![one("user", "ada"), one("path", "/cart")];
    assert_eq!(client.told(both()), "OK: OK/2 OK/1");
    assert_eq!(client.told(both()), "OK: OK/1 OK/0");
    assert_eq!(client.told(both()), "OVER: OK/0 OVER/0", "and says what is left then");
    assert_eq!(client.told(vec![one("user", "ada")]), "OVER: OVER/0");
}

#[test]
fn many_requests_at_once_are_never_admitted_beyond_either_limit() {
    let config = "
domain: shop
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 150}}
  - {key: b, rate_limit: {unit: hour, requests_per_unit: 100}}
";
    let server = serving("grpc-stress", config);
    let client = Client::of(&server);
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
                        let answer = rls.should_rate_limit(request("shop", descriptors)).await.unwrap();
                        admitted += usize::from(answer.into_inner().overall_code == i32::from(Code::Ok));
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
    assert_eq!(Client::of(&server).told(vec![hits(0, one("a", "x"))]), "OK: OK/50", "denials took nothing");
}

#[test]
fn shadow_quota_unlimited_and_replacing_rules_do_as_the_configuration_says() {
    let server = serving("grpc-modes", CONFIG);
    let mut client = Client::of(&server);
    for told in ["OK: OK/0", "OK: OK/0"] {
        assert_eq!(client.told(vec![one("quiet", "x")]), told);
    }
    assert_eq!(server.metric(r#"tidegate_envoy_shadow_mode_total{domain="shop",rule="quiet"}"#), 1);

    // A request is denied when both quotas are used up, and a quota that is used up is left alone.
    let pools = || vec![one("pool", "a"), one("pool", "b")];
    assert_eq!(client.told(pools()), "OK: OK/0 OK/1");
    assert_eq!(client.told(pools()), "OK: OVER/0 OK/0");
    assert_eq!(client.told(pools()), "OVER: OVER/0 OVER/0");
    // A plain limit denies by itself, and then no quota is charged.
    let server = serving("grpc-quota", CONFIG);
    let mut client = Client::of(&server);
    client.ask(vec![hits(2, one("path", "/cart"))]);
    assert_eq!(client.told([pools(), vec![one("path", "/cart")]].concat()), "OVER: OK/1 OK/2 OVER/0");
    assert_eq!(client.told(pools()), "OK: OK/0 OK/1");

    let vip = || vec![one("user", "ada"), one("vip", "yes")];
    for _ in 0..5 {
        assert_eq!(client.told(vip()), format!("OK: OK/0 OK/{}", u32::MAX));
    }
    assert_eq!(client.told(vec![one("user", "ada")]), "OK: OK/2", "what is replaced is not charged");
}

#[test]
fn hits_add_up_zero_looks_and_negative_ones_give_back() {
    let server = serving("grpc-hits", CONFIG);
    let mut client = Client::of(&server);
    let ada = || one("user", "ada");
    assert_eq!(client.told(vec![hits(2, ada())]), "OK: OK/1");
    assert_eq!(client.told(vec![hits(0, ada())]), "OK: OK/1", "a look");
    assert_eq!(client.told(vec![hits(2, ada())]), "OVER: OVER/0", "two do not fit");
    assert_eq!(client.told(vec![ada(), ada()]), "OVER: OK/1 OVER/0", "two descriptors of one key add up");
    assert_eq!(client.told(vec![refund(hits(1, ada()))]), "OK: OK/2");
    assert_eq!(client.told(vec![refund(hits(9, ada()))]), "OK: OK/3", "no more than was taken");
    // The request's own number is for descriptors that have none; 0 stands for 1.
    let asked =
        RateLimitRequest { hits_addend: 2, ..request("shop", vec![ada(), hits(1, one("path", "/cart"))]) };
    assert_eq!(shown(&client.try_ask(asked).unwrap()), "OK: OK/1 OK/1");
    // A refund beside what is taken, as at a stream's end.
    assert_eq!(client.told(vec![refund(ada()), one("path", "/cart")]), "OK: OK/2 OK/0");
    let error = client.try_ask(request("shop", vec![hits(1 << 40, ada())])).unwrap_err();
    assert_eq!(error.message(), "hits_addend is 1099511627776; it must be at most 4294967295");
}

#[test]
fn a_limit_that_a_request_brings_along_takes_the_place_of_the_rule() {
    let server = serving("grpc-override", CONFIG);
    let mut client = Client::of(&server);
    let with = |requests_per_unit, unit: RateLimitUnit, descriptor| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit, unit: unit.into() }),
        ..descriptor
    };
    let ada = || vec![with(1, RateLimitUnit::Hour, one("user", "ada"))];
    let answer = client.ask(ada());
    assert_eq!(shown(&answer), "OK: OK/0");
    let limit = answer.statuses[0].current_limit.as_ref().unwrap();
    assert_eq!((limit.name.as_str(), limit.requests_per_unit, limit.unit()), ("", 1, Unit::Hour));
    assert_eq!(client.told(ada()), "OVER: OVER/0");
    assert_eq!(client.told(vec![with(1, RateLimitUnit::Hour, one("user", "bob"))]), "OK: OK/0");
    assert_eq!(client.told(vec![one("user", "ada")]), "OK: OK/2", "the rule has a count of its own");
    assert_eq!(client.told(vec![with(1, RateLimitUnit::Day, one("no", "rule"))]), "OK: OK/0");
    let elsewhere = request("elsewhere", ada());
    assert_eq!(shown(&client.try_ask(elsewhere).unwrap()), "OK: OK/0");
    let error =
        client.try_ask(request("shop", vec![with(1, RateLimitUnit::Unknown, one("a", "b"))])).unwrap_err();
    assert_eq!(error.code(), tonic::Code::InvalidArgument);
    // Their number is bounded.
    let mut failed = None;
    for limit in 0..400 {
        if let Err(error) =
            client.try_ask(request("shop", vec![with(limit, RateLimitUnit::Day, one("a", "b"))]))
        {
            failed.get_or_insert((limit, error));
        }
    }
    let (at, error) = failed.expect("a bound");
    assert_eq!((at, error.code()), (255, tonic::Code::ResourceExhausted));
}

#[test]
fn a_rule_with_an_algorithm_of_its_own_says_when_to_come_back() {
    let server = serving("grpc-algorithm", CONFIG);
    let mut client = Client::of(&server);
    client.ask(vec![hits(5, one("smooth", "x"))]);
    server.advance(Duration::from_secs(20));
    assert_eq!(client.told(vec![one("smooth", "x")]), "OK: OK/0");
    server.advance(Duration::from_millis(500));
    let denied = client.ask(vec![one("smooth", "x")]);
    assert_eq!(shown(&denied), "OVER: OVER/0");
    assert_eq!(denied.statuses[0].duration_until_reset.as_ref().unwrap().seconds, 40, "39.5 s, rounded up");
    server.advance(Duration::from_millis(39_500));
    assert_eq!(client.told(vec![one("smooth", "x")]), "OK: OK/4");
}

#[test]
fn a_request_without_domain_or_descriptors_is_refused() {
    let server = serving("grpc-refused", CONFIG);
    let mut client = Client::of(&server);
    let error = client.try_ask(request("", vec![one("a", "b")])).unwrap_err();
    assert!(error.message().starts_with("rate limit domain must not be empty"), "{error}");
    let error = client.try_ask(request("shop", vec![])).unwrap_err();
    assert!(error.message().starts_with("rate limit descriptor list must not be empty"), "{error}");
}

#[test]
fn responses_carry_the_rate_limit_fields_where_they_are_wanted() {
    let mut options = options("grpc-headers", CONFIG);
    options.envoy_headers = true;
    let server = Running::start_at(options, START);
    let answer = Client::of(&server).ask(vec![one("user", "ada"), one("path", "/cart")]);
    let headers: Vec<_> =
        answer.response_headers_to_add.iter().map(|h| format!("{}: {}", h.key, h.value)).collect();
    assert_eq!(headers.len(), 2, "{headers:?}");
    assert!(headers[0].starts_with(r#"ratelimit-policy: "shop.user";q=3;w=60, "shop.path"#), "{headers:?}");
    assert!(headers[1].starts_with(r#"ratelimit: "shop.user";r=2;t=60, "#), "{headers:?}");
}

#[test]
fn a_changed_configuration_is_used_and_a_bad_one_is_not() {
    let options = options("grpc-reload", CONFIG);
    let path = options.envoy_config.clone().unwrap();
    let mut server = Running::start_at(options, START);
    let mut client = Client::of(&server);
    assert_eq!(client.told(vec![hits(2, one("user", "ada"))]), "OK: OK/1");
    let more = CONFIG.replace("requests_per_unit: 3", "requests_per_unit: 10");
    server.reloading(|| std::fs::write(&path, &more).unwrap());
    assert_eq!(client.told(vec![one("user", "ada")]), "OK: OK/7", "what was used is kept");
    assert_eq!(server.metric(r#"tidegate_envoy_total_hits_total{domain="shop",rule="user"}"#), 3);
    server.reloading(|| std::fs::write(&path, more.replace("unit: minute", "unit: fortnight")).unwrap());
    assert_eq!(client.told(vec![one("user", "ada")]), "OK: OK/6", "the good one goes on");
    server.reloading(|| std::fs::write(&path, CONFIG.replace("key: user", "key: account")).unwrap());
    assert_eq!(client.told(vec![one("user", "ada"), one("account", "ada")]), "OK: OK/0 OK/2");
}

#[test]
fn the_configuration_stands_beside_rules_and_their_names_must_differ() {
    let mut options = options("grpc-beside", CONFIG);
    let rules = scratch("grpc-beside-rules").join("rules.yaml");
    std::fs::write(&rules, "limits: [{name: own, limit: 1/1m}]\n").unwrap();
    options.rules = Some(rules.clone());
    let server = Running::start_at(options.clone(), START);
    assert_eq!(harness::acquire(&server, "own", "a").0, 200);
    // A descriptor's limit can be asked by its name, too: it is one limit.
    assert_eq!(harness::acquire(&server, "shop.user", "ada").1["remaining"], 2);
    assert_eq!(Client::of(&server).told(vec![one("user", "ada")]), "OK: OK/1");
    drop(server);
    std::fs::write(&rules, "limits: [{name: shop.user, limit: 1/1m}]\n").unwrap();
    let error = Running::try_start_at(options, START).err().expect("refused");
    assert!(error.contains("a descriptor's limit is called `shop.user`, as one of the rules is"), "{error}");
}

#[test]
fn json_is_answered_as_the_message_would_be() {
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
    assert_eq!(ask(json!({"domain": "shop", "descriptors": [{"entry": []}]})).0, 400);
    let over = json!({"domain": "shop", "descriptors": [
        {"entries": [{"key": "a"}], "limit": {"requestsPerUnit": 1, "unit": "DAY"}, "hitsAddend": 2}]});
    assert_eq!(ask(over).0, 429);
    let health = server.get("/healthcheck");
    assert_eq!((health.status, health.body.as_str()), (200, "OK"));
}

#[test]
fn dashboards_find_the_counters_of_each_rule() {
    let config = CONFIG.replace("key: user,", "key: user, detailed_metric: true,");
    let server = serving("grpc-metrics", &config);
    let mut client = Client::of(&server);
    for _ in 0..3 {
        client.ask(vec![one("path", "/cart"), one("user", "ada")]);
    }
    let metric = |name: &str, rule: &str| {
        server.metric(&format!("tidegate_envoy_{name}_total{{domain=\"shop\",rule=\"{rule}\"}}"))
    };
    let of = |rule: &str| {
        ["total_hits", "within_limit", "near_limit", "over_limit"].map(|name| metric(name, rule))
    };
    assert_eq!(of("path_/cart"), [3, 2, 1, 1]);
    // What another limit denied is not counted: it neither used this limit nor went over it.
    assert_eq!(of("user_ada"), [2, 2, 0, 0]);
    assert_eq!(server.metric(r#"tidegate_grpc_requests_total{code="OVER_LIMIT"}"#), 1);
    assert_eq!(server.metric(r#"tidegate_grpc_requests_total{code="OK"}"#), 2);
    assert_eq!(server.metric("tidegate_grpc_connections"), 1);
}

#[test]
fn health_is_told_by_the_grpc_health_protocol() {
    let server = serving("grpc-health", CONFIG);
    let mut client = Client::of(&server);
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        let mut told = client.health(service);
        tidegate_redis_servers::eventually("the first report is there", || {
            told = client.health(service);
            told.as_ref().is_ok_and(|status| *status == 1)
        });
    }
    assert_eq!(client.health("other").unwrap_err().code(), tonic::Code::NotFound);
}

#[test]
fn a_client_that_resets_streams_as_fast_as_it_opens_them_loses_its_connection() {
    let server = serving("grpc-resets", CONFIG);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ended = runtime.block_on(async {
        let stream = tokio::net::TcpStream::connect(server.grpc).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        let ended = tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        for _ in 0..100_000 {
            let path = "http://a/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
            let request =
                axum::http::Request::post(path).header("content-type", "application/grpc").body(()).unwrap();
            match client.send_request(request, false) {
                Ok((_, mut stream)) => stream.send_reset(h2::Reason::CANCEL),
                Err(_) => break,
            }
            match client.ready().await {
                Ok(ready) => client = ready,
                Err(_) => break,
            }
            if ended.is_finished() {
                break;
            }
            tokio::task::yield_now().await;
        }
        tokio::time::timeout(harness::PATIENCE, ended).await.expect("the connection should end").unwrap()
    });
    // The last word may be lost, as the client is still writing.
    let error = ended.expect_err("the server should close the connection");
    assert!(error.reason().is_none_or(|reason| reason == h2::Reason::ENHANCE_YOUR_CALM), "{error}");
    let failed = || server.metric("tidegate_grpc_connections_failed_total") == 1;
    tidegate_redis_servers::eventually("the connection is counted as failed", failed);
    assert_eq!(Client::of(&server).told(vec![one("user", "x")]), "OK: OK/2", "others are served");
}

#[test]
fn connections_that_begin_slowly_keep_nobody_out() {
    use std::{io::Write, net::TcpStream};
    let mut options = options("grpc-loris", CONFIG);
    options.max_connections = 8;
    let server = Running::start_at(options, START);
    // Half of HTTP/2's greeting, and all of it with a frame of headers that never ends.
    let beginnings: [&[u8]; 2] = [
        b"PRI * HTTP/2.0\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\x01\0\0\0\x01\x82",
    ];
    let mut slow = Vec::new();
    for at in 0..40 {
        let mut stream = TcpStream::connect(server.grpc).unwrap();
        // It may have given way already.
        let _ = stream.write_all(beginnings[at % 2]);
        slow.push(stream);
    }
    assert_eq!(Client::of(&server).told(vec![one("user", "x")]), "OK: OK/2");
    assert!(server.metric("tidegate_grpc_connections_evicted_total") > 0);
}

#[test]
fn headers_and_messages_beyond_their_bounds_are_refused() {
    let server = serving("grpc-flood", CONFIG);
    let mut client = Client::of(&server);
    let huge = "x".repeat(100 * 1024);
    let error = client.try_ask(request("shop", vec![one("user", &huge)])).unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error}");
    let mut flood = tonic::Request::new(request("shop", vec![one("user", "ada")]));
    for at in 0..40 {
        let name = tonic::metadata::MetadataKey::from_bytes(format!("h{at}").as_bytes()).unwrap();
        flood.metadata_mut().insert(name, "x".repeat(1024).parse().unwrap());
    }
    assert!(client.runtime.block_on(client.rls.should_rate_limit(flood)).is_err());
    assert_eq!(Client::of(&server).told(vec![one("user", "ada")]), "OK: OK/2", "nothing was taken");
}

#[cfg(feature = "servers")]
mod shared {
    use tidegate_redis_servers::{Server, eventually};

    use super::*;

    fn on_store(name: &str, address: &str, config: &str) -> Running {
        let mut options = options(name, config);
        options.store = Some(address.to_owned());
        options.store_deadline = Duration::from_secs(5).into();
        let server = Running::start_at(options, START);
        eventually("the store has been reached", || server.get("/readyz").json()["status"] == "ready");
        server
    }

    #[test]
    fn servers_share_the_limits_of_descriptors_over_a_store() {
        let config = CONFIG.replace("unit: minute", "unit: year").replace("unit: hour", "unit: year");
        let redis = Server::start(&[]);
        let [one_server, other] =
            ["one", "other"].map(|name| on_store(&format!("grpc-store-{name}"), &redis.address(), &config));
        let (mut here, mut there) = (Client::of(&one_server), Client::of(&other));
        let both = || vec![one("user", "ada"), one("path", "/cart")];
        assert_eq!(here.told(both()), "OK: OK/2 OK/1");
        assert_eq!(there.told(both()), "OK: OK/1 OK/0");
        assert_eq!(here.told(both()), "OVER: OK/1 OVER/0");
        assert_eq!(there.told(vec![one("user", "ada")]), "OK: OK/0");
        assert_eq!(here.told(vec![refund(one("user", "ada"))]), "OK: OK/1");
        let year = vec![RateLimitDescriptor {
            limit: Some(RateLimitOverride { requests_per_unit: 1, unit: RateLimitUnit::Year.into() }),
            ..one("user", "ada")
        }];
        assert_eq!(here.told(year.clone()), "OK: OK/0");
        assert_eq!(there.told(year), "OVER: OVER/0");
    }
}
