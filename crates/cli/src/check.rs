//! `tidegate check`: reads a rules file in the same way as `serve`, and prints its limits or its
//! mistakes.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{self, ExitCode},
};

use clap::ValueEnum;
use serde_json::{Value, json};
use tidegate_config::{Kind, Node, Problem, parse};
use tidegate_core::{Algorithm, Nanos};
use tidegate_flow::{rules::Rules as GateRules, sources::sentinel};
use tidegate_server::{
    access, envoy,
    limits::{Capacity, Limit, Limits},
    rules::{self, Keeping, Rules, RulesError, SharesSpec},
    shown::counted,
};

use crate::{help, output};

/// Check a rules file, the configuration of Envoy's rate limit service, Sentinel's rules, or an
/// access file
///
/// Prints the limits (or the clients) in the file, or every mistake with its line, the reason and
/// how to correct it. Exits with 1 if the file cannot be used.
#[derive(Debug, clap::Args)]
#[command(after_long_help = format!("{REFERENCE}\n\n{STORE}", STORE = crate::about_store::STORE))]
pub struct Args {
    /// The rules file; or a directory, or a file with a `domain`, as for serve --envoy-config; or a
    /// file with `access`, as for serve --access; or Sentinel's JSON, as a file or a directory: its
    /// cluster rules become limits, as for serve --sentinel-rules; - is standard input
    file: PathBuf,
    /// How to print the result: text, json (one object, with each problem's file and line), or
    /// github (annotations for a workflow of GitHub Actions)
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// The maximum number of keys of a limit without its own max_keys
    #[arg(long, value_name = "N", env = "TIDEGATE_MAX_KEYS", default_value_t = crate::serve::MAX_KEYS)]
    max_keys: u32,
    /// Memory for the keys of all limits together, such as 512MiB, divided by use (see tidegate
    /// serve --help)
    #[arg(long, value_name = "BYTES", env = "TIDEGATE_MAX_MEMORY", value_parser = crate::values::bytes)]
    max_memory: Option<u64>,
    /// Check the file for servers that share their limits over a store (serve --store), which does
    /// not support every limit
    #[arg(long)]
    shared: bool,
    /// Also run the script of each limit once in this store, as for serve --store, and report what
    /// keeps decisions from working there: commands, rights, a node of a cluster, a proxy
    #[arg(long, value_name = "URL")]
    store: Option<String>,
}

/// How the result is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    #[default]
    Text,
    Json,
    Github,
}

/// The contents of a rules file.
const REFERENCE: &str = include_str!("check.txt").trim_ascii_end();

pub fn run(args: &Args) -> ExitCode {
    match Copied::of(&args.file) {
        Ok(None) => check(args, &args.file),
        Ok(Some(copied)) => check(args, &copied.0),
        Err(error) => {
            eprintln!("error: cannot read {}: {error}", args.file.display());
            ExitCode::FAILURE
        }
    }
}

/// A copy of a stream, because a file's kind is found by reading it more than once. It is removed
/// on drop.
struct Copied(PathBuf);

impl Copied {
    /// Of standard input or of a pipe; `None` for a file that can be read again.
    fn of(file: &Path) -> io::Result<Option<Self>> {
        let is_stdin = file == Path::new("-");
        if !is_stdin && fs::metadata(file).map_or(true, |there| there.is_file() || there.is_dir()) {
            return Ok(None);
        }
        let mut text = Vec::new();
        // A byte more than a rules file may have, so that a longer one is refused.
        let most = rules::MAX_FILE + 1;
        if is_stdin {
            io::stdin().lock().take(most).read_to_end(&mut text)?;
        } else {
            File::open(file)?.take(most).read_to_end(&mut text)?;
        }
        // Sentinel's rules are a list, and known by the ending.
        let ending = if text.trim_ascii_start().starts_with(b"[") {
            "json"
        } else {
            "yaml"
        };
        let copy =
            Self(std::env::temp_dir().join(format!("tidegate-check-{}.{ending}", process::id())));
        let mut made = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&copy.0)?;
        io::Write::write_all(&mut made, &text)?;
        Ok(Some(copy))
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // The system cleans the directory some time.
        let _ = fs::remove_file(&self.0);
    }
}

