//! The configurations that kgateway makes for a rate limit service. Its module has the inputs and the
//! outputs of the tests of its translator; a real Envoy runs the outputs.

use std::{env, fs, path::Path};

use serde_json::{Map, Value};
use tidegate_config::{Kind, Node};

use crate::{
    envoy::{Envoy, program},
    program::Serving,
    rls::{grpc, serving_config},
    web::{Client, backend},
};

const OUTPUTS: &str = "pkg/kgateway/translator/gateway/testutils/outputs/traffic-policy";

/// Limits by path, and by all that one policy of several descriptors names.
const CONFIG: &str = "
domain: api-gateway
descriptors:
  - {key: path, rate_limit: {unit: year, requests_per_unit: 2}}
";
const JOINED: &str = "
domain: api-gateway-section
descriptors:
  - key: X-User-Tier
    descriptors:
      - key: endpoint_type
        value: api
        descriptors:
          - key: remote_address
            descriptors:
              - key: path
                descriptors:
                  - key: X-Service-Auth
                    descriptors:
                      - {key: traffic_type, value: internal, rate_limit: {unit: year, requests_per_unit: 2}}
";

/// An output of the translator, with the names of Envoy's clusters in these tests.
fn output(name: &str) -> Value {
    let module = env::var("TIDEGATE_KGATEWAY").expect("scripts/servers.sh kgateway names it");
    let text = fs::read_to_string(Path::new(&module).join(OUTPUTS).join(name)).unwrap();
    let namespace = if text.contains("kube_infra_") {
        "infra"
    } else {
        "default"
    };
    let text = text
        .replace(&format!("kube_{namespace}_ratelimit_8081"), "tidegate")
        .replace(&format!("kube_{namespace}_example-svc_80"), "backend");
    json(&tidegate_config::parse(&text).unwrap().unwrap())
}

fn json(node: &Node) -> Value {
    match &node.kind {
        Kind::Mapping(fields) => {
            let field =
                |(name, value): &(Node, Node)| (name.text().unwrap().to_owned(), json(value));
            Value::Object(fields.iter().map(field).collect::<Map<_, _>>())
        }
        Kind::Sequence(all) => all.iter().map(json).collect(),
        Kind::Scalar { text, plain: true } => {
            serde_json::from_str(text).unwrap_or_else(|_| text.as_str().into())
        }
        Kind::Scalar { text, .. } => text.as_str().into(),
    }
}

/// Envoy with the filters and the routes of an output. A busy machine answers later than within the
/// 50 ms that one of them names.
fn start(name: &str, file: &str, tidegate: &str) -> Envoy {
    let made = output(file);
    let connections = &made["Listeners"][0]["filterChains"][0]["filters"][0]["typedConfig"];
    let mut filters = connections["httpFilters"].as_array().unwrap().clone();
    filters.retain(|filter| filter["name"] != "envoy.filters.http.router");
    for filter in &mut filters {
        if filter["typedConfig"].get("timeout").is_some() {
            filter["typedConfig"]["timeout"] = "30s".into();
            filter["typedConfig"]["failureModeDeny"] = true.into();
            let service = &mut filter["typedConfig"]["rateLimitService"]["grpcService"];
            service.as_object_mut().unwrap().remove("timeout");
        }
    }
    let mut routes = Vec::new();
    for table in made["Routes"].as_array().unwrap() {
        let hosts = table["virtualHosts"].as_array().unwrap().iter();
        for route in hosts.flat_map(|host| host["routes"].as_array().unwrap()) {
            let mut route = route.clone();
            // A policy of a listener is at its table of routes.
            if let Some(of_all) = table.get("typedPerFilterConfig") {
                route["typedPerFilterConfig"] = of_all.clone();
            }
            if route["route"]["cluster"] == "backend" {
                routes.push(route);
            }
        }
    }
    Envoy::start(name, &filters.into(), &routes.into(), tidegate, backend())
}

fn serving(name: &str, config: &str) -> Serving {
    serving_config(name, config, &["--grpc", "127.0.0.1:0"])
}

#[test]
#[ignore = "needs Go: scripts/test.sh --interop"]
fn interop_kgateways_policies_limit_by_path() {
    if program().is_none() {
        return;
    }
    let server = serving("kgateway", CONFIG);
    let envoy = start("kgateway", "rate-limit-full-config.yaml", &grpc(&server));
    let mut client = Client::of(envoy.port);
    for (left, status) in [("1", 200), ("0", 200), ("0", 429)] {
        let answer = client.get("/example-route-2/a", &[]);
        assert_eq!(
            (answer.status, answer.field("x-ratelimit-remaining")),
            (status, left),
            "{answer:?}"
        );
    }
    // The other policy names no header fields, and each path has its own limit.
    for status in [200, 200, 429] {
        let answer = client.get("/example-route/a", &[]);
        assert_eq!(
            (answer.status, answer.field("x-ratelimit-remaining")),
            (status, "")
        );
    }
    assert_eq!(client.get("/example-route-2/b", &[]).status, 200);
    assert_eq!(envoy.stat("ratelimit.error"), 0);
}

/// kgateway makes one descriptor of all that a policy lists, and Envoy sends none if a field is
/// missing.
#[test]
#[ignore = "needs Go: scripts/test.sh --interop"]
fn interop_kgateways_descriptors_are_one_that_needs_all_fields() {
    if program().is_none() {
        return;
    }
    let server = serving("kgateway-joined", JOINED);
    let envoy = start(
        "kgateway-joined",
        "multi-dimensional-descriptors.yaml",
        &grpc(&server),
    );
    let mut client = Client::of(envoy.port);
    let all = ["x-user-tier: gold", "x-service-auth: yes"];
    for status in [200, 200, 429] {
        assert_eq!(client.get("/example-tls-route", &all).status, status);
    }
    assert_eq!(client.get("/example-tls-route", &all[..1]).status, 200);
    assert_eq!(envoy.stat("ratelimit.error"), 0);
}
