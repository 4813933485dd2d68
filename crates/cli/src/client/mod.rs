//! `tidegate health`, `acquire`, `peek`, `charge` and `refund` use a server's data plane from a
//! shell, and `block`, `unblock`, `override`, `reset`, `reload` and `rules` its control plane. Both
//! are HTTP.
//!
//! Exit codes: 0 for yes, 1 for no, 2 for an invalid command line, 3 if the server could not be
//! reached or refused the request.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

mod connection;
mod shown;

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_core::{Clock, clock::SystemClock};

use self::shown::{columns, decided, written};
pub use self::{
    connection::{ClientError, How, HttpTarget},
    shown::print,
};
use crate::values::{Address, positive, server};

/// The server's data plane, and how to reach it.
#[derive(Debug, clap::Args)]
struct DataTarget {
    /// The server: host:port, http://host:port or https://host:port
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_SERVER", default_value = "127.0.0.1:8080", value_parser = server)]
    server: Address,
    #[command(flatten)]
    how: How,
}

// The server's control plane, and how to reach it.
#[derive(Debug, clap::Args)]
pub struct AdminTarget {
    /// The server's control plane: host:port, http://host:port or https://host:port, as in its
    /// --admin
    #[arg(long, value_name = "ADDR", env = "TIDEGATE_ADMIN_SERVER", default_value = "127.0.0.1:8082", value_parser = server)]
    pub server: Address,
    #[command(flatten)]
    how: How,
}

impl DataTarget {
    fn target(&self) -> HttpTarget<'_> {
        HttpTarget {
            server: &self.server,
            how: &self.how,
            option: "--http",
        }
    }
}

impl AdminTarget {
    pub fn target(&self) -> HttpTarget<'_> {
        HttpTarget {
            server: &self.server,
            how: &self.how,
            option: "--admin",
        }
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
/// Exits with 0 if the limit admits, 1 if it does not, 3 if the server cannot be reached or refuses
/// the request.
#[derive(Debug, clap::Args)]
pub struct Acquire {
    #[command(flatten)]
    of: Of<DataTarget>,
    /// The number of units to take; 0 asks whether no more is in use than the limit, for a later
    /// `tidegate charge`
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,
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
    cost: u64,
}

// Units of a limit and a key.
#[derive(Debug, clap::Args)]
pub struct Units {
    #[command(flatten)]
    of: Of<DataTarget>,
    /// The number of units
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    cost: u64,
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

// The part of a list, and its form.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Only of this limit
    limit: Option<String>,
    #[command(flatten)]
    target: AdminTarget,
    #[command(flatten)]
    format: Printed,
}

/// Say why a key is admitted or denied: the decision now, the rule behind it, blocks and overrides,
/// and the last requests
///
/// Takes nothing. The last requests need a server with --trace-keys. Exits with 0 if the key is
/// admitted, 1 if it is denied.
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

/// Give a key another quota while the server runs: tidegate override per-user alice 1000/1m --for
/// 1h
///
/// The override replaces the key's quota in the rules until it expires, or until --end. The key's
/// use still counts. The override outlives a reload of the rules, and a restart of a server with
/// --state. With --end this exits with 0 if the key had an override, 1 if it had none.
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

// All of something, and its form.
#[derive(Debug, clap::Args)]
pub struct All {
    #[command(flatten)]
    target: AdminTarget,
    #[command(flatten)]
    format: Printed,
}

// A limit and a key of a server.
#[derive(Debug, clap::Args)]
pub struct Of<T: clap::Args> {
    /// The limit's name
    limit: String,
    /// The key; not needed for a global limit
    key: Option<String>,
    #[command(flatten)]
    target: T,
}

impl<T: clap::Args> Of<T> {
    fn question(&self, cost: u64) -> Value {
        json!({"limit": self.limit, "key": self.key, "cost": cost})
    }

