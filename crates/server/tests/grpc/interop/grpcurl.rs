//! grpcurl, which knows of the services only what the server's reflection says.

use std::{env, process::Command};

use serde_json::{Value, json};

use crate::{
    harness::Running,
    rls::{CONFIG, serving},
};

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// What grpcurl prints, or its error. `data` is the message to send; `what` is a method, or a
/// command with its subject.
fn grpcurl(server: &Running, data: Option<&Value>, what: &[&str]) -> Result<String, String> {
    let program = env::var_os("TIDEGATE_GRPCURL")
        .expect("TIDEGATE_GRPCURL names the program; scripts/test.sh --interop fetches it");
    let mut command = Command::new(program);
    command.args(["-plaintext", "-max-time", "20"]);
    if let Some(data) = data {
        command.args(["-d", &data.to_string()]);
    }
    let output = command
        .arg(server.grpc.to_string())
        .args(what)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() {
        Ok(text(output.stdout))
    } else {
        Err(text(output.stderr))
    }
}

#[test]
#[ignore = "needs grpcurl: run TIDEGATE_LONG=1 scripts/test.sh --interop"]
fn grpcurl_lists_describes_and_calls_the_services() {
    let server = serving("interop-grpcurl", CONFIG);
    let services = grpcurl(&server, None, &["list"]).unwrap();
    for service in [
        SERVICE,
        "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
        "grpc.health.v1.Health",
    ] {
        assert!(
            services.lines().any(|line| line == service),
            "{service} is not in {services}"
        );
    }
    let method = format!("{SERVICE}/ShouldRateLimit");
    let described = grpcurl(
        &server,
        None,
        &["describe", &format!("{SERVICE}.ShouldRateLimit")],
    )
    .unwrap();
    assert!(
        described.contains("( .envoy.service.ratelimit.v3.RateLimitRequest )"),
        "{described}"
    );
    let described = grpcurl(
        &server,
        None,
        &["describe", ".envoy.service.ratelimit.v3.RateLimitRequest"],
    )
    .unwrap();
    assert!(described.contains("uint32 hits_addend = 3;"), "{described}");
    let health = json!({ "service": SERVICE });
    let healthy = grpcurl(&server, Some(&health), &["grpc.health.v1.Health/Check"]).unwrap();
    assert!(healthy.contains("SERVING"), "{healthy}");

    let user = json!({ "entries": [{ "key": "user", "value": "ada" }], "hits_addend": "2" });
    let ask = json!({ "domain": "shop", "descriptors": [user] });
    let answer = |told: &str| -> Value { serde_json::from_str(told).unwrap() };
    let admitted = answer(&grpcurl(&server, Some(&ask), &[&method]).unwrap());
    assert_eq!(
        (
            &admitted["overallCode"],
            &admitted["statuses"][0]["limitRemaining"]
        ),
        (&json!("OK"), &json!(1))
    );
    assert_eq!(
        admitted["statuses"][0]["currentLimit"],
        json!({ "name": "users", "requestsPerUnit": 3, "unit": "MINUTE" })
    );
    let denied = answer(&grpcurl(&server, Some(&ask), &[&method]).unwrap());
    assert_eq!(denied["overallCode"], "OVER_LIMIT");
    let refused = grpcurl(&server, Some(&json!({ "domain": "shop" })), &[&method]).unwrap_err();
    assert!(
        refused.contains("Code: InvalidArgument") && refused.contains("add `rate_limits`"),
        "{refused}"
    );
}
