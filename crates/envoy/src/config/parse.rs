//! Parses a file of envoyproxy/ratelimit into a domain and its limits, and reports all its problems
//! at once.

use std::collections::BTreeMap;

use serde_json::{Map, Number, Value};
use tidegate_config::{Complaints, Fields, Kind, Node as Yaml, Problem, abridged, parse_nested};

use super::{
    Config, Domain, Domains, HOLD_ID, HOLD_REPORT, Rule, Unit, hold, names,
    tree::{Charge, DescriptorNode, Level, Wildcard},
};
use tidegate_core::{AlgorithmSpec, MAX_LIMIT};
use tidegate_service::rules::{
    Keeping, LimitSpec, OnExpiry, PolicySpec, SharesBy, SharingSpec, options, shares, sharing,
};

/// The maximum nesting of descriptors. Each level is a list and a mapping in YAML.
const MAX_LEVELS: usize = 32;

const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "detailed_metric",
    "value_to_metric",
    "share_threshold",
    "metadata",
];

/// In addition to the algorithms' own options.
const RATE_LIMIT: [&str; 20] = [
    "unit",
    "requests_per_unit",
    "unlimited",
    "name",
    "replaces",
    "algorithm",
    "charge",
    "soft",
    "hold",
    "estimate",
    "estimate_by",
    "on_expiry",
    "sharing",
    "on_error",
    "deadline",
    "slack",
    "unreported",
    "line",
    "max_keys",
    "shares",
];

/// The contents of one file.
#[derive(Debug)]
pub struct File {
    pub(super) domain: Domain,
    /// The line of the domain's name.
    pub(super) line: usize,
    /// Its rules; [`DescriptorNode::rule`] is counted from `first_rule`.
    pub(super) rules: Vec<Rule>,
    /// The limits of the rules.
    pub(super) limits: Vec<LimitSpec>,
}

impl File {
    /// A configuration of only this file.
    pub fn into_config(self) -> Config {
        Config {
            domains: Domains::new(vec![self.domain], self.rules),
            limits: self.limits,
        }
    }
}

/// Parses the text of one file, with rules numbered from `first_rule`.
///
/// # Errors
/// All problems of the file, in the order of the lines.
pub fn parse(text: &str, first_rule: usize, keeping: Keeping) -> Result<File, Vec<Problem>> {
    let file = tidegate_config::read(
        parse_nested(text, 2 * MAX_LEVELS + 4),
        |root, complaints| {
            let Some(root) = root else {
                let problem = Problem::overall("the file is empty");
                complaints.add(
                    problem.mend("begin with `domain:`, and give it a list of `descriptors:`"),
                );
                return None;
            };
            read_file(root, first_rule, keeping, complaints)
        },
    );
    file?.ok_or_else(Vec::new)
}

fn read_file(
    root: &Yaml,
    first_rule: usize,
    keeping: Keeping,
    complaints: &Complaints,
) -> Option<File> {
    let fields = Fields::open(root, "the file", &["domain", "descriptors"], complaints)?;
    let name = text(&fields, "domain");
    if fields.get("domain").is_none() || name.as_deref() == Some("") {
        let mend = "add it: Envoy's filter names it in every request";
        complaints.at(fields.line(), "there is no `domain:`", mend);
    }
    let mut reader = Reader {
        domain: name.clone().unwrap_or_default(),
        first_rule,
        keeping,
        rules: Vec::new(),
        limits: Vec::new(),
        complaints,
    };
    let mut root = Level::default();
    reader.descriptors(&fields, &mut Way::default(), &mut root);
    let (rules, limits) = (reader.rules, reader.limits);
    Some(File {
        domain: Domain {
            name: name.filter(|name| !name.is_empty())?,
            root,
        },
        line: fields.line_of("domain"),
        rules,
        limits,
    })
}

/// The descriptors from the domain down to one of them.
#[derive(Clone, Default)]
struct Way {
    steps: Vec<(String, Option<String>)>,
    /// The keys whose values distinguish the limit's keys.
    values: Vec<String>,
    value_to_metric: bool,
}

struct Reader<'a> {
    domain: String,
    first_rule: usize,
    keeping: Keeping,
    rules: Vec<Rule>,
    limits: Vec<LimitSpec>,
    complaints: &'a Complaints,
}

