//! Parses YAML into [`Rules`]: every option of every algorithm. It reports all problems of a file at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use tidegate_config::{Complaints, Fields, Kind, Node, Problem, abridged, parse as parse_yaml};
use tidegate_core::{AlgorithmSpec, ParseQuotaError, Quota};

use super::{Keeping, LimitSpec, OnExpiry, PolicySpec, Rules, SharingSpec, options, sharing, traffic};
use tidegate_flow::sources::yaml::{SECTIONS, read as read_gate};
use tidegate_limiter::WhenFull;

use crate::decide::{refusal::MAX_KEY_BYTES, throttle::THROTTLE};

/// The maximum length of a name, which is part of every metric and header.
const MAX_NAME: usize = 64;
/// The maximum number of limits in one file. It bounds the number of metrics.
const MAX_LIMITS: usize = 1_000;

/// In addition to the algorithms' own options.
const FIELDS: [&str; 17] = [
    "name",
    "limit",
    "algorithm",
    "global",
    "shadow",
    "when_full",
    "on_expiry",
    "overrides",
    "deny",
    "max_keys",
    "sharing",
    "on_error",
    "deadline",
    "slack",
    "unreported",
    "match",
    "by",
];

/// Parses the text of a rules file.
///
/// # Errors
/// All problems, in the order of the lines.
pub fn parse(text: &str) -> Result<Rules, Vec<Problem>> {
    parse_for(text, Keeping::Memory)
}

/// Parses the text of a rules file. `keeping` says where the limits are kept.
///
/// # Errors
/// The same as [`parse`]; for a store also limits that cannot be shared.
pub fn parse_for(text: &str, keeping: Keeping) -> Result<Rules, Vec<Problem>> {
    let mut complaints = Complaints::default();
    let rules =
        match parse_yaml(text) {
            Ok(Some(root)) => read_rules(&root, keeping, &mut complaints),
            Ok(None) => {
                let problem = Problem::overall("the file is empty");
                complaints.add(problem.mend(
                    "begin with `limits:` and a list, as in `limits: [{name: per-user, limit: 100/1m}]`",
                ));
                Rules::default()
            }
            Err(problem) => {
                complaints.add(problem);
                Rules::default()
            }
        };
    if complaints.is_empty() { Ok(rules) } else { Err(complaints.into_sorted()) }
}

/// Parses a policy written as a mapping, the form that [`PolicySpec`] prints.
///
/// # Errors
/// The same as [`parse`].
pub fn parse_policy(text: &str) -> Result<PolicySpec, Vec<Problem>> {
    let mut complaints = Complaints::default();
    let root = parse_yaml(text).map_err(|problem| vec![problem])?;
    let root = root.ok_or_else(|| vec![Problem::overall("the policy is empty")])?;
    let spec = Fields::open(&root, "a policy", &options::with(&["limit", "algorithm"]), &mut complaints)
        .and_then(|fields| read_policy(&fields, "the policy", None, &mut complaints));
    match spec {
        Some(spec) if complaints.is_empty() => Ok(spec),
        _ => Err(complaints.into_sorted()),
    }
}

fn read_rules(root: &Node, keeping: Keeping, complaints: &mut Complaints) -> Rules {
    let known: Vec<&str> = ["limits", "max_memory"].into_iter().chain(SECTIONS).collect();
    let Some(fields) = Fields::open(root, "the file", &known, complaints) else { return Rules::default() };
    let has_gate = SECTIONS.iter().any(|section| fields.get(section).is_some());
    if !has_gate && fields.get("limits").is_none() {
        let problem = Problem::at(fields.line(), "there is no `limits:`");
        complaints.add(problem.mend("add it, with a list of limits"));
    }
    let limits = fields.get("limits").map(|node| read_limits(node, keeping, complaints)).unwrap_or_default();
    let max_memory = fields.get("max_memory").and_then(|node| {
        let bytes = node.text().and_then(parse_bytes);
        if bytes.is_none() {
            let problem = Problem::at(node.line, format!("`max_memory` is {}", node.describe()));
            complaints.add(problem.mend("write a number of bytes, as in `max_memory: 512MiB`"));
        }
        bytes
    });
    Rules { limits, max_memory, gate: read_gate(&fields, complaints) }
}

/// Parses a number of bytes: a whole number, with an optional unit B, KiB, MiB, GiB or TiB (or Ki, Mi, Gi, Ti). `None` for
/// anything else, and for 0.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start() {
        "" | "B" => 0,
        "Ki" | "KiB" => 10,
        "Mi" | "MiB" => 20,
        "Gi" | "GiB" => 30,
        "Ti" | "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|bytes| *bytes > 0)
}

