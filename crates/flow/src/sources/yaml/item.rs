//! Reads one rule of a section, field by field.

use crate::rules::InvalidRule;
use std::time::Duration;

use tidegate_config::{Complaints, Fields, Kind, Node, Problem, abridged};
use tidegate_core::Quota;

use crate::rules::Target;

/// A rule as written in a document.
pub(super) trait Written: Sized {
    /// The section of its kind.
    const SECTION: &'static str;
    /// The name of one rule in messages.
    const NAME: &'static str;
    /// The known fields.
    const FIELDS: &'static [&'static str];
    /// The resulting rule.
    type Rule;

    fn read(item: &mut Item<'_, '_>) -> Self;

    /// Returns the rule, or why its fields do not form one.
    fn into_rule(self) -> Result<Self::Rule, InvalidRule>;

    fn validate(rule: &Self::Rule) -> Result<(), InvalidRule>;
}

/// Reads the rules of one kind. Every mistake becomes a complaint.
pub(super) fn section<W: Written>(fields: &Fields<'_>, complaints: &mut Complaints) -> Vec<W::Rule> {
    let Some(node) = fields.get(W::SECTION).filter(|node| !node.is_null()) else { return Vec::new() };
    let Kind::Sequence(nodes) = &node.kind else {
        complaints.add(
            Problem::at(node.line, format!("`{}` is {}", W::SECTION, node.describe()))
                .mend(format!("write a list of rules; a rule's fields are: {}", W::FIELDS.join(", "))),
        );
        return Vec::new();
    };
    let rules = nodes.iter().enumerate().map(|(at, node)| {
        let called = format!("{} {}", W::NAME, at + 1);
        let before = complaints.len();
        let fields = Fields::open(node, &called, W::FIELDS, complaints)?;
        let line = fields.line();
        let written = W::read(&mut Item { fields, called: &called, complaints });
        if complaints.len() > before {
            return None;
        }
        let made = written.into_rule().and_then(|rule| W::validate(&rule).map(|()| rule));
        made.map_err(|reason| complaints.add(Problem::at(line, format!("{called}: {reason}")))).ok()
    });
    rules.flatten().collect()
}

/// The fields of one rule. Each getter returns `None` if the field is missing, or if it has a wrong value, which also
/// becomes a complaint.
pub(super) struct Item<'a, 'c> {
    pub(super) fields: Fields<'a>,
    pub(super) called: &'c str,
    pub(super) complaints: &'c mut Complaints,
}

impl<'a> Item<'a, '_> {
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        self.fields.read(name, "a text", self.complaints, |text| Some(text.to_owned()))
    }

    pub(super) fn flag(&mut self, name: &str) -> bool {
        self.fields.flag(name, self.complaints).unwrap_or(false)
    }

    /// Reads a whole number from 0 to 4294967295.
    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        self.fields.number(name, 0, self.complaints)
    }

    /// Reads a whole number from 0 of up to 64 bits.
    pub(super) fn large(&mut self, name: &str) -> Option<u64> {
        self.fields.read(name, "a whole number, 0 or greater", self.complaints, |text| text.parse().ok())
    }

    /// Reads a whole number of either sign.
    pub(super) fn signed(&mut self, name: &str) -> Option<i32> {
        self.fields.read(name, "a whole number", self.complaints, |text| text.parse().ok())
    }

    pub(super) fn decimal(&mut self, name: &str) -> Option<f64> {
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        self.fields.read(name, "a number such as 0.5", self.complaints, number)
    }

    pub(super) fn span(&mut self, name: &str) -> Option<Duration> {
        self.fields.duration(name, self.complaints)
    }

    pub(super) fn word<T: Copy>(&mut self, name: &str, words: &[(&str, T)]) -> Option<T> {
        self.fields.get(name)?;
        self.fields.word(name, words, self.complaints)
    }

    /// Reads a limit such as `100/1s`.
    pub(super) fn quota(&mut self, name: &str) -> Option<Quota> {
        let node = self.fields.get(name)?;
        let quota = node.text().unwrap_or_default().parse();
        quota.map_err(|e| self.complain(node, &format!("`{name}` is {}: {e}", node.describe()))).ok()
    }

    /// Reads a list of texts.
    pub(super) fn texts(&mut self, name: &str) -> Option<Vec<String>> {
        let node = self.fields.get(name)?;
        let texts = match &node.kind {
            Kind::Sequence(nodes) => nodes.iter().map(|node| node.text().map(str::to_owned)).collect(),
            _ => None,
        };
        if texts.is_none() {
            self.complain(node, &format!("`{name}` is {}; write a list of names", node.describe()));
        }
        texts
    }

    /// Reads keys with whole numbers from 0 to 4294967295.
    pub(super) fn counts(&mut self, name: &str) -> Vec<(&'a Node, u32)> {
        let Some(node) = self.fields.get(name).filter(|node| !node.is_null()) else { return Vec::new() };
        let Kind::Mapping(entries) = &node.kind else {
            self.complain(
                node,
                &format!(
                    "`{name}` is {}; write values with their counts, as in {{ vip: 100 }}",
                    node.describe()
                ),
            );
            return Vec::new();
        };
        let count = |(key, value): &'a (Node, Node)| {
            let count = value.text().and_then(|text| text.parse().ok());
            if key.text().is_none() || count.is_none() {
                let pair = format!("{}: {}", key.describe(), value.describe());
                self.complain(
                    key,
                    &format!("`{name}` has {}; write a value and a whole number", abridged(&pair)),
                );
            }
            Some((key, count?))
        };
        entries.iter().filter_map(count).collect()
    }

    /// Reads a mapping within the rule.
    pub(super) fn nested(&mut self, name: &str, known: &[&'static str]) -> Option<Item<'a, '_>> {
        let node = self.fields.get(name)?;
        let fields = Fields::open(node, &format!("`{name}` of {}", self.called), known, self.complaints)?;
        Some(Item { fields, called: self.called, complaints: self.complaints })
    }

    /// Complains if a required field is missing.
    pub(super) fn missing(&mut self, name: &str, mend: &str) {
        if self.fields.get(name).is_none() {
            let problem = Problem::at(self.fields.line(), format!("{} has no `{name}`", self.called));
            self.complaints.add(problem.mend(mend));
        }
    }

    fn complain(&mut self, node: &Node, what: &str) {
        self.complaints.add(Problem::at(node.line, what));
    }
}

/// The resource that a rule applies to.
#[derive(Debug)]
pub(super) struct About {
    resource: Option<String>,
    pattern: Option<String>,
}

impl About {
    pub(super) fn read(item: &mut Item<'_, '_>) -> Self {
        Self { resource: item.text("resource"), pattern: item.text("pattern") }
    }

    pub(super) fn target(self) -> Result<Target, InvalidRule> {
        match (self.resource, self.pattern) {
            (Some(name), None) => Ok(Target::Name(name)),
            (None, Some(pattern)) => Ok(Target::Pattern(pattern)),
            _ => Err("give it a resource or a pattern, and not both".into()),
        }
    }
}