/// The kind of entries of a valid file, their names, and a text about them.
type Valid = (&'static str, Vec<String>, String);

fn check(args: &Args, file: &Path) -> ExitCode {
    if is_configuration(file) {
        let problem = Problem::overall("these are options of `serve`").mend(
            "start tidegate serve --config with this file, which names all mistakes in it; check is for the files that the options name",
        );
        let error = RulesError::invalid(Some(file), problem);
        return refuse(&error, args, file, "it has no rules");
    }
    let (checked, so) = match access::check(file) {
        Some(clients) => (
            clients.map(|clients| of_clients(&clients, args, file)),
            "it would not be used",
        ),
        None => (of_rules(args, file), "none of its rules would be used"),
    };
    if let (Ok(_), Some(url)) = (&checked, &args.store)
        && let Err(error) = examine(url, args, file)
    {
        eprintln!("error: the store cannot decide these limits: {error}");
        return ExitCode::FAILURE;
    }
    match checked {
        Ok((what, names, _)) if args.format == Format::Json => {
            let valid = json!({"file": args.file, "valid": true, (what): names, "problems": []});
            output::exit_code(output::write(&format!("{valid}\n")))
        }
        Ok((.., text)) => output::exit_code(output::write(&format!("{text}\n"))),
        Err(error) => refuse(&error, args, file, so),
    }
}

/// Whether a file has options of `serve`, as `--config` reads them.
fn is_configuration(file: &Path) -> bool {
    let root = rules::read_text(file)
        .ok()
        .and_then(|text| parse(&text).ok().flatten());
    let Some(Node {
        kind: Kind::Mapping(entries),
        ..
    }) = root
    else {
        return false;
    };
    let command = help::command();
    let options: Vec<&str> = command
        .find_subcommand("serve")
        .into_iter()
        .flat_map(clap::Command::get_arguments)
        .filter_map(clap::Arg::get_long)
        .collect();
    let has = |is_one: &dyn Fn(&str) -> bool| {
        let mut names = entries.iter().filter_map(|(name, _)| name.text());
        names.any(is_one)
    };
    // `access` is the list of an access file, too.
    has(&|name| name != "access" && options.contains(&name))
        && !has(&|name| ["limits", "domain"].contains(&name))
}

/// Runs each limit's script once in the store at this address. Nothing is announced to the servers
/// that share it.
fn examine(url: &str, args: &Args, file: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let address = url.parse()?;
    let rules = load(file, Keeping::Store)?;
    let capacity = Capacity::from(args.max_keys as usize);
    let limits = Limits::for_a_store(rules, capacity, Nanos::ZERO)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let store = tidegate_redis::Store::to_examine(address, "tidegate")?;
        let mut built = Vec::new();
        for limit in limits.limits() {
            let spec = limit.spec();
            let policy = spec.policy.policy()?;
            let mut limit = store
                .limit(&spec.name, policy)
                .mode(spec.sharing.mode.unwrap_or_default())
                .local_keys(1);
            if let Some(slack) = spec.sharing.slack {
                limit = limit.slack(slack);
            }
            built.push(limit.build()?);
        }
        store.examine().await?;
        let stats = store.stats();
        if !stats.missing_commands.is_empty() {
            eprintln!(
                "warning: the store does not run {}: these limits work, and reservations, refunds, blocks or overrides may not; give the \
                 store's user these commands",
                stats.missing_commands.join(", ")
            );
        }
        if let Some(policy) = stats.evicts {
            eprintln!(
                "warning: the store may evict limits in force ({policy}), which then admit their units again; set maxmemory-policy to \
                 noeviction, or give the limits a store of their own"
            );
        }
        Ok(())
    })
}

