//! The files in `packaging/` fit this program: their rules load, and their options and metrics exist.

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
        &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())]
    };
    text.match_indices(prefix).map(|(at, _)| part(at)).filter(|word| word.len() > prefix.len()).collect()
}

/// The block of a YAML file below a line, without its indentation.
fn block(text: &str, below: &str) -> String {
    let mut lines = text.lines().skip_while(|line| line.trim() != below).skip(1).peekable();
    let indent = lines.peek().map_or(0, |line| line.len() - line.trim_start().len());
    assert!(indent > 0, "there is no {below}");
    let inside = |line: &&str| line.len() - line.trim_start().len() >= indent;
    lines.take_while(inside).map(|line| line[indent..].to_owned() + "\n").collect()
}

#[test]
fn its_rules_load() {
    let values = read("helm/tidegate/values.yaml");
    let rules = [
        ("file", read("rules.yaml")),
        ("kubernetes", block(&read("kubernetes/tidegate.yaml"), "rules.yaml: |")),
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
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[cfg(feature = "grpc")]
fn envoy_finds_its_configuration_and_a_grpc_port_in_kubernetes() {
    let plain = read("kubernetes/tidegate.yaml");
    loads("kubernetes-envoy", &block(&plain, "ratelimit.yaml: |"));
    // What values.yaml shows in a comment is a list with one domain.
    let values = read("helm/tidegate/values.yaml");
    let shown = values.lines().skip_while(|line| *line != "envoy: []").skip(1);
    let shown: Vec<&str> = shown.map_while(|line| line.strip_prefix("#  ")).collect();
    let domain: String = shown.iter().map(|line| line[2..].to_owned() + "\n").collect();
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

/// Other pods may ask for decisions and nothing else: the control plane is on the loopback address, and a listener without
/// credentials shows no metrics and no rules.
#[test]
fn pods_without_credentials_only_get_decisions() {
    let plain = read("kubernetes/tidegate.yaml");
    assert!(plain.contains("{ name: TIDEGATE_ADMIN, value: \"127.0.0.1:8082\" }"));
    assert!(plain.contains("kind: NetworkPolicy") && !plain.contains("containerPort: 8082"));
    let everywhere =
        ["serve", "--http", "0.0.0.0:0", "--resp", "0.0.0.0:0", "--admin", "0.0.0.0:0", "--insecure"];
    let server = Serving::run(tidegate().args(everywhere));
    assert!(server.post(r#"{"limit":"per-user","key":"alice"}"#).starts_with("HTTP/1.1 200"));
    for path in ["/metrics", "/v1/rules", "/v1/top?limit=per-user", "/v1/trace", "/", "/live"] {
        let answer = request(&server.admin, "GET", path, "");
        assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
    }
    let block = request(&server.admin, "POST", "/v1/block", r#"{"limit":"per-user","key":"alice"}"#);
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
        "helm/tidegate/values.yaml",
        "helm/tidegate/templates/deployment.yaml",
    ];
    for file in files {
        let text = read(file);
        let used: Vec<_> = words(&text, "TIDEGATE_").into_iter().collect();
        assert!(!used.is_empty(), "{file} sets no option");
        let unknown: Vec<_> = used.into_iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{file} sets {unknown:?}, which `serve` does not know");
    }
}

#[test]
fn the_metrics_that_it_watches_are_served() {
    let server = Serving::with(&[]);
    server.post(r#"{"limit":"per-user","key":"alice"}"#);
    // An unreachable store has the same metrics as a reachable one.
    let shared = Serving::with(&["--store", "redis://127.0.0.1:1"]);
    let (alone, shared) = (server.get("/metrics"), shared.get("/metrics"));
    let served: BTreeSet<_> =
        [&alone, &shared].into_iter().flat_map(|text| words(text, "tidegate_")).collect();
    for file in ["prometheus/alerts.yaml", "grafana/tidegate.json"] {
        let text = read(file);
        let watched = words(&text, "tidegate_");
        assert!(watched.len() > 5, "{file}: {watched:?}");
        let missing: Vec<_> = watched.difference(&served).collect();
        assert!(missing.is_empty(), "{file} watches {missing:?}, which the server does not serve");
    }
}
