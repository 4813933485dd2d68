//! The tree of all domains' descriptors, and the lookup of a request's descriptors in it.

use rapidhash::RapidHashMap;

use super::{Hold, Unit, names};

/// One key and value of a request's descriptor.
pub type Entry<'a> = (&'a str, &'a str);

/// All domains of a configuration.
#[derive(Debug, Default)]
pub struct Domains {
    list: Vec<Domain>,
    /// The hash is fast but not safe against chosen collisions, because the operator chooses the
    /// names.
    by_name: RapidHashMap<Box<str>, usize>,
    rules: Vec<Rule>,
}

/// One domain.
#[derive(Debug)]
pub struct Domain {
    /// Its name in requests.
    pub name: String,
    pub(super) root: Level,
}

/// The possible next entries of a descriptor.
#[derive(Debug, Default)]
pub(super) struct Level {
    pub keys: RapidHashMap<Box<str>, ForKey>,
}

impl Level {
    /// Adds the entries of another level. Returns one that both have, if there is one.
    pub fn merge(&mut self, other: Self) -> Option<String> {
        for (key, theirs) in other.keys {
            let ours = self.keys.entry(key.clone()).or_default();
            let again = |value: &str| Some(format!("{key}: {value}"));
            for (value, node) in theirs.exact {
                if ours.exact.contains_key(&value) {
                    return again(&value);
                }
                ours.exact.insert(value, node);
            }
            for (wildcard, node) in theirs.wildcards {
                if ours.wildcards.iter().any(|(ours, _)| *ours == wildcard) {
                    return again(node.shown.as_deref().unwrap_or_default());
                }
                ours.wildcards.push((wildcard, node));
            }
            if let Some(node) = theirs.any
                && ours.any.replace(node).is_some()
            {
                return Some(key.into());
            }
        }
        None
    }
}

/// The nodes for one key.
#[derive(Debug, Default)]
pub(super) struct ForKey {
    pub exact: RapidHashMap<Box<str>, DescriptorNode>,
    /// Values with a `*`, in the order of the file.
    pub wildcards: Vec<(Wildcard, DescriptorNode)>,
    pub any: Option<DescriptorNode>,
}

/// A value in which each `*` stands for any characters, also for none.
#[derive(Debug, PartialEq)]
pub(super) struct Wildcard {
    beginning: Box<str>,
    /// Between two `*`, in order.
    middle: Vec<Box<str>>,
    end: Box<str>,
}

impl Wildcard {
    /// The wildcard of a value; `None` if the value has no `*`.
    pub fn new(value: &str) -> Option<Self> {
        let (beginning, rest) = value.split_once('*')?;
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle
            .split('*')
            .filter(|part| !part.is_empty())
            .map(Into::into)
            .collect();
        Some(Self {
            beginning: beginning.into(),
            middle,
            end: end.into(),
        })
    }

    fn fits(&self, value: &str) -> bool {
        let Some(mut rest) = value
            .strip_prefix(&*self.beginning)
            .and_then(|rest| rest.strip_suffix(&*self.end))
        else {
            return false;
        };
        // The first place of each part leaves the most for the parts after it.
        self.middle.iter().all(|part| {
            rest.find(&**part)
                .map(|at| rest = &rest[at + part.len()..])
                .is_some()
        })
    }
}

/// A descriptor in the configuration.
#[derive(Debug)]
pub(super) struct DescriptorNode {
    /// Its index in [`Domains::rules`].
    pub rule: Option<usize>,
    /// Whether the request's value is a part of the limit's key.
    pub counts_apart: bool,
    /// The configured value, for metrics; `None` for a key without a value.
    pub shown: Option<Box<str>>,
    /// Whether metrics show the request's value.
    pub value_to_metric: bool,
    pub next: Level,
}

/// Which requests a rule's limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    /// All: also those that it denies, and those that another limit denies.
    Always,
    /// Those that are admitted.
    Admitted,
}

impl Charge {
    /// The value with this name in the file.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "always" => Some(Self::Always),
            "admitted" => Some(Self::Admitted),
            _ => None,
        }
    }
}

/// A descriptor with a rate limit.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a separate option in the file"
)]
pub struct Rule {
    /// The domain's name.
    pub domain: String,
    /// The keys and values of its descriptors, as `key_value.key`: its name in metrics.
    pub path: String,
    /// The name of its limit; `None` if everything is admitted.
    pub limit: Option<String>,
    /// The unit for answers; `None` if everything is admitted.
    pub unit: Option<Unit>,
    /// The number for answers.
    pub requests_per_unit: u64,
    /// Its name for other rules and in answers; may be empty.
    pub name: String,
    /// The names of rules that are ignored if this one applies.
    pub replaces: Vec<String>,
    /// Counts and reports, but never denies.
    pub shadow: bool,
    /// Counts every request, and answers say that it is exceeded.
    pub soft: bool,
    /// Does not deny alone: a request is denied only if all its rules of this kind deny.
    pub quota: bool,
    /// Whether its limit counts denied requests, too; `None` if the server's option determines it.
    pub charge: Option<Charge>,
    /// Its questions take estimates, which reports correct.
    pub hold: Option<Hold>,
    /// Metrics show the values of all of a request's entries.
    pub detailed_metric: bool,
    /// At least one of its descriptors shows the request's value in metrics.
    pub value_to_metric: bool,
    /// Metadata for answers.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The key and the configured value of each of its descriptors.
    pub(super) way: Vec<(String, Option<String>)>,
    /// The keys of the descriptors whose values distinguish the limit's keys; empty if there is one
    /// state for all.
    pub(super) values: Vec<String>,
}