fn of_clients(clients: &[access::Client], args: &Args, file: &Path) -> Valid {
    let (given, count) = (args.file.display(), counted(clients.len() as u64, "client"));
    let mut text = format!("{}{given} is valid: {count}.", table_of(clients));
    if access::others_may_write(file) {
        let _ = write!(
            text,
            "\nnote: every user of this machine may change it: chmod o-w {given}"
        );
    }
    (
        "clients",
        clients.iter().map(|client| client.name.clone()).collect(),
        text,
    )
}

fn of_rules(args: &Args, file: &Path) -> Result<Valid, RulesError> {
    let keeping = if args.shared || args.store.is_some() {
        Keeping::Store
    } else {
        Keeping::Memory
    };
    let rules = load(file, keeping)?;
    let gate = rules.gate.clone();
    let capacity = Capacity {
        max_memory: args.max_memory,
        ..Capacity::from(args.max_keys as usize)
    };
    let limits = match keeping {
        Keeping::Memory => Limits::new(rules, capacity, |_| None, Nanos::ZERO)?,
        Keeping::Store => Limits::for_a_store(rules, capacity, Nanos::ZERO)?,
    };
    let (mut text, mut held) = (String::new(), Vec::new());
    if !limits.limits().is_empty() {
        let _ = writeln!(text, "{}", table(&limits));
        if let Some(bytes) = limits.max_memory() {
            let _ = writeln!(
                text,
                "All limits share {}. A limit without max_keys starts with the number of keys shown, which grows or \
                 shrinks with its use.\n",
                size(bytes)
            );
        }
        held.push(counted(limits.limits().len() as u64, "limit"));
    }
    let kinds = gate.counts().into_iter().filter(|(_, count)| *count > 0);
    let kinds: Vec<String> = kinds
        .map(|(kind, count)| format!("{kind}: {count}"))
        .collect();
    if !kinds.is_empty() {
        held.push(format!(
            "flow control for programs with a gate ({})",
            kinds.join(", ")
        ));
    }
    if held.is_empty() {
        held.push("it has no rules".to_owned());
    }
    let _ = write!(
        text,
        "{} is valid: {}.",
        args.file.display(),
        held.join("; ")
    );
    Ok(("limits", limits.names(), text))
}

fn refuse(error: &RulesError, args: &Args, file: &Path, so: &str) -> ExitCode {
    let (read, given) = (file.display().to_string(), args.file.display().to_string());
    let mut problems = Vec::new();
    list(error, &args.file, &mut problems);
    for problem in &mut problems {
        // A copy of a stream is called as the stream.
        let named = problem["file"]
            .as_str()
            .unwrap_or_default()
            .replace(&read, &given);
        problem["file"] = json!(named);
    }
    let text = match args.format {
        Format::Json => format!(
            "{}\n",
            json!({"file": args.file, "valid": false, "problems": problems})
        ),
        Format::Github => problems
            .iter()
            .map(|problem| annotation(problem) + "\n")
            .collect(),
        Format::Text => {
            eprintln!("{}", error.to_string().replace(&read, &given));
            let count = error.problems().len();
            if count > 1 {
                eprintln!("\n{given} has {count} problems; {so}.");
            }
            String::new()
        }
    };
    if let Err(error) = output::write(&text) {
        output::report(&error);
    }
    ExitCode::FAILURE
}

/// Each problem of an error with its file, line and advice.
fn list(error: &RulesError, file: &Path, listed: &mut Vec<Value>) {
    match error {
        RulesError::Invalid { path, problems } => listed.extend(problems.iter().map(|problem| {
            let file = path.as_deref().unwrap_or(file);
            json!({"file": file, "line": problem.line(), "problem": problem.what(), "advice": problem.mending()})
        })),
        RulesError::Several { errors } => errors.iter().for_each(|error| list(error, file, listed)),
        other => listed.push(json!({"file": file, "line": null, "problem": other.to_string(), "advice": null})),
    }
}

