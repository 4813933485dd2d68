//! Envoy Gateway with its own Envoy, and `tidegate` as the program of the Deployment that it would
//! make in Kubernetes.
//!
//! The test starts itself again in namespaces of its own, where the names, the ports and the files
//! are those of the Deployment. The program runs in another network, without privileges, and its
//! root holds `/bin/ratelimit`, libraries and certificates, all read-only.

use std::{
    env, fs,
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::{Duration, Instant},
};

use tidegate_redis_servers::eventually;

use crate::{
    envoy::program,
    program::{request, scratch},
    web::{Client, backend},
};

const NAME: &str = "gateway::interop_a_changed_policy_is_in_force_within_a_second";
/// Names the directory of the test that runs inside.
const INSIDE: &str = "TIDEGATE_INSIDE";
const HOSTS: &str = "127.0.0.1 localhost\n10.0.0.1 envoy-gateway redis.redis.svc\n\
    10.0.0.2 envoy-ratelimit.envoy-gateway-system.svc.cluster.local\n";

/// `$1` gets the root: this machine's, but with `/certs` and names from `$2`, and `$3` and so on
/// runs there.
const WORLD: &str = r#"set -e
root=$1 hosts=$2
shift 2
ip link set lo up
mount -t tmpfs none "$root"
for path in /*; do
    if [ -L "$path" ]; then cp -P "$path" "$root"
    elif [ -d "$path" ]; then mkdir "$root$path" && mount --rbind "$path" "$root$path"; fi
done
mount -t proc none "$root/proc"
mount --bind "$hosts" "$root/etc/hosts"
mkdir "$root/certs"
exec chroot "$root" "$@""#;

/// The root `$1` gets the program `$2`, names from `$3` and certificates from `$4`. The rest is the
/// environment.
const POD: &str = r#"set -e
root=$1 program=$2 hosts=$3 certs=$4
shift 4
ip link set lo up
ip link add eth0 type veth peer name pod netns 1
ip address add 10.0.0.2/24 dev eth0
ip link set eth0 up
nsenter --target 1 --net sh -c 'ip address add 10.0.0.1/24 dev pod && ip link set pod up'
mount -t tmpfs none "$root"
mkdir "$root/bin" "$root/lib" "$root/lib64" "$root/etc" "$root/certs"
touch "$root/bin/ratelimit" "$root/etc/hosts"
for pair in "$program bin/ratelimit" "$hosts etc/hosts" "$certs certs" "/lib lib" "/lib64 lib64"; do
    mount --bind "${pair% *}" "$root/${pair#* }"
    mount -o remount,bind,ro "$root/${pair#* }"
done
mount -o remount,ro "$root"
exec env -i "$@" "$(command -v chroot)" --userspec=65534:65534 "$root" /bin/ratelimit"#;

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program with its output in a file.
fn run(command: &mut Command, log: &Path) -> Killed {
    let log = fs::File::create(log).unwrap();
    Killed(
        command
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap(),
    )
}

#[test]
#[ignore = "needs root, Go and Envoy Gateway, whose build takes half an hour: TIDEGATE_LONG=1 scripts/test.sh --interop"]
fn interop_a_changed_policy_is_in_force_within_a_second() {
    if let Some(directory) = env::var_os(INSIDE) {
        return inside(&PathBuf::from(directory));
    }
    let directory = scratch("gateway");
    let [root, hosts] = ["root", "hosts"].map(|name| directory.join(name));
    fs::create_dir(&root).unwrap();
    fs::write(&hosts, HOSTS).unwrap();
    let status = Command::new("unshare")
        .args([
            "--mount",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--propagation=private",
        ])
        .args(["sh", "-c", WORLD, "sh"])
        .args([&root, &hosts, &env::current_exe().unwrap()])
        .args(["--exact", NAME, "--ignored", "--nocapture"])
        .env(INSIDE, &directory)
        .env(
            "TIDEGATE_ENVOY",
            program().expect("TIDEGATE_OFFLINE is not set"),
        )
        .status()
        .expect("util-linux is there");
    assert!(
        status.success(),
        "see above, and the logs in {}",
        directory.display()
    );
    fs::remove_dir_all(directory).unwrap();
}

fn inside(directory: &Path) {
    let at = |name: &str| directory.join(name);
    let text = |name: &str| at(name).to_str().unwrap().to_owned();
    let gateway =
        env::var_os("TIDEGATE_ENVOY_GATEWAY").expect("scripts/servers.sh envoy-gateway names it");
    let gateway = || {
        let mut command = Command::new(&gateway);
        command.env("HOME", directory).current_dir(directory);
        command
    };
    let made = gateway()
        .args(["certgen", "--local", "--config-home", &text("config")])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        fs::copy(
            at("config/certs/envoy").join(file),
            Path::new("/certs").join(file),
        )
        .unwrap();
        // A volume of a secret has these modes.
        Command::new("chmod")
            .arg("644")
            .arg(at("config/certs/envoy-rate-limit").join(file))
            .status()
            .unwrap();
    }
    Command::new("chmod")
        .arg("755")
        .arg(at("config/certs/envoy-rate-limit"))
        .status()
        .unwrap();
    let envoy = at("data/envoy-versions/1.40.0/bin");
    fs::create_dir_all(&envoy).unwrap();
    std::os::unix::fs::symlink(env::var_os("TIDEGATE_ENVOY").unwrap(), envoy.join("envoy"))
        .unwrap();

    let mut redis = Command::new("redis-server");
    redis.args([
        "--port",
        "6379",
        "--bind",
        "0.0.0.0",
        "--protected-mode",
        "no",
        "--save",
        "",
    ]);
    let _redis = run(redis.current_dir(directory), &at("redis.log"));
    let pod = at("pod");
    fs::create_dir(&pod).unwrap();
    let deployment = Deployment::read();
    let mut command = Command::new("unshare");
    command.args([
        "--net",
        "--mount",
        "--propagation=private",
        "sh",
        "-c",
        POD,
        "sh",
    ]);
    command
        .arg(pod)
        .arg(env!("CARGO_BIN_EXE_tidegate"))
        .arg("/etc/hosts")
        .arg(at("config/certs/envoy-rate-limit"));
    let _pod = run(command.args(&deployment.environment), &at("pod.log"));
    let probed = || {
        request(
            &format!("10.0.0.2:{}", deployment.probe),
            "GET",
            "/healthcheck",
            "",
        )
    };
    let probe = format!("10.0.0.2:{}", deployment.probe);
    eventually("the probe's port is open", || {
        TcpStream::connect(&probe).is_ok()
    });
    // Without a configuration, and before the control plane runs.
    eventually("the probe succeeds", || {
        probed().starts_with("HTTP/1.1 200")
    });

    let resources = at("resources");
    fs::create_dir(&resources).unwrap();
    fs::write(
        resources.join("gateway.yaml"),
        RESOURCES.replace("PORT", &backend().to_string()),
    )
    .unwrap();
    let policy = |requests: u32| {
        let new = at("policy.yaml");
        fs::write(&new, POLICY.replace("REQUESTS", &requests.to_string())).unwrap();
        fs::rename(new, resources.join("policy.yaml")).unwrap();
    };
    policy(2);
    fs::write(
        at("gateway.yaml"),
        GATEWAY.replace("DIRECTORY", directory.to_str().unwrap()),
    )
    .unwrap();
    let _gateway = run(
        gateway().args(["server", "--config-path", &text("gateway.yaml")]),
        &at("gateway.log"),
    );

    eventually("Envoy listens", || {
        TcpStream::connect("127.0.0.1:8888").is_ok()
    });
    let mut client = Client::of(8888);
    let mut users = 0..;
    let mut limit = || {
        let user = format!("x-user: {}", users.next().unwrap());
        client
            .get("/", &[&user])
            .field("x-ratelimit-limit")
            .to_owned()
    };
    eventually("the policy is in force", || limit() == "2, 2;w=3600");
    // The file provider itself takes a second and more to read its files.
    let log = || {
        fs::read_to_string(at("gateway.log"))
            .unwrap()
            .matches("reconcile finished")
            .count()
    };
    let mut slowest = Duration::ZERO;
    let mut timed = |act: &dyn Fn(), yes: &mut dyn FnMut() -> bool| {
        let before = log();
        act();
        eventually("Envoy Gateway has read it", || log() > before);
        slowest = slowest.max(until(yes));
    };
    for requests in 3..23 {
        let expected = format!("{requests}, {requests};w=3600");
        timed(&|| policy(requests), &mut || limit() == expected);
    }
    timed(
        &|| fs::remove_file(resources.join("policy.yaml")).unwrap(),
        &mut || limit().is_empty(),
    );
    println!("what Envoy Gateway has read is in force after {slowest:?} at most");
    assert!(slowest < Duration::from_secs(1));

    policy(3);
    eventually("the policy is in force again", || limit() == "3, 3;w=3600");
    assert_eq!(
        client.statuses(5, "/", &["x-user: ada"]),
        [200, 200, 200, 429, 429]
    );
    assert_eq!(client.statuses(1, "/", &["x-user: bob"]), [200]);
    assert_eq!(
        client.statuses(5, "/", &[]),
        [200; 5],
        "the rule asks for a user"
    );
    assert!(probed().starts_with("HTTP/1.1 200"));
    let metrics = request(
        &format!("10.0.0.2:{}", deployment.metrics),
        "GET",
        "/metrics",
        "",
    );
    assert!(
        metrics.contains("\ntidegate_xds_up{url=\"https://envoy-gateway:18001\"} 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("\ntidegate_xds_refused_total{url=\"https://envoy-gateway:18001\"} 0\n"),
        "{metrics}"
    );
}

/// How long something takes to be true.
#[allow(
    clippy::disallowed_methods,
    reason = "processes of others have the real time"
)]
fn until(yes: &mut dyn FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !yes() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it is never in force"
        );
    }
    start.elapsed()
}

/// What Envoy Gateway's own test expects as the Deployment of the rate limit service.
struct Deployment {
    environment: Vec<String>,
    /// The port of all probes, which ask for `/healthcheck` in plain HTTP.
    probe: u16,
    metrics: u16,
}

impl Deployment {
    fn read() -> Self {
        let module = env::var("TIDEGATE_GATEWAY").expect("scripts/servers.sh gateway names it");
        let file = "internal/infrastructure/kubernetes/ratelimit/testdata/deployments/default.yaml";
        let text = fs::read_to_string(Path::new(&module).join(file)).unwrap();
        let words =
            |from: &str, to: &str| text.split_once(from).unwrap().1.split_once(to).unwrap().0;
        let environment: Vec<String> = words(" env:\n", " image:")
            .split("- name: ")
            .skip(1)
            .map(|pair| {
                let (name, value) = pair.split_once('\n').unwrap();
                let value = value
                    .trim()
                    .strip_prefix("value: ")
                    .unwrap()
                    .trim_matches('"');
                format!("{name}={value}")
            })
            .collect();
        assert_eq!(environment.len(), 23, "{environment:?}");
        assert_eq!(
            text.matches("path: /healthcheck\n            port: 8080\n            scheme: HTTP\n")
                .count(),
            3
        );
        assert!(
            words(" command:\n", " env:").trim() == "- /bin/ratelimit"
                && text.contains("runAsUser: 65534")
        );
        Self {
            environment,
            probe: 8080,
            metrics: words("prometheus.io/port: \"", "\"").parse().unwrap(),
        }
    }
}

const GATEWAY: &str = "
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: File, file: {paths: [DIRECTORY/resources]}}
    infrastructure:
      type: Host
      host: {configHome: DIRECTORY/config, dataHome: DIRECTORY/data, stateHome: DIRECTORY/state, runtimeDir: DIRECTORY/run}
extensionApis: {enableBackend: true}
rateLimit: {backend: {type: Redis, redis: {url: 'redis.redis.svc:6379'}}}
";

const RESOURCES: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: eg}
spec:
  controllerName: gateway.envoyproxy.io/gatewayclass-controller
  parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, name: host, namespace: envoy-gateway-system}
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {name: host, namespace: envoy-gateway-system}
spec: {provider: {type: Host, host: {envoyVersion: 1.40.0}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: eg, namespace: default}
spec:
  gatewayClassName: eg
  listeners: [{name: http, protocol: HTTP, port: 8888}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: backend, namespace: default}
spec:
  parentRefs: [{name: eg}]
  rules: [{backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: backend}]}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: Backend
metadata: {name: backend, namespace: default}
spec: {endpoints: [{ip: {address: 127.0.0.1, port: PORT}}]}
";

const POLICY: &str = "
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
metadata: {name: limit, namespace: default}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: backend}]
  rateLimit:
    type: Global
    global:
      rules:
        - clientSelectors: [{headers: [{name: x-user, type: Distinct}]}]
          limit: {requests: REQUESTS, unit: Hour}
";
