//! The options of `tidegate simulate`.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{num::NonZeroU16, path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};
use tidegate_core::{Quota, parse_duration};
use tidegate_sim::{
    AlgorithmSpec, Fleet, Goal, Load, Mode, Share,
    input::{
        By, Condition, Field, Filter, Format, Moment, Networks, Stamp, Took, UnknownFormat, Zone,
    },
    workload::{Arrival, Traffic},
};

use crate::{
    client::How,
    values::{Address, MayBeNone, ValueError, server},
};

/// Replay a log through candidate limits and see who would have been denied.
///
/// The real algorithms decide on every request of the log at the time when it arrived. Each
/// decision is compared with that of an exact sliding log.
#[derive(Debug, Parser)]
#[command(after_long_help = AFTER)]
pub struct Args {
    /// Logs: access logs (common, combined, vhost_combined; those of Envoy, HAProxy, Squid, granian,
    /// Tornado, gin and AWS load balancers), lines with named fields (JSON of nginx, Caddy, Traefik, a cloud or your own,
    /// logfmt, CSV with a header, W3C logs), or requests per second (whole numbers separated by
    /// blanks); plain, .gz, .bz2, .xz, .zst or .tar; - is standard input. Or the trace of a server,
    /// as tidegate record writes it.
    #[arg(
        value_name = "FILE", required_unless_present_any = ["synthetic", "server"],
        conflicts_with_all = ["synthetic", "server"]
    )]
    pub files: Vec<PathBuf>,

    /// Replay the trace of a running server (serve --trace-keys) instead of a log: the address of
    /// its control plane, as in http://127.0.0.1:8082. With --rules, each limit is compared with
    /// the decisions of the server's limit of the same name. The numbers for all keys are
    /// estimates, shown with their margins.
    #[arg(long, value_name = "ADDR", value_parser = server, conflicts_with_all = ["synthetic", "follow", "nodes"])]
    pub server: Option<Address>,

    /// A limit to try, such as 100/1m; may be given several times.
    #[arg(long = "limit", short, value_name = "N/DURATION")]
    pub limits: Vec<Quota>,

    /// Replay the limits of a rules file, as tidegate serve reads it. A limit's match: {path:
    /// /login, method: POST} selects its requests (default: all; * matches anything), and its by:
    /// ip or by: [ip, path] selects its keys (default: ip).
    #[arg(
        long, value_name = "FILE",
        conflicts_with_all = ["limits", "suggest", "by", "algorithms", "synthetic", "nodes"]
    )]
    pub rules: Option<PathBuf>,

    /// Follow the log while it is written, until it ends or Ctrl-C. A line per second shows how
    /// many of the requests that were logged in that second the limits deny. - is read from its
    /// beginning, and a file from its end, also after a rotation. The algorithm is sliding-window
    /// unless --algorithm names others.
    #[arg(
        long, requires = "limits",
        conflicts_with_all = ["rules", "suggest", "synthetic", "nodes", "report"]
    )]
    pub follow: bool,

    /// The key of each limit: ip (of an IPv6 address the first 64 bits), forwarded (the client behind
    /// the proxies of --trusted-proxies), path, method, status,
    /// user-agent, host, a field of lines with named fields, global (one limit for all), or several
    /// joined by commas, such as ip,path. [default: ip; for requests per second: global]
    #[arg(long)]
    pub by: Option<By>,

    /// Replay each limit as one limit of all requests that tenants share with equal weights, next to
    /// the same limit without shares: by=FIELD names the tenant, as in by=host. Weights, guarantees
    /// and a ceiling are for --rules, whose limits with shares: are replayed in the same way.
    #[arg(
        long, value_name = "by=FIELD", value_parser = parse_shares, requires = "limits",
        conflicts_with_all = ["rules", "by", "suggest", "synthetic", "nodes", "follow", "server", "charge"]
    )]
    pub shares: Option<By>,

    /// The networks and addresses of proxies, joined by commas. For --by forwarded, the client is the
    /// first address outside them: the log's client, then X-Forwarded-For from the right.
    #[arg(long, value_name = "NETWORKS", conflicts_with_all = ["synthetic", "server"])]
    pub trusted_proxies: Option<Networks>,

    /// Algorithms to compare, joined by commas, each option after a colon. [default: all six]
    ///
    /// fixed-window[:first-hit], sliding-log[:closed],
    /// sliding-window[:slots=10][:mode=strict|balanced], sliding-counter, token-bucket[:burst=N],
    /// leaky-bucket[:max-wait=DURATION]; each also [:count-denied].
    #[arg(long = "algorithm", short, value_name = "LIST", value_parser = AlgorithmSpec::parse_list)]
    pub algorithms: Option<Vec<Vec<AlgorithmSpec>>>,

    /// Leave out requests whose field has this value; * matches anything: path=/health*, status=5*.
    /// May be given several times.
    #[arg(long, value_name = "FIELD=PATTERN", conflicts_with = "synthetic")]
    pub exclude: Vec<Condition>,

    /// Leave out requests before this time: 2015-05-17, 2015-05-17T10:05:03Z or in the log's own
    /// form.
    #[arg(
        long = "from",
        alias = "since",
        value_name = "TIME",
        conflicts_with = "synthetic"
    )]
    pub since: Option<Moment>,

    /// Leave out requests at and after this time.
    #[arg(
        long = "to",
        alias = "until",
        value_name = "TIME",
        conflicts_with = "synthetic"
    )]
    pub until: Option<Moment>,

    /// The log's format: auto, common, combined, vhost_combined, envoy, alb, haproxy, squid, granian,
    /// tornado, gin, jsonl, logfmt, w3c, csv, rate (requests per second).
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = parse_format, conflicts_with = "synthetic")]
    pub format_in: MayBeNone<Format>,

    /// The field that contains the time: RFC 3339, or a number since 1970. [default: the first one
    /// present of StartUTC, time, timestamp, @timestamp, ts, msec, time_iso8601, time_local,
    /// start_time, EdgeStartTimestamp, requestTime, t, date]
    #[arg(long, value_name = "FIELD", conflicts_with = "synthetic")]
    pub time_field: Option<String>,

    /// Spread the requests of one key with the same time evenly over the log's time unit: over one
    /// second if the log has whole seconds. Without this option, all of them arrive at its start.
    #[arg(long, conflicts_with = "synthetic")]
    pub spread: bool,

    /// Charge a field of each line after the answer, whether it fits or not: bytes (those of the
    /// answer), or a field of lines with named fields, such as usage.total_tokens. The request
    /// itself asks with a cost of 0. With --rules, for all limits of the file.
    #[arg(
        long, value_name = "FIELD", value_parser = parse_field,
        conflicts_with_all = ["suggest", "synthetic", "nodes", "follow", "server", "spread"]
    )]
    pub charge: Option<Field>,

    /// The field with the time that a request took, in seconds, or with :ms, :us or :ns behind its
    /// name. A cost is charged when the answer ended, and with times of the end a request counts
    /// when it began. [default: the format's own field, if it has one]
    #[arg(long, value_name = "FIELD[:UNIT]", conflicts_with_all = ["synthetic", "server"])]
    pub took: Option<Took>,

    /// The moment of a request that its time in the log is: its start or its end. [default: as the
    /// format says; start if it does not say]
    #[arg(long, value_name = "start|end", conflicts_with_all = ["synthetic", "server"])]
    pub stamped: Option<Stamp>,

    /// The time zone of times that state none, such as +02:00 or Europe/Berlin.
    #[arg(long, value_name = "ZONE", default_value_t, conflicts_with_all = ["synthetic", "server"])]
    pub zone: Zone,

    /// How to print the findings.
    #[arg(long, value_enum, default_value_t)]
    pub format: Output,

    /// Also write a page with charts to this file; - prints it instead of the table.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// How many of the most denied keys the table shows, at most 20.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(0..=20), conflicts_with = "follow")]
    pub top: u8,

    /// Number of threads, at most 1024; it does not affect the findings. [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,

    #[command(flatten)]
    pub synthetic: SyntheticArgs,

    #[command(flatten)]
    pub suggest: SuggestArgs,

    #[command(flatten)]
    pub fleet: FleetArgs,

    #[command(flatten, next_help_heading = "The server of --server")]
    pub how: How,
}

