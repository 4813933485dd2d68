//! `--otlp`: what a collector of OpenTelemetry gets from the running program.

use std::fs;

use opentelemetry_proto::tonic::{logs::v1::LogRecord, trace::v1::span::SpanKind};
use tidegate_envoy::pb::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, rate_limit_service_client::RateLimitServiceClient},
};
use tonic::metadata::MetadataValue;

use crate::{
    collector::{Collector, text},
    program::{Serving, request, scratch, tidegate},
};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// One request with a `traceparent`.
fn acquire_within(server: &Serving, sampled: bool) -> String {
    let flags = if sampled { "01" } else { "00" };
    let path =
        format!("/v1/acquire HTTP/1.1\r\ntraceparent: 00-{TRACE}-{PARENT}-{flags}\r\nx-unused:");
    request(
        &server.http,
        "POST",
        &path,
        r#"{"limit":"per-user","key":"alice"}"#,
    )
}

#[test]
fn a_collector_gets_spans_metrics_and_logs_over_http_the_last_of_them_when_the_server_stops() {
    let collector = Collector::start();
    let mut command = tidegate();
    command.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--log-level",
        "debug",
    ]);
    // Nothing is sent at an interval: what comes is the last flush.
    command.args([
        "--otlp",
        &format!("http://{}", collector.address),
        "--otlp-sample",
        "0",
    ]);
    command
        .env("OTEL_BSP_SCHEDULE_DELAY", "3600000")
        .env("OTEL_BLRP_SCHEDULE_DELAY", "3600000");
    command
        .env("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
        .env("OTEL_EXPORTER_OTLP_HEADERS", "x-token=sesame");
    let server = Serving::run(&mut command);
    assert!(
        server
            .told
            .contains(&format!("OTLP   http://{}", collector.address)),
        "{}",
        server.told
    );
    assert!(acquire_within(&server, true).starts_with("HTTP/1.1 200"));
    // Not sampled by its sender, and without a sender by the option.
    assert!(acquire_within(&server, false).starts_with("HTTP/1.1 200"));
    assert!(
        server
            .post(r#"{"limit":"per-user","key":"alice"}"#)
            .starts_with("HTTP/1.1 200")
    );
    assert!(
        server
            .post(r#"{"limit":"nobody"}"#)
            .starts_with("HTTP/1.1 404")
    );
    assert!(server.ask("ACQUIRE logins alice").starts_with("*5 :0"));
    server.signal("TERM");
    assert_eq!(server.ended(), Some(0));

    collector.until("one span", |got| {
        assert!(got.spans.len() < 2, "{:?}", got.spans);
        let span = got.span("POST /v1/acquire")?;
        assert_eq!(
            (
                hex(&span.trace_id).as_str(),
                hex(&span.parent_span_id).as_str()
            ),
            (TRACE, PARENT)
        );
        assert_eq!(span.kind, SpanKind::Server as i32);
        for (name, value) in [
            ("http.request.method", "POST"),
            ("http.route", "/v1/acquire"),
            ("url.path", "/v1/acquire"),
            ("http.response.status_code", "200"),
            ("network.protocol.version", "1.1"),
        ] {
            assert_eq!(text(&span.attributes, name), value, "{name}");
        }
        let version = env!("CARGO_PKG_VERSION").to_owned();
        assert_eq!(got.resources, [("tidegate".to_owned(), version)]);
        Some(())
    });
    let of = |limit, outcome| [("limit", limit), ("outcome", outcome)];
    let (count, seen) = collector.until("metrics", |got| {
        let seen = got.value("tidegate.decisions", &of("logins", "allowed"))?;
        Some((
            got.value("tidegate.decisions", &of("per-user", "allowed"))?,
            seen,
        ))
    });
    assert_eq!((count, seen), (3, 1));
    let requests = |status| {
        let at = [
            ("http.route", "/v1/acquire"),
            ("http.response.status_code", status),
        ];
        collector.until("durations", |got| {
            got.count("http.server.request.duration", &at)
        })
    };
    assert_eq!((requests("200"), requests("404")), (3, 1));
    collector.until("the log", |got| {
        got.log("stopping: no new connections").map(|_| ())
    });
    let logged = collector.until("the log of a request", |got| {
        let of_traced = |log: &&LogRecord| hex(&log.trace_id) == TRACE;
        got.logs.iter().find(of_traced).cloned()
    });
    assert_eq!(
        (
            text(&logged.attributes, "path"),
            text(&logged.attributes, "status")
        ),
        ("/v1/acquire".into(), "200".into())
    );
    collector.until("all paths with the token", |got| {
        let all = ["/v1/traces", "/v1/metrics", "/v1/logs"];
        let has = |path: &&str| {
            got.asked
                .contains(&((*path).to_owned(), "sesame".to_owned()))
        };
        all.iter().all(has).then_some(())
    });
}

#[test]
fn grpc_is_spoken_on_demand_and_calls_of_envoy_are_traced() {
    let collector = Collector::start();
    let directory = scratch("otlp");
    let (rules, envoy) = (directory.join("rules.yaml"), directory.join("envoy.yaml"));
    fs::write(&rules, "limits:\n  - {name: a, limit: 5/1m}\n").unwrap();
    fs::write(
        &envoy,
        "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {unit: minute, requests_per_unit: 1}\n",
    )
    .unwrap();
    let mut command = tidegate();
    command.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--grpc",
        "127.0.0.1:0",
    ]);
    command
        .arg("--rules")
        .arg(&rules)
        .arg("--envoy-config")
        .arg(&envoy);
    command.args(["--otlp-protocol", "grpc", "--otlp-sample", "1"]);
    // The variables of OpenTelemetry are enough to turn it on.
    command.env(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        format!("http://{}", collector.address),
    );
    command
        .env("OTEL_SERVICE_NAME", "limits")
        .env("OTEL_BSP_SCHEDULE_DELAY", "50");
    command
        .env("OTEL_BLRP_SCHEDULE_DELAY", "50")
        .env("OTEL_METRIC_EXPORT_INTERVAL", "200");
    let server = Serving::run(&mut command);

    assert!(
        server
            .post(r#"{"limit":"a","key":"k"}"#)
            .starts_with("HTTP/1.1 200")
    );
    let begun = collector.until("a trace that begins here", |got| {
        assert!(
            got.resources.iter().all(|(name, _)| name == "limits"),
            "{:?}",
            got.resources
        );
        got.span("POST /v1/acquire").cloned()
    });
    assert!(
        begun.parent_span_id.is_empty() && begun.trace_id.iter().any(|byte| *byte != 0),
        "{begun:?}"
    );

    let line = server
        .told
        .lines()
        .find_map(|line| line.trim().strip_prefix("gRPC"))
        .unwrap();
    let grpc = format!("http://{}", line.trim().split(',').next().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let ask = |domain: &str| {
        let entry = Entry {
            key: "k".into(),
            value: "v".into(),
        };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry],
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: domain.into(),
            descriptors: vec![descriptor],
            ..RateLimitRequest::default()
        };
        let mut request = tonic::Request::new(request);
        let parent = MetadataValue::try_from(format!("00-{TRACE}-{PARENT}-01")).unwrap();
        request.metadata_mut().insert("traceparent", parent);
        let grpc = grpc.clone();
        runtime.block_on(async move {
            RateLimitServiceClient::connect(grpc)
                .await
                .unwrap()
                .should_rate_limit(request)
                .await
        })
    };
    assert!(ask("d").is_ok());
    assert_eq!(ask("").unwrap_err().code(), tonic::Code::InvalidArgument);
    let call = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    collector.until("both calls", |got| {
        let spans: Vec<_> = got.spans.iter().filter(|span| span.name == call).collect();
        let [first, second] = spans[..] else {
            return None;
        };
        for (span, code) in [(first, "OK"), (second, "INVALID_ARGUMENT")] {
            assert_eq!(
                (
                    hex(&span.trace_id).as_str(),
                    hex(&span.parent_span_id).as_str()
                ),
                (TRACE, PARENT)
            );
            assert_eq!(text(&span.attributes, "rpc.response.status_code"), code);
            assert_eq!(text(&span.attributes, "rpc.system.name"), "grpc");
        }
        Some(())
    });
    let at = [("rpc.method", call), ("rpc.response.status_code", "OK")];
    assert_eq!(
        collector.until("durations", |got| got
            .count("rpc.server.call.duration", &at)),
        1
    );
    collector.until("what gRPC counted", |got| {
        (got.value("tidegate.grpc_requests", &[("code", "OK")])? == 1).then_some(())
    });
}