/// The rule for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Its index in [`Domains::rules`].
    pub index: usize,
}

impl Domains {
    /// The domains, whose names must differ.
    pub(super) fn new(domains: Vec<Domain>, rules: Vec<Rule>) -> Self {
        let names = domains.iter().enumerate();
        let by_name = names
            .map(|(at, domain)| (domain.name.as_str().into(), at))
            .collect();
        Self {
            list: domains,
            by_name,
            rules,
        }
    }

    /// The domain with this name.
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.by_name.get(name).map(|at| &self.list[*at])
    }

    /// All domains, in the order of the files.
    pub fn domains(&self) -> &[Domain] {
        &self.list
    }

    /// All rules, in the order of the files.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether the configuration has no domains.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The rule for a descriptor. Each entry is looked up once, below the previous one, without
    /// backtracking: first its exact value, then the wildcards in the order of the file, then its
    /// key alone. The last entry must have a rate limit. The limit's key is written to `key`, which
    /// is cleared first.
    pub fn find<'e>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = Entry<'e>>,
        key: &mut Vec<u8>,
    ) -> Option<Match<'_>> {
        key.clear();
        let mut level = &self.domain(domain)?.root;
        let mut rule = None;
        // The last value has no length in front, and only the end of the loop shows which one is
        // last.
        let mut open = None;
        for (name, value) in entries {
            let node = level.step(name, value)?;
            if node.counts_apart
                && let Some(before) = open.replace(value)
            {
                names::push_value(key, before, false);
            }
            (rule, level) = (node.rule, &node.next);
        }
        if let Some(last) = open {
            names::push_value(key, last, true);
        }
        let index = rule?;
        let rule = &self.rules[index];
        Some(Match { rule, index })
    }

    /// The first rule, in the order of the files, that matches these entries in any order. They are
    /// sorted by their names, which differ. The limit's key is written to `key`, which is cleared
    /// first.
    pub fn find_unordered(
        &self,
        domain: &str,
        entries: &[(String, String)],
        key: &mut Vec<u8>,
    ) -> Option<Match<'_>> {
        let mut tried: Vec<&[(String, Option<String>)]> = Vec::new();
        let rules = self
            .rules
            .iter()
            .filter(|rule| rule.domain == domain && rule.way.len() == entries.len());
        for rule in rules {
            let is_tried = |tried: &&[(String, Option<String>)]| {
                rule.way.iter().zip(*tried).all(|(a, b)| a.0 == b.0)
            };
            if tried.iter().any(is_tried) {
                continue;
            }
            tried.push(&rule.way);
            let in_order: Option<Vec<Entry<'_>>> = rule
                .way
                .iter()
                .map(|(name, _)| {
                    let at = entries
                        .binary_search_by(|(other, _)| other.cmp(name))
                        .ok()?;
                    Some((entries[at].0.as_str(), entries[at].1.as_str()))
                })
                .collect();
            if let Some(found) =
                in_order.and_then(|entries| self.find(domain, entries.into_iter(), key))
            {
                return Some(found);
            }
        }
        key.clear();
        None
    }

    /// The rule's name in metrics for these entries, which led to it: the configured values, and
    /// those request values that the configuration includes.
    pub fn metric_path<'e>(
        &self,
        found: Match<'_>,
        entries: impl Iterator<Item = Entry<'e>>,
    ) -> Option<String> {
        let rule = found.rule;
        if !rule.detailed_metric && !rule.value_to_metric {
            return None;
        }
        let mut level = &self.domain(&rule.domain)?.root;
        let mut path = String::new();
        for (name, value) in entries {
            let node = level.step(name, value)?;
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(name);
            // If a wildcard's values share a limit, metrics do not distinguish them.
            let shared = node.shown.is_some() && !node.counts_apart;
            let shown = if (rule.detailed_metric || node.value_to_metric) && !shared {
                Some(value)
            } else {
                node.shown.as_deref()
            };
            if let Some(shown) = shown.filter(|shown| !shown.is_empty()) {
                path.push('_');
                path.push_str(shown);
            }
            level = &node.next;
        }
        Some(path)
    }
}

impl Level {
    fn step(&self, key: &str, value: &str) -> Option<&DescriptorNode> {
        let of = self.keys.get(key)?;
        of.exact
            .get(value)
            .or_else(|| {
                let fits = |(wildcard, _): &&(Wildcard, DescriptorNode)| wildcard.fits(value);
                of.wildcards.iter().find(fits).map(|(_, node)| node)
            })
            .or(of.any.as_ref())
    }
}