impl Args {
    /// The requests to leave out.
    pub fn filter(&self) -> Filter {
        Filter {
            exclude: self.exclude.clone(),
            since: self.since,
            until: self.until,
        }
    }
}

/// Nodes that share the limits.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits shared by nodes")]
pub struct FleetArgs {
    /// Distribute the requests over N nodes that share each limit, at most 1000. Each request goes
    /// to a random node (the same in every run), as with a load balancer that does not know the
    /// keys.
    #[arg(long, value_name = "N", value_parser = parse_nodes)]
    pub nodes: Option<NonZeroU16>,

    /// How evenly the requests are distributed.
    #[arg(long, value_enum, default_value_t, requires = "nodes")]
    pub load: NodeLoad,

    /// How the nodes share a limit.
    #[arg(long, value_enum, default_value_t, requires = "nodes")]
    pub mode: SharingMode,

    /// The round trip between a node and the store that holds the exact state.
    #[arg(long, value_name = "DURATION", default_value = "500us", value_parser = parse_round_trip, requires = "nodes")]
    pub rtt: Duration,

    /// The maximum time for which a leased unit is kept and a report waits.
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = parse_duration, requires = "nodes")]
    pub slack: Duration,

    /// How much a node may have used and not yet reported. [default: a twentieth of the limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "nodes")]
    pub unreported: Option<u32>,

    /// The lifetime of a node. It then dies without notice, and another replaces it; the nodes do
    /// not die at the same time. [default: unlimited]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "nodes")]
    pub node_life: Option<Duration>,
}

