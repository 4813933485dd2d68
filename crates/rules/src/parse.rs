//! Parses YAML into [`Rules`]: every option of every algorithm. It reports all problems of a file
//! at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use tidegate_config::{Complaints, Fields, Kind, Node, Problem, abridged, parse as parse_yaml};
use tidegate_core::{AlgorithmSpec, ParseQuotaError, Quota, parse_units};

use crate::{
    Keeping, LimitSpec, OnExpiry, PolicySpec, Rules, SharingSpec, THROTTLE, keys::read_key,
    options, shares, sharing, traffic,
};
use tidegate_flow::sources::yaml::{GATE, SECTIONS, read as read_gate};
use tidegate_limiter::WhenFull;

/// The maximum length of a name, which is part of every metric and header.
const MAX_NAME: usize = 64;
/// The maximum number of limits in one file. It bounds the number of metrics.
const MAX_LIMITS: usize = 1_000;

/// In addition to the algorithms' own options.
const FIELDS: [&str; 21] = [
    "name",
    "limit",
    "algorithm",
    "global",
    "shadow",
    "soft",
    "thresholds",
    "when_full",
    "on_expiry",
    "overrides",
    "deny",
    "max_keys",
    "shares",
    "sharing",
    "on_error",
    "deadline",
    "slack",
    "unreported",
    "line",
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
    tidegate_config::read(parse_yaml(text), |root, complaints| {
        if let Some(root) = root {
            return read_rules(root, keeping, complaints);
        }
        let mend =
            "begin with `limits:` and a list, as in `limits: [{name: per-user, limit: 100/1m}]`";
        complaints.add(Problem::overall("the file is empty").mend(mend));
        Rules::default()
    })
}

/// Parses a policy written as a mapping, the form that [`PolicySpec`] prints.
///
/// # Errors
/// The same as [`parse`].
pub fn parse_policy(text: &str) -> Result<PolicySpec, Vec<Problem>> {
    let spec = tidegate_config::read(parse_yaml(text), |root, complaints| {
        let Some(root) = root else {
            complaints.add(Problem::overall("the policy is empty"));
            return None;
        };
        let fields = Fields::open(
            root,
            "a policy",
            &options::with(&["limit", "algorithm"]),
            complaints,
        )?;
        read_policy(&fields, "the policy", None)
    });
    spec?.ok_or_else(Vec::new)
}

fn read_rules(root: &Node, keeping: Keeping, complaints: &Complaints) -> Rules {
    let known: Vec<&str> = ["limits", "max_memory", GATE]
        .into_iter()
        .chain(SECTIONS)
        .collect();
    let Some(fields) = Fields::open(root, "the file", &known, complaints) else {
        return Rules::default();
    };
    let has_gate = SECTIONS.iter().any(|section| fields.get(section).is_some());
    if !has_gate && fields.get("limits").is_none() {
        complaints.at(
            fields.line(),
            "there is no `limits:`",
            "add it, with a list of limits",
        );
    }
    let limits = fields
        .get("limits")
        .map(|node| read_limits(node, keeping, complaints))
        .unwrap_or_default();
    let max_memory = fields.get("max_memory").and_then(|node| {
        let bytes = node.text().and_then(parse_bytes);
        if bytes.is_none() {
            fields.refuse(
                "max_memory",
                node,
                "write a number of bytes, as in `max_memory: 512MiB`",
            );
        }
        bytes
    });
    Rules {
        limits,
        max_memory,
        gate: read_gate(&fields),
    }
}

/// Parses a number of bytes: a whole number, with an optional unit B, KiB, MiB, GiB or TiB (or Ki,
/// Mi, Gi, Ti), or KB, MB, GB or TB, which are powers of 1000. `None` for anything else, and for 0.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim_start() {
        "" | "B" => 1,
        "Ki" | "KiB" => 1 << 10,
        "Mi" | "MiB" => 1 << 20,
        "Gi" | "GiB" => 1 << 30,
        "Ti" | "TiB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => return None,
    };
    number
        .parse::<u64>()
        .ok()?
        .checked_mul(scale)
        .filter(|bytes| *bytes > 0)
}