/// A problem as a workflow command of GitHub Actions.
fn annotation(problem: &Value) -> String {
    let escaped = |text: &str| {
        text.replace('%', "%25")
            .replace('\r', "%0D")
            .replace('\n', "%0A")
    };
    let file = escaped(problem["file"].as_str().unwrap_or_default())
        .replace(':', "%3A")
        .replace(',', "%2C");
    let line = problem["line"]
        .as_u64()
        .map(|line| format!(",line={line}"))
        .unwrap_or_default();
    let texts = [&problem["problem"], &problem["advice"]]
        .into_iter()
        .filter_map(Value::as_str);
    format!(
        "::error file={file}{line}::{}",
        escaped(&texts.collect::<Vec<_>>().join("; "))
    )
}

/// The clients of an access file.
fn table_of(clients: &[access::Client]) -> String {
    let mut rows = vec![["CLIENT", "MAY", "LIMITS", "SHOWS"].map(str::to_owned)];
    rows.extend(clients.iter().map(|client| {
        let some = |count: usize, what: &str| (count > 0).then(|| counted(count as u64, what));
        let shows = [
            some(client.tokens, "token"),
            some(client.certificates, "certificate name"),
            (client.addresses > 0).then(|| format!("{} of its addresses", client.addresses)),
        ];
        let limits = if client.limits.is_empty() {
            "all".to_owned()
        } else {
            client.limits.join(", ")
        };
        let shows = shows.into_iter().flatten().collect::<Vec<_>>().join(", ");
        [client.name.clone(), client.roles.join(", "), limits, shows]
    }));
    let mut text = format!("{}\n", aligned(&rows));
    for client in clients {
        let open = client
            .limits
            .iter()
            .filter(|prefix| prefix.ends_with(|last: char| last.is_alphanumeric()));
        for prefix in open {
            let _ = writeln!(
                text,
                "note: `{prefix}` of {} also covers limits such as `{prefix}-2`; end it with a separator (`{prefix}.`) if it should not",
                client.name
            );
        }
    }
    text
}

/// Loads the rules of the file, in either form.
fn load(path: &Path, keeping: Keeping) -> Result<Rules, RulesError> {
    if is_sentinels(path) {
        return load_sentinels(path);
    }
    if path.is_dir() || envoy::is_config(path) {
        let limits = envoy::load(path, keeping)?.limits;
        return Ok(Rules {
            limits,
            ..Rules::default()
        });
    }
    rules::load(path, keeping)
}

#[cfg(feature = "sentinel")]
fn load_sentinels(path: &Path) -> Result<Rules, RulesError> {
    let limits = tidegate_server::cluster::load_cluster(path)?.limits;
    // A file with cluster rules is one for the server, and may have several kinds of them.
    let gate = if limits.is_empty() && path.is_file() {
        gate_rules(path)?
    } else {
        GateRules::default()
    };
    Ok(Rules {
        limits,
        gate,
        ..Rules::default()
    })
}

/// They may be cluster rules, which this program does not know.
#[cfg(not(feature = "sentinel"))]
fn load_sentinels(path: &Path) -> Result<Rules, RulesError> {
    let problem = rules::Problem::overall("this program was built without Sentinel");
    let problem = problem.mend("check these rules with one that has the feature `sentinel`");
    Err(RulesError::invalid(Some(path), problem))
}

/// Whether these are rules of Sentinel: a file that ends in `.json`, or a directory with one.
fn is_sentinels(path: &Path) -> bool {
    let is_json = |path: &Path| path.extension().is_some_and(|ending| ending == "json");
    if !path.is_dir() {
        return is_json(path);
    }
    path.read_dir().is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| is_json(&entry.path())))
    })
}

