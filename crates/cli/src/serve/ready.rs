//! The text that the server prints when it is ready, with commands to try.

use std::{fmt::Write, io, net::SocketAddr, time::Duration};

use tidegate_core::Nanos;
use tidegate_server::{Server, XdsSource};

use super::args::{Args, LogFormat};

/// The text that is printed when the server is ready.
pub(super) struct Ready {
    format: LogFormat,
    rules: String,
    state: Option<String>,
    password: bool,
    /// Of HTTP, RESP and the control plane.
    tls: [bool; 3],
    access: bool,
    /// The collector of OpenTelemetry.
    collector: Option<String>,
}

impl Ready {
    pub(super) fn of(args: &Args, has_telemetry: bool) -> Self {
        let every = |interval: Duration| Nanos::from(interval).to_string();
        Self {
            format: args.log_format,
            rules: {
                let files = [&args.rules, &args.envoy_config, &args.sentinel_rules].into_iter().flatten();
                let files = files.map(|path| path.display().to_string());
                let files: Vec<String> = files.chain(args.envoy_xds.iter().map(XdsSource::shown)).collect();
                match files.as_slice() {
                    [] => "built-in examples (use your own with --rules FILE)".to_owned(),
                    files => files.join(", "),
                }
            },
            state: args
                .state
                .as_ref()
                .map(|path| format!("{}, written every {}", path.display(), every(args.state_interval))),
            password: args.resp_password.as_ref().is_some_and(|password| !password.is_empty()),
            tls: ["http", "resp", "admin"].map(|listener| args.has_tls(listener)),
            access: args.access.is_some() || args.tls_client_ca.is_some(),
            #[cfg(feature = "otlp")]
            collector: has_telemetry.then(|| args.otlp.told()),
            #[cfg(not(feature = "otlp"))]
            collector: has_telemetry.then(String::new),
        }
    }

    pub(super) fn print(&self, server: &Server) {
        if self.format == LogFormat::Json {
            tracing::info!(
                http = server.place("http"),
                resp = server.place("resp"),
                grpc = server.place("grpc"),
                spoe = server.place("spoe"),
                sentinel = server.place("sentinel-token"),
                heartbeats = server.place("sentinel-dashboard"),
                admin = server.place("admin"),
                rules = self.rules,
                state = self.state,
                otlp = self.collector,
                store = server.service().store().map(|shared| shared.store().address().to_string()),
                "listening"
            );
            return;
        }
        let limits = server.service().limits().names();
        let mut text = format!("tidegate {} is ready.\n\n", env!("CARGO_PKG_VERSION"));
        let mut line = |what: &str, value: &str| {
            let _ = writeln!(text, "  {what:<7}{value}");
        };
        let shown = |option: &str, plain: &str, has_tls: bool| match server.place(option) {
            Some(socket) if socket.starts_with("unix:") => socket.to_owned(),
            Some(address) => format!("{plain}{}://{address}", if has_tls { "s" } else { "" }),
            None => "off".to_owned(),
        };
        let [http_has_tls, resp_has_tls, admin_has_tls] = self.tls;
        line("HTTP", &shown("http", "http", http_has_tls));
        line("RESP", &shown("resp", "redis", resp_has_tls));
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
        line("admin", &shown("admin", "http", admin_has_tls));
        line("rules", &format!("{}: {}", self.rules, limits.join(", ")));
        match server.service().store() {
            Some(shared) => line("store", &format!("{}, shared", shared.store().address())),
            None => line(
                "state",
                self.state.as_deref().unwrap_or("in memory only (keep it across restarts with --state FILE)"),
            ),
        }
        if let Some(collector) = &self.collector {
            line("OTLP", collector);
        }
        text.push_str("\nTry:\n\n");
        let limit = limits.first().map_or("per-user", String::as_str);
        for command in self.commands(["http", "resp", "admin"].map(|option| server.address(option)), limit) {
            let _ = writeln!(text, "  {command}");
        }
        // The server also runs with a closed standard output.
        let _ = io::Write::write_all(&mut io::stdout(), text.as_bytes());
    }

    /// Three commands that work as printed, for a client on this machine. The user sets `$TOKEN`, `$CA` and the password.
    fn commands(&self, listeners: [Option<SocketAddr>; 3], limit: &str) -> Vec<String> {
        let [http, resp, admin] = listeners.map(|address| address.map(reachable));
        let [web, _, control] = self.tls.map(|has_tls| if has_tls { "--cacert $CA https" } else { "http" });
        let token = if self.access { "-H \"Authorization: Bearer $TOKEN\" " } else { "" };
        let mut commands = Vec::new();
        if let Some(http) = http {
            commands.push(format!(
                "curl {token}-i {web}://{http}/v1/acquire -d '{{\"limit\":\"{limit}\",\"key\":\"alice\"}}'"
            ));
            if resp.is_none() {
                commands.push(format!(
                    "curl {token}{web}://{http}/v1/peek -d '{{\"limit\":\"{limit}\",\"key\":\"alice\"}}'"
                ));
                commands.push(match admin {
                    Some(admin) => format!("curl {token}{control}://{admin}/metrics"),
                    None => format!("curl {web}://{http}/readyz"),
                });
            }
        }
        if let Some(resp) = resp {
            let auth = match (self.password, self.access) {
                (true, _) => "REDISCLI_AUTH=$TIDEGATE_RESP_PASSWORD ",
                (false, true) => "REDISCLI_AUTH=$TOKEN ",
                (false, false) => "",
            };
            let tls = if self.tls[1] { " --tls --cacert $CA" } else { "" };
            let cli = format!("{auth}redis-cli{tls} -h {} -p {}", resp.ip(), resp.port());
            commands.push(format!("{cli} ACQUIRE {limit} alice"));
            if http.is_none() {
                commands.push(format!("{cli} PEEK {limit} alice"));
            }
            commands.push(format!("{cli} CL.THROTTLE bob 15 30 60"));
        }
        commands
    }
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