impl Reader<'_> {
    /// Parses the list of descriptors in `fields`.
    fn descriptors(&mut self, fields: &Fields<'_>, way: &mut Way, level: &mut Level) {
        let items = fields.list(
            "descriptors",
            "write a list, as in `descriptors: [{key: remote_address}]`",
        );
        if !items.is_empty() && way.steps.len() >= MAX_LEVELS {
            let what = format!("descriptors nest deeper than {MAX_LEVELS} levels");
            let mend = "requests have fewer entries: is the indentation right?";
            return self
                .complaints
                .at(fields.line_of("descriptors"), what, mend);
        }
        // The line where each key and value first occurred.
        let mut seen: BTreeMap<(String, Option<String>), usize> = BTreeMap::new();
        for item in items {
            if let Some((step, node, line)) = self.descriptor(item, way) {
                if let Some(first) = seen.insert(step.clone(), line) {
                    let what = format!("{} is already on line {first}", called(&step));
                    self.complaints.at(line, what, "keep one of the two");
                    continue;
                }
                place(level, step, node);
            }
        }
    }

    /// Parses one descriptor: its key and value, its node, and its line.
    fn descriptor(
        &mut self,
        item: &Yaml,
        way: &mut Way,
    ) -> Option<((String, Option<String>), DescriptorNode, usize)> {
        let fields = Fields::open(item, "a descriptor", &DESCRIPTOR, self.complaints)?;
        let line = fields.line();
        let key = text(&fields, "key");
        let value = self.value(&fields);
        if key.as_deref().is_none_or(str::is_empty)
            && (key.is_some() || fields.get("key").is_none())
        {
            self.complaints.at(
                line,
                "a descriptor has no key",
                "add `key:`, as in `key: remote_address`",
            );
        }
        let key = key.filter(|key| !key.is_empty());
        if let Some(key) = key
            .as_deref()
            .filter(|key| [HOLD_ID, HOLD_REPORT].contains(key))
        {
            self.complaints.at(
                line,
                format!("the key `{key}` is reserved: it belongs to no rule, but to requests of rules with `hold`"),
                "remove the descriptor, or name it differently",
            );
        }
        // Next to a value, a `*` is a character: Envoy Gateway's routes for any host have one in
        // their names.
        if let Some(key) = key
            .as_deref()
            .filter(|key| value.is_none() && key.contains('*'))
        {
            let what = format!("the key `{}` has a `*`", abridged(key));
            self.complaints.at(
                line,
                what,
                "a wildcard is a part of the value, as in `value: files/*`",
            );
        }
        let flag = |name: &str| fields.flag(name).unwrap_or(false);
        let (share, value_to_metric) = (flag("share_threshold"), flag("value_to_metric"));
        let wildcard = value.as_deref().is_some_and(|value| value.contains('*'));
        if share && !wildcard {
            let (line, what) = (
                fields.line_of("share_threshold"),
                "`share_threshold` is for values with a `*`",
            );
            self.complaints
                .at(line, what, "remove it, or write a value such as `/files/*`");
        }
        let counts_apart = value.is_none() || (wildcard && !share);
        let step = (key.clone().unwrap_or_default(), value.clone());
        let mut below = way.clone();
        below.steps.push(step.clone());
        below.value_to_metric |= value_to_metric;
        if counts_apart {
            below.values.push(step.0.clone());
        }
        let rule = self.rule(&fields, &below);
        let mut node = DescriptorNode {
            rule,
            counts_apart,
            shown: value.map(Into::into),
            value_to_metric,
            next: Level::default(),
        };
        self.descriptors(&fields, &mut below, &mut node.next);
        key.map(|_| (step, node, line))
    }

    /// The value; an empty one counts as none.
    fn value(&mut self, fields: &Fields<'_>) -> Option<String> {
        let node = fields.get("value")?;
        if let Kind::Scalar { text, plain: true } = &node.kind
            && text.parse::<i64>().is_err()
            && text.parse::<f64>().is_ok()
        {
            let what =
                format!("`value` is the number {text}, which can be written in several ways");
            self.complaints
                .at(node.line, what, format!("quote it: \"{text}\""));
            return None;
        }
        text(fields, "value").filter(|value| !value.is_empty())
    }

    /// The number of the descriptor's rule, if it has a rate limit.
    fn rule(&mut self, fields: &Fields<'_>, way: &Way) -> Option<usize> {
        let flag = |name: &str| fields.flag(name).unwrap_or(false);
        let (shadow, quota) = (flag("shadow_mode"), flag("quota_mode"));
        let detailed_metric = flag("detailed_metric");
        let metadata = self.metadata(fields);
        let node = fields.get("rate_limit").filter(|node| !node.is_null())?;
        let path = path(&way.steps);
        let called = format!("`{}`", abridged(&format!("{}.{path}", self.domain)));
        let limit = Fields::open(
            node,
            "a rate_limit",
            &options::with(&RATE_LIMIT),
            self.complaints,
        )?;
        let name = text(&limit, "name").unwrap_or_default();
        let replaces = self.replaces(&limit, &name);
        let soft = limit.flag("soft").unwrap_or(false);
        let mut rule = Rule {
            domain: self.domain.clone(),
            path,
            name,
            replaces,
            shadow: shadow || soft,
            soft,
            quota,
            hold: hold::read(&limit, &called),
            charge: limit.read("charge", "`always` or `admitted`", Charge::from_name),
            detailed_metric,
            value_to_metric: way.value_to_metric,
            metadata,
            way: way.steps.clone(),
            values: way.values.clone(),
            ..Rule::default()
        };
        if limit.flag("unlimited").unwrap_or(false) {
            for odd in RATE_LIMIT
                .into_iter()
                .filter(|field| !UNLIMITED.contains(field))
            {
                if let Some(node) = limit.get(odd) {
                    let what = format!("{called} is unlimited, so `{odd}` has no meaning");
                    self.complaints
                        .at(node.line, what, "remove it, or remove `unlimited`");
                }
            }
        } else {
            let spec = self.limit(&limit, &called, &rule)?;
            rule.unit = limit
                .get("unit")
                .and_then(Yaml::text)
                .and_then(Unit::from_name);
            rule.requests_per_unit = spec.policy.limit;
            rule.limit = Some(spec.name.clone());
            self.limits.push(spec);
        }
        self.rules.push(rule);
        Some(self.first_rule + self.rules.len() - 1)
    }

    /// The limit of a rule that is not unlimited.
    fn limit(&mut self, fields: &Fields<'_>, called: &str, rule: &Rule) -> Option<LimitSpec> {
        let complaints = self.complaints;
        let units = Unit::ALL.map(Unit::name).join(", ");
        let unit = fields.read("unit", &format!("one of: {units}"), Unit::from_name);
        if fields.get("unit").is_none() {
            let mend = format!("add one of: {units}; or say `unlimited: true`");
            complaints.at(fields.line(), format!("{called} has no `unit`"), mend);
        }
        // As in envoyproxy/ratelimit: without a number, nothing is admitted.
        let requests = match fields.get("requests_per_unit") {
            Some(_) => fields.units("requests_per_unit", 0..=MAX_LIMIT)?,
            None => 0,
        };
        let algorithm = match fields.get("algorithm") {
            Some(_) => options::algorithm(fields)?,
            None => AlgorithmSpec::named("fixed-window").ok()?,
        };
        let why = match algorithm.name() {
            "concurrency" => Some("counts requests in flight, which Envoy does not report"),
            "leaky-bucket" => Some("delays requests, which Envoy does not do"),
            _ => None,
        };
        if let Some(why) = why {
            let what = format!("{called}: {} {why}", algorithm.name());
            complaints.at(
                fields.line_of("algorithm"),
                what,
                "choose another, such as token-bucket",
            );
            return None;
        }
        options::refuse_others(fields, called, algorithm, &["hold"]);
        if let Some(node) = fields.get("block_for") {
            let what = format!("{called}: Envoy's limits do not block keys for denials");
            complaints.at(
                node.line,
                what,
                "remove `block_for`; a limit of a rules file has it",
            );
        }
        if let Some(node) = fields.get("oversize_wait") {
            let what = format!("{called}: oversize_wait delays requests, which Envoy does not do");
            complaints.at(node.line, what, "remove it");
        }
        let mut policy = PolicySpec::new(algorithm, requests, unit.map(Unit::span));
        options::read(fields, &mut policy);
        let sharing = sharing::read(fields, called);
        let max_keys = fields.number("max_keys", 1).map(|keys| keys as usize);
        let global = rule.values.is_empty();
        if global && let Some(node) = fields.get("max_keys") {
            let what = format!(
                "{called} has only one state, because every value is given, so `max_keys` has no meaning"
            );
            complaints.at(node.line, what, "remove it");
        }
        let shares = shares::read(fields, Some(SharesBy::Key), called);
        if shares.is_some() {
            self.check_shares(fields, called, rule);
        }
        let words = [("keep", OnExpiry::Keep), ("release", OnExpiry::Release)];
        let on_expiry = fields.word("on_expiry", &words).unwrap_or_default();
        policy.window?;
        if let Err(error) = policy.policy() {
            complaints.add(Problem::at(fields.line(), format!("{called}: {error}")));
            return None;
        }
        let steps: Vec<(&str, Option<&str>)> = rule
            .way
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_deref()))
            .collect();
        let limit = LimitSpec {
            global,
            shadow: rule.shadow,
            soft: rule.soft,
            max_keys,
            shares,
            sharing,
            on_expiry,
            ..LimitSpec::new(names::limit_name(&self.domain, &steps), policy)
        };
        shares::check(&limit, fields, self.keeping, called);
        if self.keeping == Keeping::Store || limit.sharing != SharingSpec::default() {
            sharing::check(&limit, fields);
        }
        Some(limit)
    }

    /// The values of one key share the limit, and none is charged for what its share denies.
    fn check_shares(&self, fields: &Fields<'_>, called: &str, rule: &Rule) {
        let wrong = |field: &str, why: String, mend: &str| {
            let line = fields.line_of(field);
            self.complaints.at(line, format!("{called}: {why}"), mend);
        };
        let apart = rule.values.len();
        if apart != 1 {
            wrong(
                "shares",
                format!("tenants are the values of one key, and {apart} keys have no `value`"),
                "leave the value of exactly one key open, as in `{key: tenant}`",
            );
        }
        if rule.charge == Some(Charge::Always) {
            wrong(
                "charge",
                "a tenant would take the shares of others by what is denied".to_owned(),
                "remove `charge: always`",
            );
        }
    }

    fn replaces(&self, fields: &Fields<'_>, own: &str) -> Vec<String> {
        let items = fields
            .list(
                "replaces",
                "write a list of names, as in `replaces: [{name: other}]`",
            )
            .iter();
        let name = |item| {
            let fields = Fields::open(item, "an entry of `replaces`", &["name"], self.complaints)?;
            let name = text(&fields, "name").filter(|name| !name.is_empty());
            if name.as_deref() == Some(own) {
                let what = format!("the rule `{}` replaces itself", abridged(own));
                self.complaints
                    .at(item.line, what, "name the other rule that it replaces");
            } else if name.is_none() {
                let mend = "write `- name:` and the `name` of another rate_limit";
                self.complaints
                    .at(item.line, "an entry of `replaces` has no name", mend);
            }
            name
        };
        items.filter_map(name).collect()
    }

    fn metadata(&self, fields: &Fields<'_>) -> Map<String, Value> {
        let mend = "write names with values, as in `metadata: {team: payments}`";
        self.object(fields.mapping_once("metadata", mend), mend)
    }

    fn object(&self, entries: &[(Yaml, Yaml)], mend: &str) -> Map<String, Value> {
        let entry = |(name, value): &(Yaml, Yaml)| {
            let Some(text) = name.text() else {
                self.complaints
                    .at(name.line, "`metadata` has a name that is not text", mend);
                return None;
            };
            Some((text.to_owned(), self.json(value, mend)))
        };
        entries.iter().filter_map(entry).collect()
    }

    /// A value of metadata. An unquoted number or boolean is one.
    fn json(&self, node: &Yaml, mend: &str) -> Value {
        match &node.kind {
            Kind::Scalar { .. } if node.is_null() => Value::Null,
            Kind::Scalar { text, plain: true } => match text.as_str() {
                "true" => true.into(),
                "false" => false.into(),
                text => text
                    .parse::<Number>()
                    .map_or_else(|_| text.into(), Value::from),
            },
            Kind::Scalar { text, .. } => text.as_str().into(),
            Kind::Sequence(items) => items.iter().map(|item| self.json(item, mend)).collect(),
            Kind::Mapping(entries) => self.object(entries, mend).into(),
        }
    }
}