fn read_limits(node: &Node, keeping: Keeping, complaints: &Complaints) -> Vec<LimitSpec> {
    let items = match &node.kind {
        Kind::Sequence(items) if !items.is_empty() => items,
        _ => {
            let is_list = matches!(node.kind, Kind::Sequence(_));
            let what = if is_list {
                "an empty list".to_owned()
            } else {
                node.describe()
            };
            let mend = "write at least one limit, as in `- {name: per-user, limit: 100/1m}`";
            complaints.at(node.line, format!("`limits` is {what}"), mend);
            return Vec::new();
        }
    };
    if items.len() > MAX_LIMITS {
        let what = format!(
            "the file has {} limits; at most {MAX_LIMITS} are allowed",
            items.len()
        );
        complaints.at(
            node.line,
            what,
            "use keys and overrides instead of separate limits",
        );
    }
    let mut names = BTreeMap::new();
    let mut limits = Vec::with_capacity(items.len());
    for (at, item) in items.iter().enumerate() {
        let Some((limit, line)) = read_limit(item, at + 1, keeping, complaints) else {
            continue;
        };
        if let Some(first) = names.insert(limit.name.clone(), line) {
            let what = format!("the name `{}` is already taken on line {first}", limit.name);
            complaints.at(line, what, "give each limit a different name");
        }
        limits.push(limit);
    }
    limits
}

/// One limit, and the line of its name.
fn read_limit(
    node: &Node,
    number: usize,
    keeping: Keeping,
    complaints: &Complaints,
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
    let name = read_name(&fields, &called);
    let policy = read_policy(&fields, &called, None);
    let global = fields.flag("global").unwrap_or(false);
    let soft = fields.flag("soft").unwrap_or(false);
    let shadow = fields.flag("shadow").unwrap_or(soft);
    if soft && let Some(node) = fields.get("shadow") {
        let what = format!("{called} is soft, so `shadow` has no meaning");
        complaints.at(node.line, what, "remove one of them");
    }
    if soft
        && policy
            .as_ref()
            .is_some_and(|policy| !policy.algorithm.limits_rate())
    {
        let what = format!("{called} counts permits, which cannot exceed the limit");
        complaints.at(
            fields.line_of("soft"),
            what,
            "remove `soft`, or use `shadow`",
        );
    }
    if soft && let Some(node) = fields.get("block_for") {
        let what = format!("{called} is soft: it denies nothing, so `block_for` has no meaning");
        complaints.at(node.line, what, "remove one of them");
    }
    let thresholds = read_thresholds(&fields);
    let max_keys = fields.number("max_keys", 1).map(|keys| keys as usize);
    let words = [("forget", WhenFull::Forget), ("deny", WhenFull::Deny)];
    let when_full = fields.word("when_full", &words).unwrap_or_default();
    let words = [("keep", OnExpiry::Keep), ("release", OnExpiry::Release)];
    let on_expiry = fields.word("on_expiry", &words).unwrap_or_default();
    let overrides = read_overrides(&fields, &called, policy.as_ref());
    let deny = read_deny(&fields);
    for key in overrides.keys().filter(|key| deny.contains(*key)) {
        let what = format!(
            "{called}: the key `{}` is both denied and overridden",
            abridged(key)
        );
        complaints.at(
            fields.line_of("deny"),
            what,
            "remove it from `deny` or from `overrides`",
        );
    }
    if global {
        for keyed in ["overrides", "deny", "max_keys", "when_full"] {
            if let Some(node) = fields.get(keyed) {
                let what =
                    format!("{called} is global: it has no keys, so `{keyed}` has no meaning");
                complaints.at(node.line, what, "remove it, or remove `global`");
            }
        }
    }
    let line = fields.line_of("name");
    let shares = shares::read(&fields, None, &called);
    let sharing = sharing::read(&fields, &called);
    let traffic = traffic::read(&fields, &called, global);
    let limit = LimitSpec {
        name: name?,
        policy: policy?,
        global,
        shadow,
        soft,
        thresholds,
        max_keys,
        when_full,
        on_expiry,
        overrides,
        deny,
        shares,
        sharing,
        traffic,
    };
    shares::check(&limit, &fields, keeping, &called);
    if keeping == Keeping::Store || limit.sharing != SharingSpec::default() {
        sharing::check(&limit, &fields);
    }
    Some((limit, line))
}

fn read_name(fields: &Fields<'_>, called: &str) -> Option<String> {
    let Some(node) = fields.get("name") else {
        let what = format!("{called} has no name");
        fields.complaints().at(
            fields.line(),
            what,
            "add `name:`; requests and metrics use it",
        );
        return None;
    };
    // No `:`: in the store it separates the name from the key.
    let letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match node.text() {
        Some(THROTTLE) => {
            let what = format!("the name `{THROTTLE}` is reserved for the command");
            fields.complaints().at(node.line, what, "choose another");
            None
        }
        Some(name) if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(letter) => {
            Some(name.to_owned())
        }
        _ => {
            fields.refuse(
                "name",
                node,
                format!("use 1 to {MAX_NAME} letters, digits, `.`, `_` or `-`"),
            );
            None
        }
    }
}

