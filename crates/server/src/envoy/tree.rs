//! The descriptors of all domains as a tree, and the way of a request through it.

use std::collections::BTreeMap;

use rapidhash::RapidHashMap;

use super::{Unit, names};

/// One key and value of a request's descriptor.
pub type Entry<'a> = (&'a str, &'a str);

/// All domains of a configuration.
#[derive(Debug, Default)]
pub struct Domains {
    list: Vec<Domain>,
    /// Hashed quickly, not against collisions: whoever writes the configuration chooses the names.
    by_name: RapidHashMap<Box<str>, usize>,
    rules: Vec<Rule>,
}

/// One domain.
#[derive(Debug)]
pub struct Domain {
    /// What requests call it.
    pub name: String,
    pub(super) root: Level,
}

/// What may come next in a descriptor.
#[derive(Debug, Default)]
pub(super) struct Level {
    pub keys: RapidHashMap<Box<str>, ForKey>,
}

/// What one key leads to.
#[derive(Debug, Default)]
pub(super) struct ForKey {
    pub exact: RapidHashMap<Box<str>, Node>,
    /// Beginnings of values, in the order of the file.
    pub wildcards: Vec<(Box<str>, Node)>,
    pub any: Option<Node>,
}

/// A descriptor of the configuration.
#[derive(Debug)]
pub(super) struct Node {
    /// Which of [`Domains::rules`].
    pub rule: Option<usize>,
    /// Whether the request's value is a part of the key.
    pub counts_apart: bool,
    /// The value as metrics show it: the configuration's; `None` for a key alone.
    pub shown: Option<Box<str>>,
    /// Metrics show the request's value.
    pub value_to_metric: bool,
    pub next: Level,
}

/// A descriptor with a rate limit.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "each is an option of its own in the file")]
pub struct Rule {
    /// The domain's name.
    pub domain: String,
    /// The keys and values of the descriptors that lead to it, as `key_value.key`: the name that metrics have for it.
    pub path: String,
    /// The name of the limit that decides; `None` if everything is admitted.
    pub limit: Option<String>,
    /// The unit, as answers name it; `None` if everything is admitted.
    pub unit: Option<Unit>,
    /// The number, as answers name it.
    pub requests_per_unit: u32,
    /// What other rules, and answers, call it; empty for none.
    pub name: String,
    /// Rules of these names are left out where this one applies.
    pub replaces: Vec<String>,
    /// Counted and reported, but never denies.
    pub shadow: bool,
    /// Does not deny by itself: a request is denied when all of its rules of this kind deny.
    pub quota: bool,
    /// Metrics show the values of all of a request's entries.
    pub detailed_metric: bool,
    /// Some descriptor on the way shows the request's value in metrics.
    pub value_to_metric: bool,
    /// What the file says for whoever reads the answer's metadata.
    pub metadata: Vec<(String, String)>,
    /// For each descriptor on the way: its key, and its value as the file has it.
    pub(super) way: Vec<(String, Option<String>)>,
    /// The keys of the descriptors whose values tell the limit's keys apart; empty if there is one state for all.
    pub(super) values: Vec<String>,
}

/// Where a descriptor led.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Match<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Its index in [`Domains::rules`].
    pub index: usize,
}

impl Domains {
    /// The domains; their names differ.
    #[must_use]
    pub(super) fn new(domains: Vec<Domain>, rules: Vec<Rule>) -> Self {
        let names = domains.iter().enumerate();
        let by_name = names.map(|(at, domain)| (domain.name.as_str().into(), at)).collect();
        Self { list: domains, by_name, rules }
    }

    /// The domain of this name.
    #[must_use]
    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.by_name.get(name).map(|at| &self.list[*at])
    }

    /// All domains, in the order of the files.
    #[must_use]
    pub fn domains(&self) -> &[Domain] {
        &self.list
    }

    /// All rules, in the order of the files.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether there is no domain.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The rule that a descriptor leads to. Each entry is looked up once, below the one before it: its exact value, then the
    /// wildcards in the order of the file, then its key alone; there is no way back. The last entry must have a rate limit.
    /// The limit's key is written to `key`, which is cleared.
    #[must_use]
    pub fn find<'e>(
        &self,
        domain: &str,
        entries: impl Iterator<Item = Entry<'e>>,
        key: &mut Vec<u8>,
    ) -> Option<Match<'_>> {
        key.clear();
        let mut level = &self.domain(domain)?.root;
        let mut rule = None;
        // The last value stands without its length; which one is the last is known at the end.
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

    /// The first rule, in the order of the files, that these entries lead to in whatever order they come. The limit's key is
    /// written to `key`, which is cleared.
    #[must_use]
    pub fn find_unordered(
        &self,
        domain: &str,
        entries: &BTreeMap<String, String>,
        key: &mut Vec<u8>,
    ) -> Option<Match<'_>> {
        let mut tried: Vec<&[(String, Option<String>)]> = Vec::new();
        let rules = self.rules.iter().filter(|rule| rule.domain == domain && rule.way.len() == entries.len());
        for rule in rules {
            let is_tried =
                |tried: &&[(String, Option<String>)]| rule.way.iter().zip(*tried).all(|(a, b)| a.0 == b.0);
            if tried.iter().any(is_tried) {
                continue;
            }
            tried.push(&rule.way);
            let in_order: Option<Vec<Entry<'_>>> = rule
                .way
                .iter()
                .map(|(name, _)| entries.get_key_value(name))
                .map(|entry| entry.map(|(name, value)| (name.as_str(), value.as_str())))
                .collect();
            if let Some(found) = in_order.and_then(|entries| self.find(domain, entries.into_iter(), key)) {
                return Some(found);
            }
        }
        key.clear();
        None
    }

    /// What metrics call the rule for these entries, which led to it: the configuration's words, and of the request's values
    /// those that the configuration wants to see.
    #[must_use]
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
            // Where a wildcard's values share a limit, metrics never tell them apart.
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
    fn step(&self, key: &str, value: &str) -> Option<&Node> {
        let of = self.keys.get(key)?;
        of.exact
            .get(value)
            .or_else(|| {
                let fits = |(beginning, _): &&(Box<str>, Node)| value.starts_with(&**beginning);
                of.wildcards.iter().find(fits).map(|(_, node)| node)
            })
            .or(of.any.as_ref())
    }
}
