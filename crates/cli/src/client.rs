//! `tidegate health`, `acquire`, `peek`, `charge` and `refund` use a server's data plane from a shell, and `block`, `unblock`, `override`,
//! `reset`, `reload` and `rules` its control plane. Both are HTTP.
//!
//! Exit codes: 0 for yes, 1 for no, 2 for an invalid command line, 3 if the server could not be reached or refused the
//! request.
#![allow(clippy::doc_markdown, reason = "the options' comments are their help text")]

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use serde_json::{Value, json};
use tidegate_core::{Clock, clock::SystemClock, write_duration};

use crate::values::{Address, positive, server};

/// The longest response to read.
const MOST_BYTES: u64 = 64 << 20;

/// The server's data plane, and how to reach it.
#[derive(Debug, clap::Args)]
struct DataTarget {
    /// The server: host:port, http://host:port or https://host:port
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_SERVER", default_value = "127.0.0.1:8080", value_parser = server)]
    server: Address,
    #[command(flatten)]
    how: How,
}

/// The server's control plane, and how to reach it.
#[derive(Debug, clap::Args)]
struct AdminTarget {
    /// The server's control plane: host:port, http://host:port or https://host:port, as in its --admin
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN_SERVER", default_value = "127.0.0.1:8082", value_parser = server)]
    server: Address,
    #[command(flatten)]
    how: How,
}

/// How to reach a server.
#[derive(Clone, Debug, clap::Args)]
pub struct How {
    /// How long the server may take to reply
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    timeout: Duration,
    /// The token for this client (better as a variable: other users can see a command line)
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// With https: the authority of the server's certificate, in PEM [default: those that the system trusts]
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    ca: Option<PathBuf>,
    /// With https: this client's certificate, in PEM
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CLIENT_CERT", requires = "client_key")]
    client_cert: Option<PathBuf>,
    /// With https: the private key of this client's certificate, in PEM
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CLIENT_KEY", requires = "client_cert")]
    client_key: Option<PathBuf>,
}

/// The server and how to reach it.
pub struct Target<'a> {
    server: &'a Address,
    how: &'a How,
    /// The option of `serve` that sets the address.
    option: &'static str,
}

impl<'a> Target<'a> {
    /// A server's control plane.
    pub fn admin(server: &'a Address, how: &'a How) -> Self {
        Self { server, how, option: "--admin" }
    }
}

impl DataTarget {
    fn target(&self) -> Target<'_> {
        Target { server: &self.server, how: &self.how, option: "--http" }
    }
}

impl AdminTarget {
    fn target(&self) -> Target<'_> {
        Target::admin(&self.server, &self.how)
    }
}

/// Ask whether a server is ready: for health checks of containers and load balancers
///
/// Exits with 0 if it is ready, 1 if it is not, 3 if it cannot be reached.
#[derive(Debug, clap::Args)]
pub struct Health {
    #[command(flatten)]
    target: DataTarget,
    /// Ask only whether the process is alive, ready or not
    #[arg(long)]
    live: bool,
}

/// Take from a limit: tidegate acquire cron nightly --wait 30s && job
///
/// Exits with 0 if the limit admits, 1 if it does not, 3 if the server cannot be reached or refuses the request.
#[derive(Debug, clap::Args)]
pub struct Acquire {
    #[command(flatten)]
    of: Of<DataTarget>,
    /// The number of units to take; 0 asks whether no more is in use than the limit, for a later `tidegate charge`
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u32,
    /// Wait up to this long for the limit to admit
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    wait: Option<Duration>,
}

/// Ask whether a limit would admit, without taking anything
///
/// Exit codes as for acquire.
#[derive(Debug, clap::Args)]
pub struct Peek {
    #[command(flatten)]
    of: Of<DataTarget>,
    /// The number of units that would be taken
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u32,
}

/// Charge units that were used, whether they fit or not
///
/// Exits with 0 if no more is in use now than the limit, with 1 if the key is denied until time has repaid the rest.
#[derive(Debug, clap::Args)]
pub struct Charge {
    #[command(flatten)]
    of: Of<DataTarget>,
    /// The number of units to charge
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    cost: u32,
}

/// Refund units to a limit
#[derive(Debug, clap::Args)]
pub struct Refund {
    #[command(flatten)]
    of: Of<DataTarget>,
    /// The number of units to refund
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    cost: u32,
}

