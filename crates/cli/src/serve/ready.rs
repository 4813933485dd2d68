//! The text that the server prints when it is ready, with commands to try.

use std::{fmt::Write, io, net::SocketAddr};

use tidegate_core::Nanos;
use tidegate_server::{Server, XdsSource, shown};

use super::{args::Args, values::LogFormat};

/// Prints the text, or logs the same facts if the log is JSON.
pub(super) fn print(args: &Args, has_telemetry: bool, server: &Server) {
    let files = [&args.rules, &args.envoy_config, &args.sentinel_rules]
        .into_iter()
        .flatten();
    let files = files.map(|path| path.display().to_string());
    let files: Vec<String> = files
        .chain(args.envoy_xds.iter().map(XdsSource::shown))
        .collect();
    let rules = match files.as_slice() {
        [] => "built-in examples (use your own with --rules FILE)".to_owned(),
        files => files.join(", "),
    };
    let every = Nanos::from(args.state_interval);
    let state = args
        .state
        .as_ref()
        .map(|path| format!("{}, written every {every}", path.display()));
    #[cfg(feature = "otlp")]
    let collector = has_telemetry.then(|| args.otlp.destination());
    #[cfg(not(feature = "otlp"))]
    let collector = has_telemetry.then(String::new);
    if args.log_format == LogFormat::Json {
        tracing::info!(
            http = server.place("http"),
            resp = server.place("resp"),
            grpc = server.place("grpc"),
            spoe = server.place("spoe"),
            sentinel = server.place("sentinel-token"),
            heartbeats = server.place("sentinel-dashboard"),
            admin = server.place("admin"),
            rules,
            state,
            otlp = collector,
            store = server
                .service()
                .store()
                .map(|shared| shared.store().address().to_string()),
            "listening"
        );
        return;
    }
    let limits = server.service().limits().names();
    let mut text = format!("tidegate {} is ready.\n\n", env!("CARGO_PKG_VERSION"));
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "  {what:<7}{value}");
    };
    let shown = |option: &str, plain: &str| match server.place(option) {
        Some(socket) if socket.starts_with("unix:") => socket.to_owned(),
        Some(address) => format!(
            "{plain}{}://{address}",
            if args.has_tls(option) { "s" } else { "" }
        ),
        None => "off".to_owned(),
    };
    line("HTTP", &shown("http", "http"));
    line("RESP", &shown("resp", "redis"));
    for (what, option, clients) in [
        ("gRPC", "grpc", "Envoy"),
        ("SPOE", "spoe", "HAProxy"),
        ("tokens", "sentinel-token", "Sentinel"),
        ("beats", "sentinel-dashboard", "Sentinel"),
    ] {
        if let Some(place) = server.place(option) {
            line(what, &format!("{place}, for {clients}"));
        }
    }
    line("admin", &shown("admin", "http"));
    line("rules", &format!("{rules}: {}", limits.join(", ")));
    let in_memory = "in memory only (keep it across restarts with --state FILE)";
    match server.service().store() {
        Some(shared) => line("store", &format!("{}, shared", shared.store().address())),
        None => line("state", state.as_deref().unwrap_or(in_memory)),
    }
    if let Some(collector) = &collector {
        line("OTLP", collector);
    }
    text.push_str("\nTry:\n\n");
    let limit = limits.first().map_or("per-user", String::as_str);
    for command in commands(args, server, limit) {
        let _ = writeln!(text, "  {command}");
    }
    // The server also runs with a closed standard output.
    let _ = io::Write::write_all(&mut io::stdout(), text.as_bytes());
}

/// Three commands that work as printed, for a client on this machine. The user sets `$TOKEN`, `$CA`
/// and the password.
fn commands(args: &Args, server: &Server, limit: &str) -> Vec<String> {
    // The options of curl that reach a listener, and the beginning of its URLs.
    let web = |option: &str| {
        let (ca, scheme) = if args.has_tls(option) {
            ("--cacert $CA ", "https")
        } else {
            ("", "http")
        };
        let reached = match socket_of(server, option) {
            Some(socket) => format!("{ca}--unix-socket {socket} {scheme}://localhost"),
            None => format!("{ca}{scheme}://{}", reachable(server.address(option)?)),
        };
        Some(reached)
    };
    let (http, admin) = (web("http"), web("admin"));
    let has_resp = server.place("resp").is_some();
    let has_access = args.access.is_some() || args.tls_client_ca.is_some();
    let token = if has_access {
        "-H \"Authorization: Bearer $TOKEN\" "
    } else {
        ""
    };
    let mut commands = Vec::new();
    if let Some(http) = &http {
        commands.push(format!(
            "curl {token}-i {http}/v1/acquire -d '{{\"limit\":\"{limit}\",\"key\":\"alice\"}}'"
        ));
        if !has_resp {
            commands.push(format!(
                "curl {token}{http}/v1/peek -d '{{\"limit\":\"{limit}\",\"key\":\"alice\"}}'"
            ));
            commands.push(match admin {
                Some(admin) => format!("curl {token}{admin}/metrics"),
                None => format!("curl {http}/readyz"),
            });
        }
    }
    let place = match (
        socket_of(server, "resp"),
        server.address("resp").map(reachable),
    ) {
        (Some(socket), _) => Some(format!("-s {socket}")),
        (None, Some(resp)) => Some(format!("-h {} -p {}", resp.ip(), resp.port())),
        (None, None) => None,
    };
    if let Some(place) = place {
        let has_password = args
            .resp_password
            .as_ref()
            .is_some_and(|password| !password.is_empty());
        let auth = match (has_password, has_access) {
            (true, _) => "REDISCLI_AUTH=$TIDEGATE_RESP_PASSWORD ",
            (false, true) => "REDISCLI_AUTH=$TOKEN ",
            (false, false) => "",
        };
        let tls = if args.has_tls("resp") {
            " --tls --cacert $CA"
        } else {
            ""
        };
        let cli = format!("{auth}redis-cli{tls} {place}");
        commands.push(format!("{cli} ACQUIRE {limit} alice"));
        if http.is_none() {
            commands.push(format!("{cli} PEEK {limit} alice"));
        }
        commands.push(format!("{cli} CL.THROTTLE bob 15 30 60"));
    }
    commands
}

/// The path of the Unix socket of a listener, for a shell.
fn socket_of(server: &Server, option: &str) -> Option<String> {
    let path = server.place(option)?.strip_prefix("unix:")?;
    Some(shown::command([path]))
}

/// An address that a client on this machine can connect to.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        std::net::IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        std::net::IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