fn read_limits(node: &Node, keeping: Keeping, complaints: &mut Complaints) -> Vec<LimitSpec> {
    let items = match &node.kind {
        Kind::Sequence(items) if !items.is_empty() => items,
        _ => {
            complaints.add(
                Problem::at(node.line, format!("`limits` is {}", empty_or(node)))
                    .mend("write at least one limit, as in `- {name: per-user, limit: 100/1m}`"),
            );
            return Vec::new();
        }
    };
    if items.len() > MAX_LIMITS {
        let what = format!("the file has {} limits; at most {MAX_LIMITS} are allowed", items.len());
        complaints
            .add(Problem::at(node.line, what).mend("use keys and overrides instead of separate limits"));
    }
    let mut names = BTreeMap::new();
    let mut limits = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let Some((limit, line)) = read_limit(item, at + 1, keeping, complaints) else { continue };
        if let Some(first) = names.insert(limit.name.clone(), line) {
            let what = format!("the name `{}` is already taken on line {first}", limit.name);
            complaints.add(Problem::at(line, what).mend("give each limit a different name"));
        }
        limits.push(limit);
    }
    limits
}

fn empty_or(node: &Node) -> String {
    match &node.kind {
        Kind::Sequence(items) if items.is_empty() => "an empty list".to_owned(),
        _ => node.describe(),
    }
}

/// One limit, and the line of its name.
fn read_limit(
    node: &Node,
    number: usize,
    keeping: Keeping,
    complaints: &mut Complaints,
) -> Option<(LimitSpec, usize)> {
    let called = match node.kind {
        Kind::Mapping(ref entries) => entries
            .iter()
            .find(|(key, _)| key.text() == Some("name"))
            .and_then(|(_, value)| value.text())
            .map(|name| format!("limit `{}`", abridged(name))),
        _ => None,
    };
    let called = called.unwrap_or_else(|| format!("limit number {number}"));
    let fields = Fields::open(node, &called, &options::with(&FIELDS), complaints)?;
    let name = read_name(&fields, &called, complaints);
    let policy = read_policy(&fields, &called, None, complaints);
    let global = fields.flag("global", complaints).unwrap_or(false);
    let shadow = fields.flag("shadow", complaints).unwrap_or(false);
    let max_keys = fields.number("max_keys", 1, complaints).map(|keys| keys as usize);
    let words = [("forget", WhenFull::Forget), ("deny", WhenFull::Deny)];
    let when_full = fields.word("when_full", &words, complaints).unwrap_or_default();
    let words = [("keep", OnExpiry::Keep), ("release", OnExpiry::Release)];
    let on_expiry = fields.word("on_expiry", &words, complaints).unwrap_or_default();
    let overrides = read_overrides(&fields, &called, policy.as_ref(), complaints);
    let deny = read_deny(&fields, complaints);
    for key in overrides.keys().filter(|key| deny.contains(*key)) {
        let line = fields.get("deny").map_or(fields.line(), |deny| deny.line);
        let what = format!("{called}: the key `{}` is both denied and overridden", abridged(key));
        complaints.add(Problem::at(line, what).mend("remove it from `deny` or from `overrides`"));
    }
    if global {
        for keyed in ["overrides", "deny", "max_keys", "when_full"] {
            if let Some(node) = fields.get(keyed) {
                let what = format!("{called} is global: it has no keys, so `{keyed}` has no meaning");
                complaints.add(Problem::at(node.line, what).mend("remove it, or remove `global`"));
            }
        }
    }
    let line = fields.get("name").map_or(fields.line(), |name| name.line);
    let sharing = sharing::read(&fields, &called, complaints);
    let traffic = traffic::read(&fields, &called, global, complaints);
    let limit = LimitSpec {
        name: name?,
        policy: policy?,
        global,
        shadow,
        max_keys,
        when_full,
        on_expiry,
        overrides,
        deny,
        sharing,
        traffic,
    };
    if keeping == Keeping::Store || limit.sharing != SharingSpec::default() {
        sharing::check(&limit, &fields, complaints);
    }
    Some((limit, line))
}

fn read_name(fields: &Fields<'_>, called: &str, complaints: &mut Complaints) -> Option<String> {
    let Some(node) = fields.get("name") else {
        let problem = Problem::at(fields.line(), format!("{called} has no name"));
        complaints.add(problem.mend("add `name:`; requests and metrics use it"));
        return None;
    };
    // No `:`: in the store it separates the name from the key.
    let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match node.text() {
        Some(THROTTLE) => {
            let what = format!("the name `{THROTTLE}` is reserved for the command");
            complaints.add(Problem::at(node.line, what).mend("choose another"));
            None
        }
        Some(name) if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(letter) => {
            Some(name.to_owned())
        }
        _ => {
            complaints.add(
                Problem::at(node.line, format!("`name` is {}", node.describe()))
                    .mend(format!("use 1 to {MAX_NAME} letters, digits, `.`, `_` or `-`")),
            );
            None
        }
    }
}