/// Deny a key for a time, or until it is unblocked
#[derive(Debug, clap::Args)]
pub struct Block {
    #[command(flatten)]
    of: Of<AdminTarget>,
    /// For how long; without it, until the key is unblocked
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    r#for: Option<Duration>,
    /// Why: for the audit, and for tidegate blocks
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// Print the keys that operators blocked, with who did it, until when and why
#[derive(Debug, clap::Args)]
pub struct Blocks {
    #[command(flatten)]
    list: List,
}

/// Print the keys that operators gave a quota while the server runs
#[derive(Debug, clap::Args)]
pub struct Overrides {
    #[command(flatten)]
    list: List,
}

/// The part of a list, and its form.
#[derive(Debug, clap::Args)]
struct List {
    /// Only of this limit
    limit: Option<String>,
    #[command(flatten)]
    target: AdminTarget,
    #[command(flatten)]
    format: Printed,
}

/// Print what operators did since the server started, the newest first
#[derive(Debug, clap::Args)]
pub struct AuditLog {
    #[command(flatten)]
    target: AdminTarget,
    #[command(flatten)]
    format: Printed,
}

/// Say why a key is admitted or denied: the decision now, the rule behind it, blocks and overrides, and the last requests
///
/// Takes nothing. The last requests need a server with --trace-keys. Exits with 0 if the key is admitted, 1 if it is denied.
#[derive(Debug, clap::Args)]
pub struct Explain {
    #[command(flatten)]
    of: Of<AdminTarget>,
    #[command(flatten)]
    format: Printed,
}

/// How a result is printed.
#[derive(Debug, clap::Args)]
pub struct Printed {
    /// text, or json: an object on one line, for programs
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

impl Printed {
    pub fn is_json(&self) -> bool {
        self.format == Format::Json
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
}

/// End the block of a key
///
/// Exits with 0 if the key was blocked, 1 if it was not.
#[derive(Debug, clap::Args)]
pub struct Unblock {
    #[command(flatten)]
    of: Of<AdminTarget>,
}

/// Give a key another quota while the server runs: tidegate override per-user alice 1000/1m --for 1h
///
/// The override replaces the key's quota in the rules until it expires, or until --end. The key's use still counts. The override
/// outlives a reload of the rules, and a restart of a server with --state. With --end this exits with 0 if the key had an override,
/// 1 if it had none.
#[derive(Debug, clap::Args)]
pub struct Override {
    /// The limit's name
    limit: String,
    /// The key
    key: String,
    /// The quota, as `limit` in the rules: 1000/1m, or for concurrency a number of permits
    #[arg(required_unless_present = "end")]
    quota: Option<String>,
    #[command(flatten)]
    target: AdminTarget,
    /// For how long; without it until it is ended
    #[arg(long, value_name = "DURATION", value_parser = positive, conflicts_with = "end")]
    r#for: Option<Duration>,
    /// Hold the key to the rules again
    #[arg(long, conflicts_with = "quota")]
    end: bool,
    /// Why: for the audit, and for tidegate overrides
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
}

/// A limit and a key of a server.
#[derive(Debug, clap::Args)]
struct Of<T: clap::Args> {
    /// The limit's name
    limit: String,
    /// The key; not needed for a global limit
    key: Option<String>,
    #[command(flatten)]
    target: T,
}

/// Forget the use of a key, or of all keys of a limit if no key is given
///
/// Blocks stay.
#[derive(Debug, clap::Args)]
pub struct Reset {
    #[command(flatten)]
    of: Of<AdminTarget>,
}

/// Reload a server's rules, and print the result
///
/// Exits with 0 if the rules are in force, 3 if they were rejected; the previous rules then stay active.
#[derive(Debug, clap::Args)]
pub struct Reload {
    #[command(flatten)]
    target: AdminTarget,
}

/// Print a server's rules in force, one limit per line, in the form of a rules file
///
/// --format json prints the server's JSON on one line, including the number of keys of each limit. Options with default values are
/// omitted.
#[derive(Debug, clap::Args)]
pub struct Rules {
    #[command(flatten)]
    target: AdminTarget,
    #[command(flatten)]
    format: Printed,
}

/// Why a request to a server failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot reach {server}: {source}; is a server running there? (--server ADDR)")]
    Unreachable { server: String, source: io::Error },
    #[error(
        "{server} does not reply like a Tidegate server; give --server the address of the server's {option}"
    )]
    NoHttp { server: String, option: &'static str },
    #[error("{detail}")]
    Refused { detail: String },
}

/// The status and the body of a response.
struct Reply {
    status: u16,
    body: Value,
}

/// A connection, with TLS or without.
trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

impl Target<'_> {
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<Reply, ClientError> {
        self.exchange(method, path, body, |status, stream| {
            let mut text = String::new();
            match stream.take(MOST_BYTES).read_to_string(&mut text) {
                // A server may close the connection without a TLS closing message; after a complete response this is fine.
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
                _ => Ok(serde_json::from_str(&text).ok().map(|body| Reply { status, body })),
            }
        })
    }