/// The algorithm with its options; an override starts from `base`.
fn read_policy(fields: &Fields<'_>, called: &str, base: Option<&PolicySpec>) -> Option<PolicySpec> {
    let algorithm = match (base, fields.get("algorithm")) {
        (Some(base), None) => base.algorithm,
        // Exact by default, the least surprising choice.
        (None, None) => AlgorithmSpec::default(),
        (_, Some(_)) => options::algorithm(fields)?,
    };
    options::refuse_others(fields, called, algorithm, &[]);
    let quota = match (fields.get("limit"), base) {
        (Some(node), _) => read_quota(fields, node, algorithm),
        (None, Some(base)) => Some((base.limit, base.window)),
        (None, None) => {
            let example = if algorithm.limits_rate() {
                "limit: 100/1m"
            } else {
                "limit: 10"
            };
            let what = format!("{called} has no limit");
            fields
                .complaints()
                .at(fields.line(), what, format!("add one, as in `{example}`"));
            None
        }
    };
    let mut spec = base
        .cloned()
        .unwrap_or_else(|| PolicySpec::new(algorithm, 0, None));
    options::read(fields, &mut spec);
    (spec.limit, spec.window) = quota?;
    if let Err(e) = spec.policy() {
        fields.complaints().add(Problem::at(
            fields.line_of("limit"),
            format!("{called}: {e}"),
        ));
        return None;
    }
    Some(spec)
}

/// `N/duration`, or a bare number for permits.
fn read_quota(
    fields: &Fields<'_>,
    node: &Node,
    algorithm: AlgorithmSpec,
) -> Option<(u64, Option<std::time::Duration>)> {
    let text = node.text().unwrap_or_default();
    let complaint = |why: &dyn fmt::Display| {
        Problem::at(node.line, format!("`limit` is {}: {why}", node.describe()))
    };
    let problem = if algorithm.limits_rate() {
        match text.parse::<Quota>() {
            Ok(quota) => return Some((quota.limit(), Some(quota.window()))),
            Err(e @ (ParseQuotaError::NoSlash | ParseQuotaError::Duration)) => {
                complaint(&e).mend("for example 10/500ms, 100/1m or 5000/1d")
            }
            Err(e) => complaint(&e),
        }
    } else {
        if let Some(permits) = parse_units(text) {
            return Some((permits, None));
        }
        complaint(&"concurrency counts permits, not requests in a window")
            .mend("write a whole number, as in `limit: 10` (and `hold: 1m`, after which lost permits expire)")
    };
    fields.complaints().add(problem);
    None
}

fn read_overrides(
    fields: &Fields<'_>,
    called: &str,
    base: Option<&PolicySpec>,
) -> BTreeMap<String, PolicySpec> {
    let (mut overrides, complaints) = (BTreeMap::new(), fields.complaints());
    let mend = "write keys with their limits, as in `overrides: {\"admin\": 100/10m}`";
    for (key, value) in fields.mapping("overrides", mend) {
        let Some(name) = read_key(key, "overrides", complaints) else {
            continue;
        };
        let called = format!("{called}, override `{}`", abridged(name));
        let Some(base) = base else { continue };
        let spec = if value.text().is_some() {
            read_quota(fields, value, base.algorithm).and_then(|(limit, window)| {
                let spec = PolicySpec {
                    limit,
                    window,
                    ..base.clone()
                };
                let made = spec.policy();
                if let Err(e) = &made {
                    complaints.add(Problem::at(value.line, format!("{called}: {e}")));
                }
                made.is_ok().then_some(spec)
            })
        } else {
            Fields::open(value, &called, &options::with(&["limit"]), complaints)
                .and_then(|fields| read_policy(&fields, &called, Some(base)))
        };
        if let Some(spec) = spec
            && overrides.insert(name.to_owned(), spec).is_some()
        {
            complaints.at(key.line, format!("{called} is given twice"), "keep one");
        }
    }
    overrides
}

fn read_thresholds(fields: &Fields<'_>) -> Vec<u8> {
    const MEND: &str = "write a list of percentages from 1% to 100%, as in [80%, 100%]";
    let percent = |node: &Node| {
        let percent = node
            .text()
            .and_then(|text| text.strip_suffix('%')?.trim_end().parse::<u8>().ok());
        let percent = percent.filter(|percent| (1..=100).contains(percent));
        if percent.is_none() {
            let what = format!("a threshold is {}", node.describe());
            fields.complaints().at(node.line, what, MEND);
        }
        percent
    };
    let percentages: BTreeSet<u8> = fields
        .list("thresholds", MEND)
        .iter()
        .filter_map(percent)
        .collect();
    percentages.into_iter().collect()
}

fn read_deny(fields: &Fields<'_>) -> BTreeSet<String> {
    let keys = fields
        .list("deny", "write a list of keys, as in `deny: [\"mallory\"]`")
        .iter();
    keys.filter_map(|key| read_key(key, "deny", fields.complaints()))
        .map(str::to_owned)
        .collect()
}