    fn named(&self) -> Value {
        json!({"limit": self.limit, "key": self.key})
    }
}

/// 0 for yes, 1 for no, 3 for an error, which is printed.
pub fn exit(result: Result<bool, impl Display>) -> ExitCode {
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

pub fn health(args: &Health) -> ExitCode {
    let path = if args.live { "/healthz" } else { "/readyz" };
    exit(args.target.target().ask("GET", path, "").map(|answer| {
        let said = [&answer.body["status"], &answer.body["detail"]]
            .map(|value| value.as_str().unwrap_or_default());
        print(said.join(" ").trim());
        answer.status == 200
    }))
}

pub fn acquire(args: &Acquire) -> ExitCode {
    exit(acquired(args))
}

fn acquired(args: &Acquire) -> Result<bool, ClientError> {
    let clock = SystemClock::new();
    let until = args
        .wait
        .map(|wait| clock.now().saturating_add(wait.into()));
    loop {
        let answer = args
            .of
            .target
            .target()
            .post("/v1/acquire", &args.of.question(args.cost))?;
        let delay = answer["delay_ms"]
            .as_u64()
            .map(Duration::from_millis)
            .filter(|delay| !delay.is_zero());
        if let (Some(delay), true) = (delay, answer["allowed"] == true) {
            // A leaky bucket admits immediately, with a delay before the start.
            pause(delay);
        }
        let retry = answer["retry_after_ms"].as_u64().map(Duration::from_millis);
        let (true, Some(retry), Some(until)) = (answer["allowed"] == false, retry, until) else {
            return Ok(decided(&answer));
        };
        if clock.now().saturating_add(retry.into()) > until {
            return Ok(decided(&answer));
        }
        pause(retry);
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a command that was told to wait has nothing else to do"
)]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

pub fn peek(args: &Peek) -> ExitCode {
    let answer = args
        .of
        .target
        .target()
        .post("/v1/peek", &args.of.question(args.cost));
    exit(answer.map(|answer| decided(&answer)))
}

pub fn charge(args: &Units) -> ExitCode {
    exit(
        args.of
            .target
            .target()
            .post("/v1/charge", &args.of.question(args.cost))
            .map(|answer| {
                print(&format!("remaining {}", answer["remaining"]));
                answer["allowed"] == true
            }),
    )
}

pub fn refund(args: &Units) -> ExitCode {
    exit(
        args.of
            .target
            .target()
            .post("/v1/refund", &args.of.question(args.cost))
            .map(|answer| {
                print(&format!("remaining {}", answer["remaining"]));
                true
            }),
    )
}

pub fn block(args: &Block) -> ExitCode {
    let mut body = args.of.named();
    put_terms(&mut body, args.r#for, args.note.as_ref());
    exit(
        args.of
            .target
            .target()
            .post("/v1/block", &body)
            .map(|_| true),
    )
}

/// Adds how long a change lasts, and why it is made.
fn put_terms(body: &mut Value, span: Option<Duration>, note: Option<&String>) {
    if let Some(span) = span {
        body["for"] = json!(format!("{}ms", span.as_millis().max(1)));
    }
    if let Some(note) = note {
        body["note"] = json!(note);
    }
}

/// A path with the given fields as its query.
pub fn path<const N: usize>(path: &str, fields: [(&str, Option<&String>); N]) -> String {
    let given = fields
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    let encode =
        |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC);
    let pairs: Vec<String> = given
        .map(|(name, value)| format!("{name}={}", encode(value)))
        .collect();
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

pub fn blocks(args: &List) -> ExitCode {
    let answer = args
        .target
        .target()
        .get(&path("/v1/blocks", [("limit", args.limit.as_ref())]));
    let names = [
        "limit_name",
        "key",
        "since_ms",
        "until_ms",
        "client",
        "note",
    ];
    printed(answer, &args.format, |answer| {
        columns(&answer["blocks"], names)
    })
}

pub fn overrides(args: &List) -> ExitCode {
    let answer = args
        .target
        .target()
        .get(&path("/v1/overrides", [("limit", args.limit.as_ref())]));
    let names = [
        "limit_name",
        "key",
        "quota",
        "since_ms",
        "until_ms",
        "client",
        "note",
    ];
    printed(answer, &args.format, |answer| {
        columns(&answer["overrides"], names)
    })
}

pub fn audit(args: &All) -> ExitCode {
    let names = [
        "time_ms", "client", "action", "limit", "key", "value", "for_ms", "note",
    ];
    let answer = args.target.target().get("/v1/audit");
    printed(answer, &args.format, |answer| {
        columns(&answer["actions"], names)
    })
}

pub fn explain(args: &Explain) -> ExitCode {
    let Of { limit, key, target } = &args.of;
    let answer = target.target().get(&path(
        "/v1/explain",
        [("limit", Some(limit)), ("key", key.as_ref())],
    ));
    printed(answer, &args.format, shown::explained)
}

pub fn override_key(args: &Override) -> ExitCode {
    let mut body = json!({"limit": args.limit, "key": args.key});
    match &args.quota {
        Some(quota) => body["quota"] = json!(quota),
        None => body["end"] = json!(true),
    }
    put_terms(&mut body, args.r#for, args.note.as_ref());
    let answer = args.target.target().post("/v1/override", &body);
    exit(answer.map(|answer| answer["overridden"] == true || answer["ended"] == true))
}

pub fn rules(args: &All) -> ExitCode {
    printed(
        args.target.target().get("/v1/rules"),
        &args.format,
        |rules| {
            print("limits:");
            for limit in rules["limits"].as_array().into_iter().flatten() {
                print(&written(limit));
                for (key, own) in limit["runtime_overrides"].as_object().into_iter().flatten() {
                    let quota = own["quota"].as_str().unwrap_or_default();
                    print(&format!(
                        "    # by an operator, while the server runs: {}: {quota}",
                        json!(key)
                    ));
                }
            }
            true
        },
    )
}

pub fn unblock(args: &Of<AdminTarget>) -> ExitCode {
    let answer = args.target.target().post("/v1/unblock", &args.named());
    exit(answer.map(|answer| answer["unblocked"] == true))
}

pub fn reset(args: &Of<AdminTarget>) -> ExitCode {
    exit(
        args.target
            .target()
            .post("/v1/reset", &args.named())
            .map(|_| true),
    )
}

pub fn reload(args: &AdminTarget) -> ExitCode {
    exit(
        args.target()
            .post("/v1/reload", &Value::Null)
            .map(|answer| {
                print(&format!("{} limits are in force", answer["limits"]));
                true
            }),
    )
}
