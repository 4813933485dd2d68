//! The quotas of Envoy AI Gateway: what its own translator and extension server make of its
//! resources, served by its own control plane to `tidegate`, and asked by a real Envoy. A filter in
//! Lua stands in for AI Gateway's own, which counts tokens.

use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tidegate_redis_servers::{eventually, free_port};

use crate::{
    envoy::{Envoy, program, route, typed},
    program::Serving,
    rls::grpc,
    web::{Answer, Client, backend},
};

/// The backend and the model are those that the client names.
const AI_GATEWAY: &str = r#"
local namespace = "io.envoy.ai_gateway"
function envoy_on_request(request)
  local metadata, headers = request:streamInfo():dynamicMetadata(), request:headers()
  metadata:set(namespace, "ai_service_backend_name", headers:get("x-backend"))
  metadata:set(namespace, "model_name_override", headers:get("x-model"))
end
function envoy_on_response(response)
  local metadata = response:streamInfo():dynamicMetadata()
  local limits = metadata:get("envoy.filters.http.ratelimit") or {}
  local passed = {}
  for _, target in ipairs(limits.passedBackends or {}) do passed[#passed + 1] = target.backend_name end
  response:headers():add("x-passed", table.concat(passed, " "))
  for chunk in response:bodyChunks() do
    local text = chunk:length() > 0 and chunk:getBytes(0, chunk:length()) or ""
    local tokens = string.match(tostring(text), '"total_tokens":(%d+)')
    if tokens then
      response:streamInfo():dynamicMetadata():set(namespace, "quota_cost", tonumber(tokens))
    end
  end
end
"#;

/// The series that count the hits of each limit.
const HITS: &str = "\ntidegate_envoy_total_hits_total{";

/// AI Gateway, which is killed when the test ends.
struct AiGateway {
    child: Child,
    port: u16,
    /// The filter, and the route of each `AIGatewayRoute`.
    made: Value,
}

impl AiGateway {
    fn of(resources: &str) -> Self {
        let port = free_port();
        let program = env::var_os("TIDEGATE_AI_GATEWAY_QUOTAS")
            .expect("scripts/servers.sh ai-gateway-quotas names it");
        let mut child = Command::new(program)
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(resources.as_bytes()).unwrap();
        drop(stdin);
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let made = serde_json::from_str(&line).expect("it makes a filter and routes");
        Self { child, port, made }
    }
}

impl Drop for AiGateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// AI Gateway, Tidegate and Envoy with the route of this name.
struct World {
    _gateway: AiGateway,
    server: Serving,
    envoy: Envoy,
}

impl World {
    fn new(name: &str, resources: &str) -> Self {
        let gateway = AiGateway::of(resources);
        let url = format!(
            "http://127.0.0.1:{}?node=envoy-ai-gateway-ratelimit",
            gateway.port
        );
        let server = Serving::with(&[
            "--grpc",
            "127.0.0.1:0",
            "--envoy-xds",
            &url,
            "--envoy-metadata",
        ]);
        eventually("the rules are in force", || {
            server.get("/metrics").contains(HITS)
        });
        let lua = typed(
            "filters.http.lua.v3.Lua",
            json!({ "default_source_code": { "inline_string": AI_GATEWAY } }),
        );
        let lua = json!({ "name": "envoy.filters.http.lua", "typed_config": lua });
        let filter = gateway.made["filter"].to_string();
        let filter: Value =
            serde_json::from_str(&filter.replace("ai_gateway_ratelimit_cluster", "tidegate"))
                .unwrap();
        let limits = gateway.made[name]["typedPerFilterConfig"].clone();
        assert!(limits.is_object(), "{}", gateway.made);
        let routes = json!([route("/", json!({ "typed_per_filter_config": limits }))]);
        let envoy = Envoy::start(
            &format!("ai-gateway-{name}"),
            &json!([lua, filter]),
            &routes,
            &grpc(&server),
            backend(),
        );
        Self {
            _gateway: gateway,
            server,
            envoy,
        }
    }

    /// A request to this backend and model, with an answer of these tokens.
    fn ask(&self, (backend, model): (&str, &str), tokens: u32, field: &str) -> Answer {
        let fields = [
            &*format!("x-backend: default/{backend}"),
            &*format!("x-model: {model}"),
            field,
        ];
        Client::of(self.envoy.port).get(&format!("/chat/{tokens}"), &fields)
    }

    /// The hits of all limits.
    fn hits(&self) -> u64 {
        let metrics = self.server.get("/metrics");
        let lines = metrics.lines();
        lines
            .filter(|line| line.starts_with(HITS.trim_start()))
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }

    fn counts(&self, hits: u64) {
        eventually("the tokens are reported", || self.hits() == hits);
    }
}

/// The requests and the numbers of AI Gateway's own end-to-end test.
#[test]
#[ignore = "needs Go, which builds for three minutes: TIDEGATE_LONG=1 scripts/test.sh --interop"]
fn interop_ai_gateways_own_quota_is_enforced() {
    if program().is_none() {
        return;
    }
    let module = env::var("TIDEGATE_AI_GATEWAY").expect("scripts/servers.sh ai-gateway names it");
    let file = "tests/e2e/testdata/backend_quota_ratelimit.yaml";
    let resources = fs::read_to_string(Path::new(&module).join(file)).unwrap();
    let world = World::new("quota-test-model", &resources);
    let target = (
        "envoy-ai-gateway-quota-ratelimit-testupstream",
        "quota-test-model",
    );
    assert_eq!(world.ask(target, 20, "x-any: 1").status, 200);
    world.counts(21);
    assert_eq!(world.ask(target, 5, "x-any: 1").status, 429);
    world.counts(22);
}

/// Two backends with a model each, and tenants of the first one.
const RESOURCES: &str = r"
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: one, namespace: default}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIServiceBackend
metadata: {name: two, namespace: default}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: both, namespace: default}
spec:
  rules:
    - backendRefs:
        - {name: one, modelNameOverride: large}
        - {name: two, modelNameOverride: small}