#[test]
fn a_collector_that_is_not_there_delays_neither_answers_nor_the_end() {
    // Nobody listens on this port once the listener is gone.
    let gone = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let server = Serving::with(&["--otlp", &format!("http://{gone}"), "--otlp-sample", "1"]);
    assert!(
        server
            .post(r#"{"limit":"per-user","key":"a"}"#)
            .starts_with("HTTP/1.1 200")
    );
    server.signal("TERM");
    server.logs("the collector did not take the last");
    assert_eq!(server.ended(), Some(0));
}

#[test]
fn what_is_wrong_with_the_options_is_told() {
    for (option, value, told) in [
        ("--otlp", "collector:4317", "as in http://127.0.0.1:4318"),
        ("--otlp-sample", "1.5", "a number from 0 to 1"),
        (
            "--otlp-protocol",
            "json",
            "possible values: grpc, http/protobuf",
        ),
    ] {
        let output = tidegate().args(["serve", option, value]).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && error.contains(told),
            "{option} {value}: {error}"
        );
    }
    let mut command = tidegate();
    command
        .args(["serve", "--otlp", "http://127.0.0.1:4318"])
        .env("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such.pem");
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && error.contains("OTEL_EXPORTER_OTLP_CERTIFICATE: /no/such.pem"),
        "{error}"
    );
}