/// The rules for a program's gate in a file of Sentinel.
pub fn gate_rules(path: &Path) -> Result<GateRules, RulesError> {
    let text = std::fs::read_to_string(path).map_err(|source| RulesError::Read {
        path: path.to_owned(),
        source,
    })?;
    let mut rules = GateRules::default();
    let kind = sentinel::kind_of(&text).unwrap_or(sentinel::Kind::Flow);
    let update = sentinel::parse(kind, &text).map_err(|error| {
        RulesError::invalid(Some(path), rules::Problem::overall(error.to_string()))
    })?;
    update.apply(&mut rules);
    Ok(rules)
}

fn table(limits: &Limits) -> String {
    let head = [
        "LIMIT",
        "QUOTA",
        "ALGORITHM",
        "FOR",
        "KEYS",
        "MEMORY",
        "NOTES",
    ]
    .map(str::to_owned);
    let mut rows = vec![head];
    rows.extend(limits.limits().iter().map(|limit| row(limit)));
    aligned(&rows)
}

/// Rows of the same length, with their columns below each other.
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let width = |column: usize| {
        rows.iter()
            .map(|row| row.as_ref()[column].chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, |row| row.as_ref().len()))
        .map(width)
        .collect();
    let line = |row: &R| {
        let cells = row
            .as_ref()
            .iter()
            .zip(&widths)
            .map(|(cell, &width)| format!("{cell:width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

fn row(limit: &Limit) -> [String; 7] {
    let spec = limit.spec();
    let stats = limit.stats();
    let mut notes = vec![spec.policy.options(), spec.sharing.options()];
    notes.extend(match spec.exact_all_the_same() {
        0 => None,
        all if all > spec.overrides.len() => Some(format!("exact: {}", why_exact(limit))),
        some => Some(format!("{some} of its policies are exact")),
    });
    notes.extend(
        spec.shadow
            .then(|| if spec.soft { "soft" } else { "shadow" }.to_owned()),
    );
    let count = |what: &str, count: usize| (count > 0).then(|| format!("{count} {what}"));
    notes.extend(spec.shares.as_ref().map(SharesSpec::told));
    notes.extend(count("overridden", spec.overrides.len()));
    notes.extend(count("denied", spec.deny.len()));
    notes.retain(|note| !note.is_empty());
    [
        spec.name.clone(),
        spec.policy.quota(),
        spec.policy.algorithm.name().to_owned(),
        if spec.has_one_state() {
            "all"
        } else {
            "each key"
        }
        .to_owned(),
        if spec.global {
            "-".to_owned()
        } else {
            stats.max_keys.to_string()
        },
        format!("at most {}", size(stats.bytes)),
        notes.join(", "),
    ]
}

/// Why a limit is exact although another mode is configured.
fn why_exact(limit: &Limit) -> String {
    let spec = limit.spec();
    let Ok(policy) = spec.policy.policy() else {
        return "its policy is invalid".to_owned();
    };
    let leased = spec.sharing.mode == Some(tidegate_redis::Mode::Leased);
    let why = match (policy.name(), policy.limit()) {
        _ if policy.penalty().is_some() => "the store counts each denial for block_for",
        _ if policy.waits_for_oversize() => "the store says when a cost above the limit starts",
        ("leaky-bucket" | "concurrency", _) => "this algorithm has no other mode",
        (_, 0) => "it admits nothing",
        ("token-bucket", burst) if leased && burst < 16 => {
            "a leased token bucket needs a burst of at least 16"
        }
        ("token-bucket", _) if leased => {
            "less than one unit is refilled within its slack, so none can be taken ahead; set a longer `slack`"
        }
        _ if leased => "its window is too short for units that are taken ahead",
        _ => "nothing may be unreported",
    };
    why.to_owned()
}

fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (bytes.max(1).ilog2() / 10).min(4);
    let value = bytes as f64
        / f64::from(1_u32 << (10 * unit.min(3)))
        / if unit == 4 { 1024.0 } else { 1.0 };
    if value < 10.0 && unit > 0 {
        format!("{value:.1} {}", UNITS[unit as usize])
    } else {
        format!("{value:.0} {}", UNITS[unit as usize])
    }
}