/// The options that a rule without a limit may have.
const UNLIMITED: [&str; 4] = ["unlimited", "requests_per_unit", "name", "replaces"];

/// A field's text. A number or a boolean is taken as it is written.
fn text(fields: &Fields<'_>, name: &str) -> Option<String> {
    let node = fields.get(name)?;
    match &node.kind {
        // An empty field counts as none; `~` and `null` mean the same in YAML.
        Kind::Scalar { .. } if node.is_null() => Some(String::new()),
        Kind::Scalar { text, .. } => Some(text.clone()),
        _ => {
            fields.refuse(name, node, "write a text, in quotes if need be");
            None
        }
    }
}

fn called((key, value): &(String, Option<String>)) -> String {
    match value {
        Some(value) => format!(
            "the descriptor `{}` with the value `{}`",
            abridged(key),
            abridged(value)
        ),
        None => format!("the descriptor `{}` without a value", abridged(key)),
    }
}

/// `key_value.key`, the name that envoyproxy/ratelimit gives a rule in its metrics.
fn path(steps: &[(String, Option<String>)]) -> String {
    let shown = steps.iter().map(|(key, value)| match value {
        Some(value) => format!("{key}_{value}"),
        None => key.clone(),
    });
    shown.collect::<Vec<_>>().join(".")
}

fn place(level: &mut Level, (key, value): (String, Option<String>), node: DescriptorNode) {
    let of = level.keys.entry(key.into()).or_default();
    match value {
        None => of.any = Some(node),
        Some(value) => match Wildcard::new(&value) {
            Some(wildcard) => of.wildcards.push((wildcard, node)),
            None => {
                of.exact.insert(value.into(), node);
            }
        },
    }
}
