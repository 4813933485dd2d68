//! The files in `packaging/` fit this program: their rules load, and their options and metrics
//! exist.

#[path = "integration/program/mod.rs"]
mod program;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use program::{Serving, request, scratch, tidegate};

fn packaging() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging")
}

fn read(path: &str) -> String {
    fs::read_to_string(packaging().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The words in a text that begin with a prefix and continue with letters, digits and underscores.
fn words<'a>(text: &'a str, prefix: &'a str) -> BTreeSet<&'a str> {
    let part = |from: usize| {
        let rest = &text[from..];
        &rest[..rest
            .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .unwrap_or(rest.len())]
    };
    text.match_indices(prefix)
        .map(|(at, _)| part(at))
        .filter(|word| word.len() > prefix.len())
        .collect()
}

/// The block of a YAML file below a line, without its indentation.
fn block(text: &str, below: &str) -> String {
    let mut lines = text
        .lines()
        .skip_while(|line| line.trim() != below)
        .skip(1)
        .peekable();
    let indent = lines
        .peek()
        .map_or(0, |line| line.len() - line.trim_start().len());
    assert!(indent > 0, "there is no {below}");
    let inside = |line: &&str| line.len() - line.trim_start().len() >= indent;
    lines
        .take_while(inside)
        .map(|line| line[indent..].to_owned() + "\n")
        .collect()
}

#[test]
fn its_rules_load() {
    let values = read("helm/tidegate/values.yaml");
    let rules = [
        ("file", read("rules.yaml")),
        (
            "kubernetes",
            block(&read("kubernetes/tidegate.yaml"), "rules.yaml: |"),
        ),
        ("helm", block(&values, "rules:")),
    ];
    for (name, text) in rules {
        assert!(text.contains("limits:"), "{name}: {text}");
        loads(name, &text);
    }
}

fn loads(name: &str, text: &str) {
    let file = scratch(name).join("rules.yaml");
    fs::write(&file, text).unwrap();
    let output = tidegate().arg("check").arg(&file).output().unwrap();
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
#[cfg(feature = "grpc")]
fn envoy_finds_its_configuration_and_a_grpc_port_in_kubernetes() {
    let plain = read("kubernetes/tidegate.yaml");
    loads("kubernetes-envoy", &block(&plain, "ratelimit.yaml: |"));
    // What values.yaml shows in a comment is a list with one domain.
    let values = read("helm/tidegate/values.yaml");
    let shown = values
        .lines()
        .skip_while(|line| *line != "envoy: []")
        .skip(1);
    let shown: Vec<&str> = shown.map_while(|line| line.strip_prefix("#  ")).collect();
    let domain: String = shown
        .iter()
        .map(|line| line[2..].to_owned() + "\n")
        .collect();
    assert!(shown[0].starts_with("- domain: "), "{shown:?}");
    loads("helm-envoy", &domain);
    let chart = ["deployment", "service", "configuration"]
        .map(|name| read(&format!("helm/tidegate/templates/{name}.yaml")));
    for (name, text) in [("kubernetes", plain), ("helm", chart.concat())] {
        for part in [
            "{ name: TIDEGATE_GRPC, value: \"0.0.0.0:8081\" }",
            "{ name: TIDEGATE_ENVOY_CONFIG, value: /etc/tidegate-envoy }",
            "{ name: grpc, containerPort: 8081 }",
            "{ name: envoy, mountPath: /etc/tidegate-envoy, readOnly: true }",
            "targetPort: grpc",
            "appProtocol: kubernetes.io/h2c",
        ] {
            assert!(text.contains(part), "{name} has no {part}");
        }
    }
}

/// What AI Gateway expects of the service with its quotas.
#[cfg(feature = "grpc")]
mod ai_gateway {
    pub const SERVICE: &str = "envoy-ai-gateway-ratelimit";
    pub const NAMESPACE: &str = "envoy-gateway-system";
    pub const NODE: &str = "envoy-ai-gateway-ratelimit";
    pub const CONTROL_PLANE: &str = "ai-gateway-controller.envoy-ai-gateway-system:18002";
    pub const PORT: u16 = 8081;
}

#[test]
#[cfg(feature = "grpc")]
fn ai_gateway_finds_the_service_with_its_quotas() {
    use ai_gateway::{CONTROL_PLANE, NAMESPACE, NODE, PORT, SERVICE};
    let plain = read("kubernetes/ai-gateway-quota.yaml");
    loads("ai-gateway-shares", &block(&plain, "shares.yaml: |"));
    let kinds = ["Deployment", "Service", "PodDisruptionBudget"];
    for kind in kinds {
        let named =
            format!("kind: {kind}\nmetadata:\n  name: {SERVICE}\n  namespace: {NAMESPACE}\n");
        assert!(plain.contains(&named), "{kind}");
    }
    let address = format!("http://{CONTROL_PLANE}?node={NODE}");
    for part in [
        format!("value: \"{address}\""),
        format!("{{ name: TIDEGATE_GRPC, value: \"0.0.0.0:{PORT}\" }}"),
        format!("{{ name: grpc, port: {PORT}, targetPort: grpc, appProtocol: kubernetes.io/h2c }}"),
    ] {
        assert!(plain.contains(&part), "{part}");
    }
    let chart =
        ["deployment", "service"].map(|name| read(&format!("helm/tidegate/templates/{name}.yaml")));
    let (chart, values) = (chart.concat(), read("helm/tidegate/values.yaml"));
    assert!(values.contains(&format!("controlPlane: {CONTROL_PLANE}\n")));
    assert!(chart.contains(&format!("http://{{{{ .controlPlane }}}}?node={NODE}{{{{")));
    assert!(
        chart.contains(&format!("name: {SERVICE}\n"))
            && chart.contains(&format!("port: {PORT}, targetPort: grpc"))
    );
    // The server takes the address with the options that both files propose.
    let proposed = "&option=hold=2m&option=estimate=p95&option=on_expiry=release";
    assert!(plain.contains(proposed));
    assert!(values.contains("{ hold: 2m, estimate: p95, on_expiry: release }"));
    let address = format!("{address}{proposed}");
    drop(Serving::with(&[
        "--grpc",
        "127.0.0.1:0",
        "--envoy-xds",
        &address,
    ]));
}

/// The same names and ports in the sources of AI Gateway.
#[test]
#[cfg(feature = "grpc")]
#[ignore = "needs Go: scripts/test.sh --interop"]
fn interop_ai_gateways_own_files_have_these_names_and_ports() {
    use ai_gateway::{CONTROL_PLANE, NAMESPACE, NODE, PORT, SERVICE};
    let module =
        std::env::var("TIDEGATE_AI_GATEWAY").expect("scripts/servers.sh ai-gateway names it");
    let read = |file: &str| fs::read_to_string(Path::new(&module).join(file)).unwrap();
    let values = read("manifests/charts/ai-gateway-helm/values.yaml");
    assert!(values.contains(&format!(
        "quotaRateLimitServiceAddr: \"{SERVICE}.{NAMESPACE}\""
    )));
    let (name, port) = CONTROL_PLANE.split_once('.').unwrap();
    assert!(values.contains(&format!("fullnameOverride: \"{name}\"")));
    let port = port.rsplit_once(':').unwrap().1;
    assert!(values.contains(&format!("- name: ratelimit-xds\n        protocol: TCP\n        appProtocol: grpc\n        port: {port}\n")));
    let runner = read("internal/ratelimit/runner/runner.go");
    assert!(
        runner.contains(&format!("NodeID = \"{NODE}\""))
            && runner.contains(&format!("DefaultPort = {port}\n"))
    );
    let envoy = read("internal/extensionserver/quota_ratelimit.go");
    assert!(envoy.contains(&format!("defaultQuotaRateLimitServicePort = {PORT}\n")));
    // The Deployment that its own end-to-end test makes.
    let example = read("tests/e2e/testdata/backend_quota_ratelimit.yaml");
    let (host, port) = CONTROL_PLANE.split_once(':').unwrap();
    assert!(example.contains(&format!("value: {host}.svc.cluster.local:{port}\n")));
    assert!(example.contains(&format!(
        "kind: Deployment\nmetadata:\n  name: {SERVICE}\n  namespace: {NAMESPACE}\n"
    )));
}

/// Other pods may ask for decisions and nothing else: the control plane is on the loopback address,
/// and a listener without credentials shows no metrics and no rules.
#[test]
fn pods_without_credentials_only_get_decisions() {
    let plain = read("kubernetes/tidegate.yaml");
    assert!(plain.contains("{ name: TIDEGATE_ADMIN, value: \"127.0.0.1:8082\" }"));
    assert!(plain.contains("kind: NetworkPolicy") && !plain.contains("containerPort: 8082"));
    let everywhere = [
        "serve",
        "--http",
        "0.0.0.0:0",
        "--resp",
        "0.0.0.0:0",
        "--admin",
        "0.0.0.0:0",
        "--insecure",
    ];
    let server = Serving::run(tidegate().args(everywhere));
    assert!(
        server
            .post(r#"{"limit":"per-user","key":"alice"}"#)
            .starts_with("HTTP/1.1 200")
    );
    for path in [
        "/metrics",
        "/v1/rules",
        "/v1/top?limit=per-user",
        "/v1/trace",
        "/",
        "/live",
    ] {
        let answer = request(&server.admin, "GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
    }
    let block = request(
        &server.admin,
        "POST",
        "/v1/block",
        r#"{"limit":"per-user","key":"alice"}"#,
    );
    assert!(block.starts_with("HTTP/1.1 403"), "{block}");
}

#[test]
fn the_variables_that_it_sets_are_options_of_serve() {
    let help = tidegate().args(["serve", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let known = words(&help, "TIDEGATE_");
    let files = [
        "docker/Dockerfile",
        "docker/compose.yaml",
        "systemd/tidegate.service",
        "kubernetes/tidegate.yaml",
        "kubernetes/ai-gateway-quota.yaml",
        "helm/tidegate/values.yaml",
        "helm/tidegate/templates/deployment.yaml",
    ];
    for file in files {
        let text = read(file);
        let used: Vec<_> = words(&text, "TIDEGATE_").into_iter().collect();
        assert!(!used.is_empty(), "{file} sets no option");
        let unknown: Vec<_> = used
            .into_iter()
            .filter(|name| !known.contains(name))
            .collect();
        assert!(
            unknown.is_empty(),
            "{file} sets {unknown:?}, which `serve` does not know"
        );
    }
}

/// Starts the program with its environment in one network, and asks it from another: prints each
/// request with its status or reply.
#[cfg(all(target_os = "linux", feature = "servers"))]
const FROM_ANOTHER_NETWORK: &str = r#"set -e
log=$1
shift
ip link set lo up
unshare --net sh -c '
    ip link set lo up
    ip link add eth0 type veth peer name pod netns 1
    ip address add 10.0.0.2/24 dev eth0
    ip link set eth0 up
    exec env -i "$@"' sh "$@" >"$log" 2>&1 &
until grep -q "\(is ready\|\"listening\"\)" "$log"; do
    for name in /proc/[0-9]*/stat; do ! grep -q "(tidegate) Z" "$name" || exit 1; done
done
ip address add 10.0.0.1/24 dev pod
ip link set pod up
one='{"limit":"per-address","key":"a"}'
http() {
    echo "$1 $2: $(curl -s -m 9 -o "$log.body" -w "%{http_code}" -X $1 "http://10.0.0.2:$2" -d "$one")"
}
http POST 8080/v1/acquire
for port in 8080 8082; do
    for path in metrics v1/rules v1/top v1/trace v1/audit; do http GET $port/$path; done
    for path in v1/block v1/reset v1/override v1/reload; do http POST $port/$path; done
done
for command in "ACQUIRE per-address b" "TOP per-address" "BLOCK per-address a"; do
    echo "$command: $(redis-cli -h 10.0.0.2 -p 6380 $command 2>&1 | head -1)"
done"#;

#[cfg(all(target_os = "linux", feature = "servers"))]
#[test]
fn a_client_of_another_machine_without_credentials_may_at_most_ask_for_decisions() {
    use std::process::{Command, Stdio};

    let isolated = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let may = Command::new("unshare")
        .args(isolated)
        .arg("true")
        .stderr(Stdio::null())
        .status();
    if !may.is_ok_and(|status| status.success()) {
        eprintln!("no rights for namespaces: the packages are NOT tested from another network");
        return;
    }
    let docker = read("docker/Dockerfile");
    let docker = docker
        .lines()
        .find_map(|line| line.strip_prefix("ENV "))
        .unwrap()
        .split(' ');
    let docker: Vec<String> = docker.map(str::to_owned).collect();
    let in_a_pod = |manifest: &str| {
        let variables = manifest.lines().filter_map(|line| {
            let (name, value) = line
                .trim()
                .strip_prefix("- { name: TIDEGATE_")?
                .split_once(", value: ")?;
            Some(format!(
                "TIDEGATE_{name}={}",
                value.trim_end_matches(" }").trim_matches('"')
            ))
        });
        // The image has the rest.
        docker.iter().cloned().chain(variables).collect::<Vec<_>>()
    };
    let kubernetes = in_a_pod(&read("kubernetes/tidegate.yaml"));
    let systemd = read("systemd/tidegate.service");
    let systemd = systemd
        .lines()
        .filter_map(|line| line.strip_prefix("Environment=").map(str::to_owned));
    let exposed = [
        "TIDEGATE_ADMIN=0.0.0.0:8082",
        "TIDEGATE_INSECURE=true",
        "TIDEGATE_OPEN_METRICS=true",
    ]
    .map(str::to_owned)
    .into_iter();
    let directory = scratch("another-network");
    fs::write(directory.join("envoy.yaml"), "domain: shop\n").unwrap();
    let mut packages = vec![
        ("kubernetes", kubernetes, true),
        ("systemd", systemd.collect::<Vec<_>>(), false),
        ("exposed", exposed.collect(), false),
    ];
    if let Ok(helm) = std::env::var("TIDEGATE_HELM") {
        let chart = packaging().join("helm/tidegate");
        let args = [
            "template",
            "tidegate",
            chart.to_str().unwrap(),
            "--kube-version",
            "1.30.0",
        ];
        let rendered = Command::new(helm).args(args).output().unwrap();
        assert!(
            rendered.status.success(),
            "{}",
            String::from_utf8_lossy(&rendered.stderr)
        );
        packages.push((
            "helm",
            in_a_pod(&String::from_utf8(rendered.stdout).unwrap()),
            true,
        ));
    } else {
        eprintln!("no TIDEGATE_HELM: the chart is NOT tested from another network");
    }
    packages.push(("docker", docker, true));
    for (name, environment, serves) in packages {
        assert!(environment.len() >= 2, "{name}: {environment:?}");
        // These are the files' places on this machine.
        let mut environment: Vec<_> = environment
            .iter()
            .filter(|pair| !pair.contains("=/"))
            .cloned()
            .collect();
        environment.push(format!(
            "TIDEGATE_RULES={}",
            packaging().join("rules.yaml").display()
        ));
        environment.push(format!(
            "TIDEGATE_ENVOY_CONFIG={}",
            directory.join("envoy.yaml").display()
        ));
        let mut command = Command::new("unshare");
        command
            .args(isolated)
            .args(["sh", "-c", FROM_ANOTHER_NETWORK, "sh"])
            .arg(directory.join(name));
        let output = command
            .args(environment)
            .args([env!("CARGO_BIN_EXE_tidegate"), "serve"])
            .output()
            .unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        let log = fs::read_to_string(directory.join(name)).unwrap();
        assert!(
            output.status.success(),
            "{name}: {told}{log}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(told.lines().count(), 22, "{name}: {told}");
        for line in told.lines() {
            let (asked, result) = line.split_once(": ").unwrap();
            let is_decision = asked.contains("acquire") || asked.contains("ACQUIRE");
            let expected: &[&str] = match (is_decision, asked.contains("80")) {
                (true, true) if serves => &["200"],
                (true, false) if serves => &["0"],
                (false, true) if name == "exposed" && asked == "GET 8082/metrics" => &["200"],
                (_, true) => &["000", "401", "403", "404"],
                (_, false) if serves => &["NOPERM "],
                (_, false) => &["Could not connect"],
            };
            assert!(
                expected.iter().any(|expected| result.starts_with(expected)),
                "{name}: {line}"
            );
        }
    }
    fs::remove_dir_all(directory).unwrap();
}
