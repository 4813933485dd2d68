//! The commands: what each does with the gate, and its answer.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    sync::PoisonError,
};

use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_flow::{
    Node,
    metric_log::{INBOUND, MetricLine},
    rules::Rules,
    sources::{
        RuleUpdate, SourceError,
        sentinel::{self, Kind},
    },
};

use super::{Program, VERSION};
use crate::host;

/// Why a command is not run. The dashboard shows the text.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    #[error("Unknown command `{0}`")]
    Unknown(String),
    #[error("invalid type")]
    Kind,
    #[error("invalid parameter: empty id")]
    NoId,
    #[error("{0} is not a number")]
    NotANumber(&'static str),
    #[error(transparent)]
    Rules(#[from] SourceError),
}

type CommandHandler = fn(&Program, &Parameters) -> Result<String, CommandError>;

/// The commands and what they do, as `api` lists them.
const COMMANDS: [(&str, &str, CommandHandler); 16] = [
    ("api", "list the commands", |_, _| Ok(all())),
    ("version", "the version of the protocol", |_, _| {
        Ok(VERSION.to_owned())
    }),
    // As Sentinel answers while a program is neither a client nor a server.
    ("getClusterMode", "the role in a cluster: none", |_, _| {
        let none = json!({"mode": -1, "clientAvailable": false, "serverAvailable": false, "lastModified": -1});
        Ok(none.to_string())
    }),
    ("basicInfo", "the machine", |program, _| {
        Ok(json!({"machine": host::name(), "ip": program.address.ip().to_string()}).to_string())
    }),
    (
        "getRules",
        "the rules of a type: type={flow|degrade|system|authority}",
        |program, parameters| {
            let kind = named(parameters).ok_or(CommandError::Kind)?;
            Ok(sentinel::write(kind, &program.rules()).0)
        },
    ),
    (
        "setRules",
        "replace the rules of a type: type={type}&data={JSON}",
        |program, parameters| {
            let kind = named(parameters).ok_or(CommandError::Kind)?;
            program.set(kind, parameters)
        },
    ),
    (
        "getParamFlowRules",
        "the rules on hot parameters",
        |program, _| Ok(sentinel::write(Kind::ParamFlow, &program.rules()).0),
    ),
    (
        "setParamFlowRules",
        "replace the rules on hot parameters: data={JSON}",
        |program, parameters| program.set(Kind::ParamFlow, parameters),
    ),
    (
        "metric",
        "seconds of the last minute: startTime={ms}&endTime={ms}&identity={resource}",
        metric,
    ),
    (
        "clusterNode",
        "the statistics of each resource: type=notZero leaves out idle ones",
        |program, parameters| {
            let now = program.gate.now();
            let mut all: Vec<Value> = program
                .gate
                .resources()
                .iter()
                .map(|r| shown(r.name(), r.node(), now))
                .collect();
            if parameters.get("type").is_some_and(|kind| kind == "notZero") {
                all.retain(|node| node["totalQps"] != 0 || node["oneMinuteTotal"] != 0);
            }
            Ok(Value::Array(all).to_string())
        },
    ),
    (
        "cnode",
        "the statistics of resources whose name has a part: id={part}",
        |program, parameters| {
            let part = parameters.get("id").ok_or(CommandError::NoId)?;
            let resources = program.gate.resources();
            let named = resources
                .iter()
                .filter(|resource| resource.name().contains(&**part));
            Ok(table(
                "id",
                named.map(|resource| (resource.name().to_owned(), resource.node())),
                program.gate.now(),
            ))
        },
    ),
    (
        "origin",
        "the statistics of a resource by origin: id={resource}",
        |program, parameters| {
            let id = parameters.get("id").map(String::as_str).unwrap_or_default();
            let Some(resource) = program
                .gate
                .resources()
                .into_iter()
                .find(|resource| resource.name() == id)
            else {
                return Ok(format!("Not find cNode with id {id}"));
            };
            let origins = resource.origins();
            let nodes: Vec<_> = origins
                .into_iter()
                .filter_map(|name| Some((name.clone(), resource.origin(&name)?)))
                .collect();
            let rows = nodes.iter().map(|(name, node)| (name.clone(), &**node));
            Ok(format!(
                "id: {id}\n\n{}",
                table("origin", rows, program.gate.now())
            ))
        },
    ),
    ("jsonTree", "resources by context", |program, _| {
        Ok(tree(program).to_string())
    }),
    (
        "systemStatus",
        "the statistics of all inbound traffic",
        |program, _| {
            let sums = Sums::of(program.gate.inbound(), program.gate.now());
            let Sums {
                success,
                pass,
                block,
                rt,
                threads,
                ..
            } = sums;
            Ok(
                json!({"rqps": success, "qps": pass, "b": block, "r": rt, "t": threads})
                    .to_string(),
            )
        },
    ),
    ("getSwitch", "whether rules apply", |program, _| {
        Ok(format!("Sentinel switch value: {}", program.is_on()))
    }),
    (
        "setSwitch",
        "whether rules apply: value={true|false}",
        |program, parameters| {
            let is_on = parameters
                .get("value")
                .is_some_and(|value| value.eq_ignore_ascii_case("true"));
            program.switch(is_on);
            Ok(format!("Sentinel set switch value: {is_on}"))
        },
    ),
];

pub(super) type Parameters = HashMap<String, String>;

/// Runs a command.
///
/// # Errors
/// Why it cannot be run.
pub(super) fn run(
    program: &Program,
    name: &str,
    parameters: &Parameters,
) -> Result<String, CommandError> {
    match COMMANDS.iter().find(|(known, ..)| *known == name) {
        Some((.., command)) => command(program, parameters),
        None => Err(CommandError::Unknown(name.to_owned())),
    }
}

fn all() -> String {
    let listed = COMMANDS
        .iter()
        .map(|(name, what, _)| json!({"url": format!("/{name}"), "desc": what}));
    Value::Array(listed.collect()).to_string()
}

/// Hot parameters have separate commands.
fn named(parameters: &Parameters) -> Option<Kind> {
    let wanted = parameters.get("type")?;
    let is_it = |kind: &Kind| *kind != Kind::ParamFlow && kind.name().eq_ignore_ascii_case(wanted);
    Kind::OF_COMMANDS.into_iter().find(is_it)
}

impl Program {
    /// The rules that apply while the switch is on.
    fn rules(&self) -> Rules {
        let paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.clone().unwrap_or_else(|| self.gate.rules())
    }

    /// Replaces the rules of one kind by the valid ones of the text.
    fn set(&self, kind: Kind, parameters: &Parameters) -> Result<String, CommandError> {
        let text = parameters
            .get("data")
            .map(String::as_str)
            .unwrap_or_default();
        let (update, why) = match sentinel::parse(kind, text) {
            Ok(update) => (update, None),
            Err(SourceError::Partial { good, why }) => (*good, Some(why)),
            Err(error) => return Err(error.into()),
        };
        self.apply(update);
        if let Err(error) = self.keep(kind, text) {
            tracing::warn!(kind = kind.name(), %error, "pushed rules cannot be kept");
            return Ok("partial success (write data source failed)".to_owned());
        }
        tracing::info!(
            kind = kind.name(),
            left_out = why.as_deref(),
            "rules pushed"
        );
        Ok(why.map_or("success".to_owned(), |why| {
            format!("partial success ({why})")
        }))
    }

    fn apply(&self, update: RuleUpdate) {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *paused {
            Some(rules) => update.apply(rules),
            // Each rule was validated.
            None => drop(self.gate.apply_good(update)),
        }
    }

    fn is_on(&self) -> bool {
        self.paused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_none()
    }

    /// Without rules the gate still counts.
    fn switch(&self, is_on: bool) {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let rules = match (is_on, paused.take()) {
            (true, None) => return,
            (true, Some(rules)) => rules,
            (false, before) => {
                *paused = Some(before.unwrap_or_else(|| self.gate.rules()));
                Rules::default()
            }
        };
        // They were valid before.
        drop(self.gate.apply_good(rules.into()));
    }
}

/// The sums of a node: of the last interval, and of the last minute.
struct Sums {
    threads: u64,
    pass: u64,
    block: u64,
    success: u64,
    exception: u64,
    /// In milliseconds.
    rt: u64,
    /// Pass, block and exception.
    minute: [u64; 3],
}

impl Sums {
    fn of(node: &Node, now: Nanos) -> Self {
        let counts = node.counts(now);
        let minute =
            node.seconds(now)
                .into_iter()
                .fold([0; 3], |[pass, block, exception], second| {
                    let of = second.counts;
                    [pass + of.pass, block + of.block, exception + of.exception]
                });
        Self {
            threads: node.in_flight(),
            pass: counts.pass,
            block: counts.block,
            success: counts.success,
            exception: counts.exception,
            rt: u64::try_from(counts.mean_rt().as_millis()).unwrap_or(u64::MAX),
            minute,
        }
    }
}

/// A node as the dashboard reads it.
fn shown(name: &str, node: &Node, now: Nanos) -> Value {
    let Sums {
        threads,
        pass,
        block,
        success,
        exception,
        rt,
        minute,
    } = Sums::of(node, now);
    json!({
        "resource": name, "threadNum": threads, "passQps": pass, "blockQps": block, "totalQps": pass + block,
        "averageRt": rt, "successQps": success, "exceptionQps": exception,
        "oneMinutePass": minute[0], "oneMinuteBlock": minute[1], "oneMinuteException": minute[2],
        "oneMinuteTotal": minute[0] + minute[1], "timestamp": now.get() / 1_000_000,
    })
}

/// Nodes as a table for people: at most 30.
fn table<'n>(what: &str, nodes: impl Iterator<Item = (String, &'n Node)>, now: Nanos) -> String {
    let head = [
        "thread", "pass", "blocked", "total", "rt", "1m-pass", "1m-block", "1m-total",
    ];
    let mut text = format!("{:<4}{what:<40}", "idx");
    // Writing to a `String` does not fail.
    for head in head {
        let _ = write!(text, "{head:<10}");
    }
    for (at, (name, node)) in nodes.take(30).enumerate() {
        let Sums {
            threads,
            pass,
            block,
            rt,
            minute,
            ..
        } = Sums::of(node, now);
        let _ = write!(text, "\n{:<4}{name:<40}", at + 1);
        for number in [
            threads,
            pass,
            block,
            pass + block,
            rt,
            minute[0],
            minute[1],
            minute[0] + minute[1],
        ] {
            let _ = write!(text, "{number:<10}");
        }
    }
    text + "\n"
}