    /// Reads an answer of any length, from the first byte of its body.
    pub fn read<T>(&self, path: &str, read: impl FnOnce(&mut dyn BufRead) -> T) -> Result<T, ClientError> {
        let answered = self.exchange("GET", path, "", |status, stream| {
            if status == 200 {
                return Ok(Some(Ok(read(stream))));
            }
            let mut text = String::new();
            // An error while reading only shortens the text of the error message.
            let _ = stream.take(64 * 1024).read_to_string(&mut text);
            Ok(serde_json::from_str(&text).ok().map(|body| Err(Reply { status, body })))
        });
        answered?.or_else(|refused| Self::accepted(refused).and(Err(self.no_tidegate())))
    }

    /// Sends a request, and passes the status and the body of the answer to `read`, which returns `None` if a Tidegate server would
    /// not answer so. HTTP/1.0, so that the body comes as it is, up to the end of the connection.
    fn exchange<T>(
        &self,
        method: &str,
        path: &str,
        body: &str,
        read: impl FnOnce(u16, &mut dyn BufRead) -> io::Result<Option<T>>,
    ) -> Result<T, ClientError> {
        let answered = self.send(method, path, body).and_then(|stream| {
            let (mut stream, mut status, mut line) = (BufReader::new(stream), None, String::new());
            loop {
                line.clear();
                if (&mut stream).take(64 * 1024).read_line(&mut line)? == 0 {
                    return Ok(None);
                }
                match status {
                    None => {
                        status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok());
                        if status.is_none() {
                            return Ok(None);
                        }
                    }
                    Some(status) if line.trim_end().is_empty() => return read(status, &mut stream),
                    Some(_) => {}
                }
            }
        });
        match answered {
            Ok(answer) => answer.ok_or_else(|| self.no_tidegate()),
            Err(source) => Err(ClientError::Unreachable { server: self.server.to_string(), source }),
        }
    }

    /// Sends a request on a new connection.
    fn send(&self, method: &str, path: &str, body: &str) -> io::Result<Box<dyn Stream>> {
        let server = &self.server.authority;
        let token = match self.how.token.as_deref().filter(|token| !token.is_empty()) {
            Some(token) if token.chars().any(char::is_control) => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "the token has a line break"));
            }
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nhost: {server}\r\ncontent-length: {length}\r\n{token}\r\n{body}"
        );
        let mut connected = Err(io::ErrorKind::NotFound.into());
        for address in server.to_socket_addrs()? {
            connected = TcpStream::connect_timeout(&address, self.how.timeout);
            if connected.is_ok() {
                break;
            }
        }
        let stream = connected?;
        stream.set_read_timeout(Some(self.how.timeout))?;
        stream.set_write_timeout(Some(self.how.timeout))?;
        let mut stream: Box<dyn Stream> =
            if self.server.tls { Box::new(self.how.secure(stream, server)?) } else { Box::new(stream) };
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        Ok(stream)
    }

    /// Gets a resource of the server.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        Self::accepted(self.ask("GET", path, "")?)
    }

    /// The error for a response that is not from a Tidegate server of this version.
    pub fn no_tidegate(&self) -> ClientError {
        ClientError::NoHttp { server: self.server.to_string(), option: self.option }
    }

    /// Posts a request about a limit. A refusal becomes an error with the server's message.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        Self::accepted(self.ask("POST", path, &body.to_string())?)
    }

    fn accepted(answer: Reply) -> Result<Value, ClientError> {
        match answer.status {
            200 | 429 => Ok(answer.body),
            status => {
                let detail = answer.body["detail"].as_str().unwrap_or("no reason given");
                Err(ClientError::Refused { detail: format!("the server replied {status}: {detail}") })
            }
        }
    }
}