---
apiVersion: aigateway.envoyproxy.io/v1beta1
kind: AIGatewayRoute
metadata: {name: first, namespace: default}
spec: {rules: [{backendRefs: [{name: one, modelNameOverride: large}]}]}
---
apiVersion: aigateway.envoyproxy.io/v1alpha1
kind: QuotaPolicy
metadata: {name: one, namespace: default}
spec:
  targetRefs: [{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: one}]
  perModelQuotas:
    - modelName: large
      quota:
        defaultBucket: {limit: 100, duration: 1d}
        bucketRules:
          - clientSelectors: [{headers: [{name: x-tenant-id, type: Exact, value: a}]}]
            quota: {limit: 10, duration: 1d}
---
apiVersion: aigateway.envoyproxy.io/v1alpha1
kind: QuotaPolicy
metadata: {name: two, namespace: default}
spec:
  targetRefs: [{group: aigateway.envoyproxy.io, kind: AIServiceBackend, name: two}]
  perModelQuotas: [{modelName: small, quota: {defaultBucket: {limit: 50, duration: 1d}}}]
";

/// The cases of AI Gateway's issue 2460: a model that is used up leaves the others, the list of
/// backends says which they are, and a tenant's quota is enforced.
#[test]
#[ignore = "needs Go, which builds for three minutes: TIDEGATE_LONG=1 scripts/test.sh --interop"]
fn interop_ai_gateways_models_and_tenants_have_quotas_of_their_own() {
    if program().is_none() {
        return;
    }
    let both = World::new("both", RESOURCES);
    let (one, two) = (("one", "large"), ("two", "small"));
    let answer = both.ask(one, 120, "x-any: 1");
    assert_eq!(
        (answer.status, answer.field("x-passed")),
        (200, "default/one default/two")
    );
    both.counts(122);
    let answer = both.ask(two, 60, "x-any: 1");
    assert_eq!(
        (answer.status, answer.field("x-passed")),
        (200, "default/two")
    );
    both.counts(184);
    assert_eq!(
        both.ask(two, 1, "x-any: 1").status,
        429,
        "no backend is left"
    );

    let first = World::new("first", RESOURCES);
    assert_eq!(first.ask(one, 12, "x-tenant-id: a").status, 200);
    // Each question counts 1, and the report 12, for the tenant and for the model.
    first.counts(26);
    assert_eq!(first.ask(one, 1, "x-tenant-id: a").status, 429);
    assert_eq!(first.ask(one, 1, "x-tenant-id: b").status, 200);
}