/// The root, the contexts, and the resources in each. Entries without a context are in Sentinel's
/// default context.
fn tree(program: &Program) -> Value {
    const ROOT: &str = "machine-root";
    let now = program.gate.now();
    let mut nodes = Vec::new();
    let mut push = |id: &str, parent: Option<&str>, mut node: Value| {
        node["id"] = json!(id);
        node["parentId"] = json!(parent);
        nodes.push(node);
    };
    push(ROOT, None, shown(ROOT, program.gate.inbound(), now));
    let mut contexts: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for resource in program.gate.resources() {
        let within = resource.contexts();
        if within.is_empty() {
            let node = shown(resource.name(), resource.node(), now);
            contexts
                .entry("sentinel_default_context".to_owned())
                .or_default()
                .push(node);
        }
        for context in within {
            let Some(node) = resource.context(&context) else {
                continue;
            };
            contexts
                .entry(context)
                .or_default()
                .push(shown(resource.name(), &node, now));
        }
    }
    for (context, resources) in contexts {
        let mut sum = resources[0].clone();
        for other in &resources[1..] {
            for (field, value) in sum.as_object_mut().into_iter().flatten() {
                if let (Some(one), Some(more)) = (value.as_u64(), other[field.as_str()].as_u64()) {
                    *value = json!(if field == "timestamp" || field == "averageRt" {
                        one.max(more)
                    } else {
                        one + more
                    });
                }
            }
        }
        sum["resource"] = json!(context);
        push(&context, Some(ROOT), sum);
        for node in resources {
            let id = format!(
                "{context}/{}",
                node["resource"].as_str().unwrap_or_default()
            );
            push(&id, Some(&context), node);
        }
    }
    Value::Array(nodes)
}