impl How {
    /// Starts TLS.
    fn secure(
        &self,
        stream: TcpStream,
        server: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let host = server.rsplit_once(':').map_or(server, |(host, _)| host).trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca {
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(io::Error::other)?;
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots);
        let config = match (&self.client_cert, &self.client_key) {
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_file(key).map_err(io::Error::other)?;
                builder.with_client_auth_cert(certificates(cert)?, key).map_err(io::Error::other)?
            }
            _ => builder.with_no_client_auth(),
        };
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = |error| io::Error::other(format!("{}: {error}", path.display()));
    CertificateDer::pem_file_iter(path).map_err(read)?.collect::<Result<_, _>>().map_err(read)
}

impl<T: clap::Args> Of<T> {
    fn question(&self, cost: u32) -> Value {
        json!({"limit": self.limit, "key": self.key, "cost": cost})
    }

    fn named(&self) -> Value {
        json!({"limit": self.limit, "key": self.key})
    }
}

/// 0 for yes, 1 for no, 3 for an error, which is printed.
fn exit(result: Result<bool, ClientError>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // If standard error is closed, the exit code still shows the failure.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(3)
        }
    }
}

fn print(line: &str) {
    // If standard output is closed, the exit code still shows the result.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints a decision. Returns whether it admits.
fn decided(answer: &Value) -> bool {
    let number = |name: &str| answer[name].as_u64();
    let allowed = answer["allowed"].as_bool().unwrap_or(false);
    let mut parts = vec![if allowed { "allowed".to_owned() } else { "denied".to_owned() }];
    for (name, what) in
        [("remaining", "remaining"), ("retry_after_ms", "retry after ms"), ("delay_ms", "delay ms")]
    {
        if let Some(number) = number(name).filter(|number| name == "remaining" || *number > 0) {
            parts.push(format!("{what} {number}"));
        }
    }
    print(&parts.join(", "));
    allowed
}

pub fn health(args: &Health) -> ExitCode {
    let path = if args.live { "/healthz" } else { "/readyz" };
    exit(args.target.target().ask("GET", path, "").map(|answer| {
        let said =
            [&answer.body["status"], &answer.body["detail"]].map(|value| value.as_str().unwrap_or_default());
        print(said.join(" ").trim());
        answer.status == 200
    }))
}

pub fn acquire(args: &Acquire) -> ExitCode {
    let clock = SystemClock::new();
    let until = args.wait.map(|wait| clock.now().saturating_add(wait.into()));
    loop {
        let answer = match args.of.target.target().post("/v1/acquire", &args.of.question(args.cost)) {
            Ok(answer) => answer,
            Err(error) => return exit(Err(error)),
        };
        let delay = answer["delay_ms"].as_u64().map(Duration::from_millis).filter(|delay| !delay.is_zero());
        if let (Some(delay), true) = (delay, answer["allowed"] == true) {
            // A leaky bucket admits immediately, with a delay before the start.
            pause(delay);
        }
        let retry = answer["retry_after_ms"].as_u64().map(Duration::from_millis);
        let (true, Some(retry), Some(until)) = (answer["allowed"] == false, retry, until) else {
            return exit(Ok(decided(&answer)));
        };
        if clock.now().saturating_add(retry.into()) > until {
            return exit(Ok(decided(&answer)));
        }
        pause(retry);
    }
}

#[allow(clippy::disallowed_methods, reason = "a command that was told to wait has nothing else to do")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

pub fn peek(args: &Peek) -> ExitCode {
    let answer = args.of.target.target().post("/v1/peek", &args.of.question(args.cost));
    exit(answer.map(|answer| decided(&answer)))
}

pub fn charge(args: &Charge) -> ExitCode {
    exit(args.of.target.target().post("/v1/charge", &args.of.question(args.cost)).map(|answer| {
        print(&format!("remaining {}", answer["remaining"]));
        answer["allowed"] == true
    }))
}

pub fn refund(args: &Refund) -> ExitCode {
    exit(args.of.target.target().post("/v1/refund", &args.of.question(args.cost)).map(|answer| {
        print(&format!("remaining {}", answer["remaining"]));
        true
    }))
}

pub fn block(args: &Block) -> ExitCode {
    let mut body = args.of.named();
    if let Some(span) = args.r#for {
        body["for"] = json!(format!("{}ms", span.as_millis().max(1)));
    }
    note(&mut body, args.note.as_ref());
    exit(args.of.target.target().post("/v1/block", &body).map(|_| true))
}