impl FleetArgs {
    pub fn fleet(&self) -> Option<Fleet> {
        let &Self {
            nodes,
            load,
            mode,
            rtt,
            slack,
            unreported,
            node_life,
        } = self;
        let load = match load {
            NodeLoad::Even => Load::Even,
            NodeLoad::Skewed => Load::Skewed,
            NodeLoad::Moving => Load::Moving,
        };
        Some(Fleet {
            nodes: nodes?,
            load,
            mode: mode.into(),
            round_trip: rtt,
            slack,
            unreported,
            node_life,
        })
    }
}

/// How requests are distributed over nodes.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum NodeLoad {
    /// All nodes get as many.
    #[default]
    Even,
    /// The first quarter of the nodes gets half.
    Skewed,
    /// The same, but each second the next node is the first.
    Moving,
}

/// How nodes share a limit.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum SharingMode {
    /// The store makes every decision.
    Exact,
    /// Each node takes parts of the quota and decides from them: never over.
    #[default]
    Leased,
    /// Each node decides from what it last saw, and reports what it uses: over by at most what each
    /// has not reported.
    Reported,
}

impl From<SharingMode> for Mode {
    fn from(mode: SharingMode) -> Self {
        match mode {
            SharingMode::Exact => Self::Exact,
            SharingMode::Leased => Self::Leased,
            SharingMode::Reported => Self::Reported,
        }
    }
}

fn parse_field(name: &str) -> Result<Field, &'static str> {
    Field::from_name(name).ok_or("name a field, such as bytes")
}

fn parse_nodes(text: &str) -> Result<NonZeroU16, &'static str> {
    let nodes = text
        .parse()
        .ok()
        .and_then(NonZeroU16::new)
        .filter(|nodes| nodes.get() <= 1_000);
    nodes.ok_or("the number of nodes is from 1 to 1000")
}

