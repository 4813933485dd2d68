//! The commands of operators: they use the control plane.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{process::ExitCode, time::Duration};

use serde_json::{Value, json};
use tidegate_core::Visible;
use tidegate_server::shown::{self, counted};

use super::{AdminTarget, Of, Printed, columns, explained, path, print, print_list, written};
use crate::values::positive;

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
    #[command(flatten)]
    format: Printed,
}

// A change of a key, with a reason.
#[derive(Debug, clap::Args)]
pub struct Change {
    #[command(flatten)]
    of: Of<AdminTarget>,
    /// Why: for the audit
    #[arg(long, value_name = "TEXT")]
    note: Option<String>,
    #[command(flatten)]
    format: Printed,
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
/// its denials, and what helps
///
/// Takes nothing. The requests of the key are counted by a server with --trace-keys. Exits with 0
/// if the key is admitted, 1 if it is denied.
#[derive(Debug, clap::Args)]
pub struct Explain {
    #[command(flatten)]
    of: Of<AdminTarget>,
    #[command(flatten)]
    format: Printed,
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
    /// The quota, as `limit` in the rules: 1000/1m, or for concurrency a number of permits; for a
    /// tenant of a limit with shares its weight: weight=10
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
    #[command(flatten)]
    format: Printed,
}

// All of something, and its form.
#[derive(Debug, clap::Args)]
pub struct All {
    #[command(flatten)]
    target: AdminTarget,
    #[command(flatten)]
    format: Printed,
}

/// Mark an event in the charts of the dashboard, and in the audit: tidegate mark "shop 1.4
/// deployed"
///
/// Call it from the deployment of a program: a change of the traffic then stands next to its cause.
#[derive(Debug, clap::Args)]
pub struct Mark {
    /// The words next to the mark
    note: String,
    /// Only in the charts of this limit
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    #[command(flatten)]
    target: AdminTarget,
    #[command(flatten)]
    format: Printed,
}

/// A key and its limit as a result names them: `mallory in cron`, or a global limit alone.
fn named(limit: &str, key: Option<&str>) -> String {
    match key {
        Some(key) => format!("{} in {}", shown::text(key), shown::text(limit)),
        None => shown::text(limit),
    }
}

/// For how long, as a result says it.
fn lasting(span: Option<Duration>, endless: &str) -> String {
    span.map_or_else(
        || endless.to_owned(),
        |span| format!("for {}", shown::span(span)),
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

pub fn block(args: &Block) -> ExitCode {
    let mut body = args.of.named();
    put_terms(&mut body, args.r#for, args.note.as_ref());
    let answer = args.of.target.target().post("/v1/block", &body);
    let lasting = lasting(args.r#for, "until it is unblocked");
    args.format.print(answer, |answer| {
        let anyway = if answer["deny_listed"] == true {
            "; it is denied in any case, because it is on the deny list of the rules"
        } else {
            ""
        };
        print(&format!("blocked {} {lasting}{anyway}", args.of));
        true
    })
}

pub fn unblock(args: &Change) -> ExitCode {
    let mut body = args.of.named();
    put_terms(&mut body, None, args.note.as_ref());
    let answer = args.of.target.target().post("/v1/unblock", &body);
    args.format.print(answer, |answer| {
        let was_blocked = answer["unblocked"] == true;
        if was_blocked {
            print(&format!("unblocked {}", args.of));
        } else {
            print(&format!("{} was not blocked", args.of));
        }
        was_blocked
    })
}

pub fn blocks(args: &List) -> ExitCode {
    let names = [
        "limit_name",
        "key",
        "since_ms",
        "until_ms",
        "client",
        "note",
    ];
    list(args, "/v1/blocks", "blocks", names)
}

pub fn overrides(args: &List) -> ExitCode {
    let names = [
        "limit_name",
        "key",
        "quota",
        "since_ms",
        "until_ms",
        "client",
        "note",
    ];
    list(args, "/v1/overrides", "overrides", names)
}

fn list<const N: usize>(args: &List, from: &str, name: &str, names: [&str; N]) -> ExitCode {
    let answer = args
        .target
        .target()
        .get(&path(from, [("limit", args.limit.as_ref())]));
    args.format
        .print(answer, |answer| columns(&answer[name], names))
}

pub fn audit(args: &All) -> ExitCode {
    let names = [
        "time_ms", "client", "action", "limit", "key", "value", "for_ms", "note",
    ];
    let answer = args.target.target().get("/v1/audit");
    args.format
        .print(answer, |answer| columns(&answer["actions"], names))
}

pub fn explain(args: &Explain) -> ExitCode {
    let Of { limit, key, target } = &args.of;
    let answer = target.target().get(&path(
        "/v1/explain",
        [("limit", Some(limit)), ("key", key.as_ref())],
    ));
    args.format.print(answer, explained)
}

pub fn override_key(args: &Override) -> ExitCode {
    let mut body = json!({"limit": args.limit, "key": args.key});
    match &args.quota {
        Some(quota) => body["quota"] = json!(quota),
        None => body["end"] = json!(true),
    }
    put_terms(&mut body, args.r#for, args.note.as_ref());
    let answer = args.target.target().post("/v1/override", &body);
    let of = named(&args.limit, Some(&args.key));
    args.format.print(answer, |answer| {
        let quota = args.quota.as_deref().unwrap_or_default();
        let lasting = lasting(args.r#for, "until it is ended");
        let (done, words) = match (answer["overridden"] == true, answer["ended"] == true) {
            (true, _) => (true, format!("{of} has {} {lasting}", shown::text(quota))),
            (false, true) => (true, format!("{of} has the quota of the rules again")),
            (false, false) => (false, format!("{of} had no override")),
        };
        print(&words);
        done
    })
}

pub fn rules(args: &All) -> ExitCode {
    args.format
        .print(args.target.target().get("/v1/rules"), |rules| {
            let mut lines = vec!["limits:".to_owned()];
            for limit in rules["limits"].as_array().into_iter().flatten() {
                lines.push(written(limit));
                for (key, own) in limit["runtime_overrides"].as_object().into_iter().flatten() {
                    let quota = own["quota"].as_str().unwrap_or_default();
                    lines.push(format!(
                        "    # by an operator, while the server runs: {}: {quota}",
                        Visible(&json!(key).to_string())
                    ));
                }
            }
            print_list(&lines.join("\n"));
            true
        })
}

pub fn reset(args: &Change) -> ExitCode {
    let mut body = args.of.named();
    put_terms(&mut body, None, args.note.as_ref());
    let answer = args.of.target.target().post("/v1/reset", &body);
    args.format.print(answer, |_| {
        let whose = match args.of.key.as_deref() {
            Some(_) => args.of.to_string(),
            None => format!("everything in {}", args.of),
        };
        print(&format!("reset {whose}: nothing counts as used"));
        true
    })
}

pub fn mark(args: &Mark) -> ExitCode {
    let body = json!({"note": args.note, "limit": args.limit});
    let answer = args.target.target().post("/v1/mark", &body);
    args.format.print(answer, |_| {
        let place = args.limit.as_deref().map_or_else(
            || "all charts".to_owned(),
            |limit| format!("the charts of {}", shown::text(limit)),
        );
        print(&format!("marked in {place}: {}", shown::text(&args.note)));
        true
    })
}

pub fn reload(args: &All) -> ExitCode {
    let answer = args.target.target().post("/v1/reload", &Value::Null);
    args.format.print(answer, |answer| {
        let limits = answer["limits"].as_u64().unwrap_or_default();
        let are = if limits == 1 { "is" } else { "are" };
        print(&format!("{} {are} in force", counted(limits, "limit")));
        true
    })
}

impl<T: clap::Args> std::fmt::Display for Of<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&named(&self.limit, self.key.as_deref()))
    }
}