fn note(body: &mut Value, note: Option<&String>) {
    if let Some(note) = note {
        body["note"] = json!(note);
    }
}

/// A path with the given fields as its query.
fn path<const N: usize>(path: &str, fields: [(&str, Option<&String>); N]) -> String {
    let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let encode = |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC);
    let pairs: Vec<String> = given.map(|(name, value)| format!("{name}={}", encode(value))).collect();
    format!("{path}?{}", pairs.join("&"))
}

/// Prints an answer as it is, or as text.
fn printed(
    answer: Result<Value, ClientError>,
    format: &Printed,
    show: impl FnOnce(&Value) -> bool,
) -> ExitCode {
    exit(answer.map(|answer| {
        if !format.is_json() {
            return show(&answer);
        }
        print(&answer.to_string());
        answer["allowed"] != false
    }))
}

/// Prints a list of objects as columns of these members; those that end in `_ms` are times, except for `for_ms`.
fn columns<const N: usize>(list: &Value, names: [&str; N]) -> bool {
    let cell = |row: &Value, name: &str| match &row[name] {
        Value::Null => "-".to_owned(),
        Value::Number(ms) if name != "for_ms" => time(ms.as_u64().unwrap_or_default()),
        Value::Number(ms) => span(ms.as_u64().unwrap_or_default()),
        Value::String(text) => text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect(),
        other => other.to_string(),
    };
    let head = names.map(|name| name.trim_end_matches("_ms").trim_end_matches("_name").to_uppercase());
    let rows = list.as_array().into_iter().flatten().map(|row| names.map(|name| cell(row, name)));
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    print(crate::check::aligned(&rows).trim_end());
    true
}

fn span(ms: u64) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_duration(&mut text, Duration::from_millis(ms));
    text
}

/// A time in milliseconds since 1970, as seen from now.
fn time(ms: u64) -> String {
    let now = SystemClock::new().now().get() / 1_000_000;
    let text = span(ms.abs_diff(now) / 1_000 * 1_000);
    if ms > now { format!("in {text}") } else { format!("{text} ago") }
}

pub fn blocks(args: &Blocks) -> ExitCode {
    let answer = args.list.target.target().get(&path("/v1/blocks", [("limit", args.list.limit.as_ref())]));
    let names = ["limit_name", "key", "since_ms", "until_ms", "client", "note"];
    printed(answer, &args.list.format, |answer| columns(&answer["blocks"], names))
}

pub fn overrides(args: &Overrides) -> ExitCode {
    let answer = args.list.target.target().get(&path("/v1/overrides", [("limit", args.list.limit.as_ref())]));
    let names = ["limit_name", "key", "quota", "since_ms", "until_ms", "client", "note"];
    printed(answer, &args.list.format, |answer| columns(&answer["overrides"], names))
}

pub fn audit(args: &AuditLog) -> ExitCode {
    let names = ["time_ms", "client", "action", "limit", "key", "value", "for_ms", "note"];
    let answer = args.target.target().get("/v1/audit");
    printed(answer, &args.format, |answer| columns(&answer["actions"], names))
}

pub fn explain(args: &Explain) -> ExitCode {
    let Of { limit, key, target } = &args.of;
    let answer = target.target().get(&path("/v1/explain", [("limit", Some(limit)), ("key", key.as_ref())]));
    printed(answer, &args.format, |answer| {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let ms = |name: &str| answer[name].as_u64().map(span);
        let order = |order: &Value| {
            let quota = text(&order["quota"]).map(|quota| format!("{quota}, "));
            let when = |name: &str, word: &str| order[name].as_u64().map(|ms| format!("{word} {}", time(ms)));
            let since = when("since_ms", "given")
                .unwrap_or_else(|| "given before the server's start or at another one".to_owned());
            let until = when("until_ms", "ends").unwrap_or_else(|| "without end".to_owned());
            let by = text(&order["client"]).map(|by| format!(", by {by}"));
            let note = text(&order["note"]).map(|note| format!(": {note}"));
            order.is_object().then(|| {
                [
                    quota.unwrap_or_default(),
                    format!("{since}, {until}"),
                    by.unwrap_or_default(),
                    note.unwrap_or_default(),
                ]
                .concat()
            })
        };
        let is_denied = answer["allowed"] == false;
        let reason = text(&answer["reason"]).map_or_else(String::new, |reason| format!(" ({reason})"));
        let verdict = if is_denied { "denied" } else { "admitted" };
        let shadow = if answer["shadow"] == true { ", by a limit that only counts" } else { "" };
        for (name, value) in [
            (
                "verdict",
                Some(format!(
                    "{verdict}{reason}{shadow}, remaining {} of {}",
                    answer["remaining"], answer["limit"]
                )),
            ),
            ("admitted in", ms("retry_after_ms")),
            ("unused in", ms("reset_after_ms")),
            (
                "rule",
                text(&answer["rule"])
                    .map(|rule| format!("{rule}, from {}", answer["rule_from"].as_str().unwrap_or_default())),
            ),
            ("block", order(&answer["block"])),
            ("override", order(&answer["override"])),
            ("what helps", text(&answer["mend"])),
        ] {
            if let Some(value) = value {
                print(&format!("{name:<12} {value}"));
            }
        }
        if answer["recent"].as_array().is_some_and(|recent| !recent.is_empty()) {
            columns(&answer["recent"], ["time_ms", "verdict"]);
        }
        !is_denied
    })
}