fn parse_round_trip(text: &str) -> Result<Duration, ValueError> {
    let span = parse_duration(text)?;
    if span > Duration::from_hours(1) {
        Err(ValueError::Form("a round trip is at most 1h"))
    } else {
        Ok(span)
    }
}

/// Traffic without a log.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Synthetic traffic")]
#[group(requires = "synthetic", conflicts_with = "files")]
pub struct SyntheticArgs {
    /// Generate traffic instead of reading a log.
    #[arg(long)]
    pub synthetic: bool,

    /// The number of sources (keys).
    #[arg(long, value_name = "N", default_value_t = Traffic::default().sources)]
    pub sources: u32,

    /// The number of requests of all sources together.
    #[arg(long, value_name = "N", default_value_t = Traffic::default().requests)]
    pub requests: u64,

    /// The time over which the requests are spread.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_duration)]
    pub duration: Duration,

    /// How unequal the sources are: the source of rank r makes requests in proportion to 1/r^S;
    /// with 0 all are equal.
    #[arg(long, value_name = "S", default_value_t = Traffic::default().zipf)]
    pub zipf: f64,

    /// How each source's requests are spread over time: poisson, bursty, or bursty=BIAS with a bias
    /// between 0.5 (even) and 1 (all at once); bursty is 0.75.
    #[arg(long, default_value = "poisson")]
    pub arrival: Arrival,

    /// The seed of the generator: the same seed gives the same traffic.
    #[arg(long, value_name = "N", default_value_t = Traffic::default().seed)]
    pub seed: u64,
}

impl SyntheticArgs {
    pub fn traffic(&self) -> Traffic {
        let &Self {
            sources,
            requests,
            duration,
            zipf,
            arrival,
            seed,
            ..
        } = self;
        Traffic {
            sources,
            requests,
            duration,
            zipf,
            arrival,
            seed,
        }
    }
}

/// The search for a limit.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Suggesting a limit")]
pub struct SuggestArgs {
    /// Find, for each algorithm, the smallest limit that denies at most a share of the keys or of
    /// the requests.
    #[arg(long)]
    pub suggest: bool,

    /// The window of the suggested limit. [default: those of the given limits, or 1m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "suggest")]
    pub window: Option<Duration>,

    /// The share of keys that may be denied at least once, such as 1%. [default: 1% unless
    /// --deny-requests is given]
    #[arg(long, value_name = "PERCENT", requires = "suggest")]
    pub deny_keys: Option<Share>,

    /// The share of requests that may be denied, such as 0.1%.
    #[arg(long, value_name = "PERCENT", requires = "suggest")]
    pub deny_requests: Option<Share>,
}

impl SuggestArgs {
    pub fn goal(&self) -> Goal {
        let keys = self
            .deny_keys
            .or(self.deny_requests.is_none().then_some(Share::ONE_PERCENT));
        Goal {
            keys,
            requests: self.deny_requests,
        }
    }
}

/// How findings are printed.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Output {
    /// Tables for people to read.
    #[default]
    #[value(alias = "table")]
    Text,
    /// One object with everything that the table and the page show.
    Json,
}

fn parse_format(text: &str) -> Result<MayBeNone<Format>, UnknownFormat> {
    if text == "auto" {
        Ok(None)
    } else {
        text.parse().map(Some)
    }
}

const AFTER: &str = include_str!("examples.txt").trim_ascii_end();

fn parse_shares(text: &str) -> Result<By, ValueError> {
    let by = text
        .strip_prefix("by=")
        .ok_or("write the field that names a tenant, as in by=host")?;
    let by: By = by.parse()?;
    if by == By::GLOBAL {
        return Err("global is no tenant: name a field, as in by=host".into());
    }
    Ok(by)
}
