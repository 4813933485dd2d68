//! A running Envoy.

use std::{
    env, fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::OnceLock,
};

use serde_json::{Value, json};
use tidegate_redis_servers::eventually;

use crate::program::{PATIENCE, scratch};

/// The program: the one that `TIDEGATE_ENVOY` names, or the one that `scripts/servers.sh` fetches.
/// `None`, with a message, if nothing may be fetched.
pub fn program() -> Option<&'static Path> {
    static PROGRAM: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = PROGRAM.get_or_init(|| {
        if let Some(program) = env::var_os("TIDEGATE_ENVOY") {
            return Some(program.into());
        }
        if env::var_os("TIDEGATE_OFFLINE").is_some() {
            return None;
        }
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/servers.sh");
        let told = Command::new(script)
            .arg("envoy")
            .stderr(Stdio::inherit())
            .output()
            .expect("bash is there");
        assert!(
            told.status.success(),
            "no Envoy to test with: name one in TIDEGATE_ENVOY, or set TIDEGATE_OFFLINE=1"
        );
        Some(String::from_utf8(told.stdout).unwrap().trim().into())
    });
    if program.is_none() {
        // Written directly, so that the capture of test output does not hide it.
        let _ = writeln!(
            std::io::stderr(),
            "TIDEGATE_OFFLINE is set: NOT tested with Envoy"
        );
    }
    program.as_deref()
}

/// Killed when the test ends.
pub struct Envoy {
    child: Child,
    /// The port for clients.
    pub port: u16,
    admin: u16,
}

impl Envoy {
    /// Starts an Envoy with this filter, or these, and these routes in front of the backend.
    pub fn start(name: &str, filter: &Value, routes: &Value, tidegate: &str, backend: u16) -> Self {
        let directory = scratch(name);
        let [file, admin] = ["envoy.json", "admin"].map(|name| directory.join(name));
        fs::write(
            &file,
            bootstrap(filter, routes, tidegate, backend).to_string(),
        )
        .unwrap();
        let log = fs::File::create(directory.join("log")).unwrap();
        let mut command = Command::new(program().expect("the tests return early without Envoy"));
        command
            .arg("--config-path")
            .arg(&file)
            .arg("--admin-address-path")
            .arg(&admin);
        command.args([
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "--log-level",
            "warn",
        ]);
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let mut envoy = Self {
            child,
            port: 0,
            admin: 0,
        };
        eventually("Envoy listens", || {
            let ended = envoy.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "{}",
                fs::read_to_string(directory.join("log")).unwrap()
            );
            let Some((port, admin)) = ports_of(&admin) else {
                return false;
            };
            (envoy.port, envoy.admin) = (port, admin);
            true
        });
        envoy
    }

    /// A counter of Envoy.
    pub fn stat(&self, name: &str) -> u64 {
        let all =
            ask(self.admin, &format!("/stats?filter={name}$")).expect("Envoy's own page answers");
        let line = all
            .lines()
            .find(|line| line.starts_with(name) || line.contains(&format!(".{name}: ")));
        line.and_then(|line| line.rsplit(' ').next())
            .map_or(0, |number| number.parse().unwrap())
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The ports of the listener and of Envoy's admin page, once both exist.
fn ports_of(admin: &Path) -> Option<(u16, u16)> {
    let address = fs::read_to_string(admin).ok()?;
    let admin = address.trim().rsplit(':').next()?.parse().ok()?;
    let listeners: Value = serde_json::from_str(&ask(admin, "/listeners?format=json")?).ok()?;
    let port = listeners["listener_statuses"][0]["local_address"]["socket_address"]["port_value"]
        .as_u64()?;
    Some((u16::try_from(port).ok()?, admin)).filter(|(port, _)| *port > 0)
}

/// The body of a response from Envoy's admin page.
fn ask(admin: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", admin)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    )
    .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, mut rest) = answer.split_once("\r\n\r\n")?;
    if !head.contains("transfer-encoding: chunked") {
        return Some(rest.to_owned());
    }
    let mut body = String::new();
    while let Some((size, chunks)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).ok()?;
        body.push_str(chunks.get(..size)?);
        rest = chunks.get(size..)?.trim_start_matches("\r\n");
    }
    Some(body)
}

const TYPES: &str = "type.googleapis.com/envoy.extensions";

/// A message of Envoy's configuration with its type.
pub fn typed(name: &str, message: Value) -> Value {
    let mut message = message;
    message["@type"] = format!("{TYPES}.{name}").into();
    message
}

/// A route to the backend for paths with this prefix, with additional fields.
pub fn route(prefix: &str, fields: Value) -> Value {
    let mut route = fields;
    route["match"] = json!({ "prefix": prefix });
    route["route"]["cluster"] = "backend".into();
    route
}

fn bootstrap(filter: &Value, routes: &Value, tidegate: &str, backend: u16) -> Value {
    let at = |host: &str, port: u16| json!({ "socket_address": { "address": host, "port_value": port } });
    let cluster = |name: &str, address: &Value| {
        json!({
            "name": name,
            "connect_timeout": "1s",
            "load_assignment": {
                "cluster_name": name,
                "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
            },
        })
    };
    let place = if let Some(path) = tidegate.strip_prefix("unix:") {
        json!({ "pipe": { "path": path } })
    } else {
        let (host, port) = tidegate.rsplit_once(':').expect("an address has a port");
        at(host, port.parse().unwrap())
    };
    let mut service = cluster("tidegate", &place);
    service["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"] =
        typed(
            "upstreams.http.v3.HttpProtocolOptions",
            json!({ "explicit_http_config": { "http2_protocol_options": {} } }),
        );
    let router = json!({ "name": "envoy.filters.http.router", "typed_config": typed("filters.http.router.v3.Router", json!({})) });
    let mut filters = filter
        .as_array()
        .cloned()
        .unwrap_or_else(|| vec![filter.clone()]);
    filters.push(router);
    let manager = typed(
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "ingress",
            "http_filters": filters,
            "route_config": { "virtual_hosts": [{ "name": "shop", "domains": ["*"], "routes": routes }] },
        }),
    );
    json!({
        "admin": { "address": at("127.0.0.1", 0) },
        "static_resources": {
            "listeners": [{
                "address": at("127.0.0.1", 0),
                "filter_chains": [{ "filters": [{ "name": "http", "typed_config": manager }] }],
            }],
            "clusters": [service, cluster("backend", &at("127.0.0.1", backend))],
        },
    })
}