pub fn override_key(args: &Override) -> ExitCode {
    let mut body = json!({"limit": args.limit, "key": args.key});
    match &args.quota {
        Some(quota) => body["quota"] = json!(quota),
        None => body["end"] = json!(true),
    }
    if let Some(span) = args.r#for {
        body["for"] = json!(format!("{}ms", span.as_millis().max(1)));
    }
    note(&mut body, args.note.as_ref());
    let answer = args.target.target().post("/v1/override", &body);
    exit(answer.map(|answer| answer["overridden"] == true || answer["ended"] == true))
}

pub fn rules(args: &Rules) -> ExitCode {
    exit(args.target.target().get("/v1/rules").map(|rules| {
        if args.format.is_json() {
            print(&rules.to_string());
        } else {
            print("limits:");
            for limit in rules["limits"].as_array().into_iter().flatten() {
                print(&written(limit));
                let by_operator = limit["runtime_overrides"].as_object().into_iter().flatten();
                for (key, own) in by_operator {
                    let quota = own["quota"].as_str().unwrap_or_default();
                    print(&format!("    # by an operator, while the server runs: {}: {quota}", json!(key)));
                }
            }
        }
        true
    }))
}

/// A limit as in a rules file, on one line.
fn written(limit: &Value) -> String {
    let text = |name: &str| limit[name].as_str().unwrap_or_default();
    let mut fields = vec![
        format!("name: {}", text("name")),
        format!("limit: {}", text("limit")),
        format!("algorithm: {}", text("algorithm")),
    ];
    fields.extend(
        ["options", "sharing"].map(text).into_iter().filter(|more| !more.is_empty()).map(str::to_owned),
    );
    fields.extend(
        ["global", "shadow"]
            .into_iter()
            .filter(|name| limit[*name] == true)
            .map(|name| format!("{name}: true")),
    );
    let overrides = limit["overrides"].as_object().into_iter().flatten();
    // An override has the algorithm of its limit, which a rules file does not repeat.
    let algorithm = format!("algorithm: {}, ", text("algorithm"));
    let policy = |policy: &Value| policy.as_str().unwrap_or_default().replacen(&algorithm, "", 1);
    // A JSON string is also a YAML string, so a key may have any characters.
    let overrides: Vec<_> = overrides.map(|(key, own)| format!("{}: {}", json!(key), policy(own))).collect();
    if !overrides.is_empty() {
        fields.push(format!("overrides: {{{}}}", overrides.join(", ")));
    }
    let deny = &limit["deny"];
    if deny.as_array().is_some_and(|deny| !deny.is_empty()) {
        fields.push(format!("deny: {deny}"));
    }
    format!("  - {{{}}}", fields.join(", "))
}

pub fn unblock(args: &Unblock) -> ExitCode {
    let answer = args.of.target.target().post("/v1/unblock", &args.of.named());
    exit(answer.map(|answer| answer["unblocked"] == true))
}

pub fn reset(args: &Reset) -> ExitCode {
    exit(args.of.target.target().post("/v1/reset", &args.of.named()).map(|_| true))
}

pub fn reload(args: &Reload) -> ExitCode {
    exit(args.target.target().post("/v1/reload", &Value::Null).map(|answer| {
        print(&format!("{} limits are in force", answer["limits"]));
        true
    }))
}
