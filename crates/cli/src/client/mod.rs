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
mod operate;
mod shown;

use std::{
    fmt::Display,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use serde_json::{Value, json};
use tidegate_core::{Clock, Priority, clock::SystemClock};

use self::shown::{columns, decided, explained, written};
pub use self::{
    connection::{ClientError, How, HttpTarget},
    operate::{
        All, Block, Change, Explain, List, Mark, Override, audit, block, blocks, explain, mark,
        override_key, overrides, reload, reset, rules, unblock,
    },
    shown::{print, print_list},
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
            waits: Duration::ZERO,
        }
    }
}

impl AdminTarget {
    pub fn target(&self) -> HttpTarget<'_> {
        HttpTarget {
            server: &self.server,
            how: &self.how,
            option: "--admin",
            waits: Duration::ZERO,
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
    #[command(flatten)]
    format: Printed,
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
    /// Wait in line at the server up to this long for the limit to admit. A limit in a store has a
    /// line only with `line: true` in its rule: otherwise it is asked again when a denial says so
    #[arg(long, value_name = "DURATION", value_parser = positive)]
    wait: Option<Duration>,
    /// The priority in line, 0 to 9: 9 is served first. Without one it is 5
    #[arg(long, value_name = "LEVEL", requires = "wait")]
    priority: Option<Priority>,
    #[command(flatten)]
    format: Printed,
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
    #[command(flatten)]
    format: Printed,
}

// Units of a limit and a key.
#[derive(Debug, clap::Args)]
pub struct Units {
    #[command(flatten)]
    of: Of<DataTarget>,
    /// The number of units
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    cost: u64,
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

    /// Prints an answer as it is, or as text. `show` says whether the answer is yes.
    fn print(
        &self,
        answer: Result<Value, ClientError>,
        show: impl FnOnce(&Value) -> bool,
    ) -> ExitCode {
        exit(answer.map(|answer| {
            if !self.is_json() {
                return show(&answer);
            }
            let has_list = answer
                .as_object()
                .is_some_and(|members| members.values().any(Value::is_array));
            let print = if has_list { print_list } else { print };
            print(&answer.to_string());
            ["allowed", "unblocked", "ended"]
                .iter()
                .all(|member| answer[member] != false)
        }))
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
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
        if args.format.is_json() {
            print(&answer.body.to_string());
        } else {
            let said = [&answer.body["status"], &answer.body["detail"]]
                .map(|value| value.as_str().unwrap_or_default());
            print(said.join(" ").trim());
        }
        answer.status == 200
    }))
}

pub fn acquire(args: &Acquire) -> ExitCode {
    args.format.print(acquired(args), decided)
}

/// The longest time that a server lets a request wait.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// The answer: with a wait, of a request that waits in line at the server. A limit in a store may
/// have no line: then it is asked again after the time that a denial gives.
fn acquired(args: &Acquire) -> Result<Value, ClientError> {
    let (clock, mut has_line) = (SystemClock::new(), true);
    let until = clock
        .now()
        .saturating_add(args.wait.unwrap_or_default().into());
    loop {
        let left = Duration::from(until.saturating_since(clock.now())).min(LONGEST_WAIT);
        let left = Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(0));
        let span = if has_line { left } else { Duration::ZERO };
        let mut question = args.of.question(args.cost);
        if !span.is_zero() {
            question["wait"] = json!(format!("{}ms", span.as_millis()));
            if let Some(priority) = args.priority {
                question["priority"] = json!(priority.level());
            }
        }
        let target = HttpTarget {
            waits: span,
            ..args.of.target.target()
        };
        let answer = target.ask("POST", "/v1/acquire", &question.to_string())?;
        if answer.status == 409 && answer.body["pointer"] == "#/wait" && has_line {
            has_line = false;
            continue;
        }
        let answer = HttpTarget::accepted(answer)?;
        let delay = answer["delay_ms"]
            .as_u64()
            .map(Duration::from_millis)
            .filter(|delay| !delay.is_zero());
        if let (Some(delay), true) = (delay, answer["allowed"] == true) {
            // A leaky bucket admits immediately, with a delay before the start.
            pause(delay);
        }
        let retry = answer["retry_after_ms"].as_u64().map(Duration::from_millis);
        let (true, Some(retry), Some(_)) = (answer["allowed"] == false, retry, args.wait) else {
            return Ok(answer);
        };
        if clock.now().saturating_add(retry.into()) > until {
            return Ok(answer);
        }
        // Later than the longest wait.
        pause(retry.saturating_sub(span));
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
    args.format.print(answer, decided)
}

pub fn charge(args: &Units) -> ExitCode {
    units(args, "/v1/charge", "charged")
}

pub fn refund(args: &Units) -> ExitCode {
    // More than a key has used is not returned.
    units(args, "/v1/refund", "refunded up to")
}

fn units(args: &Units, path: &str, done: &str) -> ExitCode {
    let question = args.of.question(args.cost);
    let answer = args.of.target.target().post(path, &question);
    args.format.print(answer, |answer| {
        let (cost, remaining) = (args.cost, &answer["remaining"]);
        print(&format!("{done} {cost}, remaining {remaining}"));
        answer["allowed"] != false
    })
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