/// The seconds that have ended, as the metric log has them.
fn metric(program: &Program, parameters: &Parameters) -> Result<String, CommandError> {
    const MAX_LINES: usize = 12_000;
    let number = |name: &'static str| match parameters.get(name) {
        None => Ok(None),
        Some(text) => text
            .parse::<u64>()
            .map(Some)
            .map_err(|_| CommandError::NotANumber(name)),
    };
    let Some(start) = number("startTime")? else {
        return Ok(String::new());
    };
    let end = number("endTime")?.unwrap_or(u64::MAX);
    let most = number("maxLines")?.map_or(MAX_LINES, |most| MAX_LINES.min(most as usize));
    let wanted = parameters.get("identity").filter(|name| !name.is_empty());
    let now = program.gate.now();
    let resources = program.gate.resources();
    let nodes = resources
        .iter()
        .map(|resource| (resource.name(), resource.node()));
    let mut lines: Vec<MetricLine> = nodes
        .chain([(INBOUND, program.gate.inbound())])
        .filter(|(name, _)| wanted.is_none_or(|wanted| wanted == name))
        .flat_map(|(name, node)| {
            let ended = node.ended(now).into_iter();
            ended.map(move |second| MetricLine::new(name, &second))
        })
        .filter(|line| (start..=end).contains(&line.at_ms))
        .collect();
    lines.sort_by_key(|line| line.at_ms);
    lines.truncate(most);
    Ok(lines.iter().map(thin).collect())
}

/// A line without the date, and a line break: the form of the command `metric`.
fn thin(line: &MetricLine) -> String {
    let text = line.to_string();
    let (at, rest) = text.split_once('|').unwrap_or_default();
    format!("{at}|{}\n", rest.split_once('|').unwrap_or_default().1)
}