/// The algorithm with its options; an override starts from `base`.
fn read_policy(
    fields: &Fields<'_>,
    called: &str,
    base: Option<&PolicySpec>,
    complaints: &mut Complaints,
) -> Option<PolicySpec> {
    let algorithm = match (base, fields.get("algorithm")) {
        (Some(base), None) => base.algorithm,
        // Exact by default, the least surprising choice.
        (None, None) => AlgorithmSpec::default(),
        (_, Some(_)) => options::algorithm(fields, complaints)?,
    };
    options::refuse_others(fields, called, algorithm, complaints);
    let quota = match (fields.get("limit"), base) {
        (Some(node), _) => read_quota(node, algorithm, complaints),
        (None, Some(base)) => Some((base.limit, base.window)),
        (None, None) => {
            let problem = Problem::at(fields.line(), format!("{called} has no limit"));
            let example = if algorithm.limits_rate() { "limit: 100/1m" } else { "limit: 10" };
            complaints.add(problem.mend(format!("add one, as in `{example}`")));
            None
        }
    };
    let mut spec = base.cloned().unwrap_or_else(|| PolicySpec::new(algorithm, 0, None));
    options::read(fields, &mut spec, complaints);
    (spec.limit, spec.window) = quota?;
    if let Err(e) = spec.policy() {
        let line = fields.get("limit").map_or(fields.line(), |node| node.line);
        complaints.add(Problem::at(line, format!("{called}: {e}")));
        return None;
    }
    Some(spec)
}

/// `N/duration`, or a bare number for permits.
fn read_quota(
    node: &Node,
    algorithm: AlgorithmSpec,
    complaints: &mut Complaints,
) -> Option<(u32, Option<std::time::Duration>)> {
    let text = node.text().unwrap_or_default();
    let complaint =
        |why: &dyn fmt::Display| Problem::at(node.line, format!("`limit` is {}: {why}", node.describe()));
    if !algorithm.limits_rate() {
        let permits = text.parse().ok();
        if permits.is_none() {
            complaints.add(complaint(&"concurrency counts permits, not requests in a window").mend(
                "write a whole number, as in `limit: 10` (and `hold: 1m`, after which lost permits expire)",
            ));
        }
        return permits.map(|permits| (permits, None));
    }
    match text.parse::<Quota>() {
        Ok(quota) => Some((quota.limit(), Some(quota.window()))),
        Err(e @ (ParseQuotaError::NoSlash | ParseQuotaError::Duration)) => {
            complaints.add(complaint(&e).mend("for example 10/500ms, 100/1m or 5000/1d"));
            None
        }
        Err(e) => {
            complaints.add(complaint(&e));
            None
        }
    }
}

fn read_overrides(
    fields: &Fields<'_>,
    called: &str,
    base: Option<&PolicySpec>,
    complaints: &mut Complaints,
) -> BTreeMap<String, PolicySpec> {
    let mut overrides = BTreeMap::new();
    let Some(node) = fields.get("overrides").filter(|node| !node.is_null()) else { return overrides };
    let Kind::Mapping(entries) = &node.kind else {
        complaints.add(
            Problem::at(node.line, format!("`overrides` is {}", node.describe()))
                .mend("write keys with their limits, as in `overrides: {\"admin\": 100/10m}`"),
        );
        return overrides;
    };
    for (key, value) in entries {
        let Some(name) = read_key(key, "overrides", complaints) else { continue };
        let called = format!("{called}, override `{}`", abridged(name));
        let Some(base) = base else { continue };
        let spec = if value.text().is_some() {
            read_quota(value, base.algorithm, complaints).and_then(|(limit, window)| {
                let spec = PolicySpec { limit, window, ..base.clone() };
                let made = spec.policy();
                if let Err(e) = &made {
                    complaints.add(Problem::at(value.line, format!("{called}: {e}")));
                }
                made.is_ok().then_some(spec)
            })
        } else {
            Fields::open(value, &called, &options::with(&["limit"]), complaints)
                .and_then(|fields| read_policy(&fields, &called, Some(base), complaints))
        };
        if let Some(spec) = spec
            && overrides.insert(name.to_owned(), spec).is_some()
        {
            complaints.add(Problem::at(key.line, format!("{called} is given twice")).mend("keep one"));
        }
    }
    overrides
}

fn read_deny(fields: &Fields<'_>, complaints: &mut Complaints) -> BTreeSet<String> {
    let Some(node) = fields.get("deny").filter(|node| !node.is_null()) else { return BTreeSet::new() };
    let Kind::Sequence(items) = &node.kind else {
        complaints.add(
            Problem::at(node.line, format!("`deny` is {}", node.describe()))
                .mend("write a list of keys, as in `deny: [\"mallory\"]`"),
        );
        return BTreeSet::new();
    };
    items.iter().filter_map(|item| read_key(item, "deny", complaints)).map(str::to_owned).collect()
}

fn read_key<'a>(node: &'a Node, list: &str, complaints: &mut Complaints) -> Option<&'a str> {
    match node.text() {
        Some(key) if key.len() <= MAX_KEY_BYTES => Some(key),
        Some(_) => {
            let what = format!("a key in `{list}` is longer than {MAX_KEY_BYTES} bytes");
            complaints.add(Problem::at(node.line, what).mend("requests with such a key are refused anyway"));
            None
        }
        None => {
            let what = format!("a key in `{list}` is {}", node.describe());
            complaints.add(Problem::at(node.line, what).mend("write the key as text, in quotes if need be"));
            None
        }
    }
}
