//! Reads one rule of a section, field by field.

use std::{fmt, time::Duration};

use tidegate_config::{Fields, Kind, Node, Problem, abridged};
use tidegate_core::{ParseQuotaError, Quota};

use crate::rules::{InvalidRule, Target};

/// The rules of one kind in a document.
pub(super) struct Section<R> {
    /// The name of the section.
    pub(super) name: &'static str,
    /// The name of one rule in messages.
    pub(super) called: &'static str,
    /// The known fields of a rule.
    pub(super) fields: &'static [&'static str],
    /// Reads all fields, and then makes a rule of them or returns why they do not form one.
    pub(super) read: fn(&Item<'_>) -> Result<R, InvalidRule>,
    pub(super) validate: fn(&R) -> Result<(), InvalidRule>,
}

impl<R> Section<R> {
    /// Reads the rules. Every mistake becomes a complaint.
    pub(super) fn rules(&self, fields: &Fields<'_>) -> Vec<R> {
        let mend = format!(
            "write a list of rules; a rule's fields are: {}",
            self.fields.join(", ")
        );
        let complaints = fields.complaints();
        let rules = fields
            .list(self.name, &mend)
            .iter()
            .enumerate()
            .map(|(at, node)| {
                let called = format!("{} {}", self.called, at + 1);
                let before = complaints.len();
                let item = Item {
                    fields: Fields::open(node, &called, self.fields, complaints)?,
                    called: &called,
                };
                let read = (self.read)(&item);
                if complaints.len() > before {
                    return None;
                }
                let made = read.and_then(|rule| (self.validate)(&rule).map(|()| rule));
                let complain =
                    |reason| item.complain(item.fields.line(), format!("{called}: {reason}"));
                made.map_err(complain).ok()
            });
        rules.flatten().collect()
    }
}

/// The fields of one rule. Each getter returns `None` if the field is missing, or if it has a wrong
/// value, which also becomes a complaint.
pub(super) struct Item<'a> {
    fields: Fields<'a>,
    called: &'a str,
}

impl<'a> Item<'a> {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.fields
            .read(name, "a text", |text| Some(text.to_owned()))
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        self.fields.flag(name).unwrap_or(false)
    }

    /// Reads a whole number from 0 to 4294967295.
    pub(super) fn number(&self, name: &str) -> Option<u32> {
        self.fields.number(name, 0)
    }

    /// Reads a whole number from 0 of up to 64 bits.
    pub(super) fn large(&self, name: &str) -> Option<u64> {
        self.fields
            .read(name, "a whole number, 0 or greater", |text| {
                text.parse().ok()
            })
    }

    /// Reads a whole number of either sign.
    pub(super) fn signed(&self, name: &str) -> Option<i32> {
        self.fields
            .read(name, "a whole number", |text| text.parse().ok())
    }

    pub(super) fn decimal(&self, name: &str) -> Option<f64> {
        let number = |text: &str| text.parse().ok().filter(|number: &f64| number.is_finite());
        self.fields.read(name, "a number such as 0.5", number)
    }

    pub(super) fn span(&self, name: &str) -> Option<Duration> {
        self.fields.duration(name)
    }

    pub(super) fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Option<T> {
        self.fields.word(name, words)
    }

    /// Reads a limit such as `100/1s`: the units, which the windows of flow rules count in 32 bits,
    /// and the window.
    pub(super) fn quota(&self, name: &str) -> Option<(u32, Duration)> {
        let node = self.fields.get(name)?;
        let refuse = |why: &dyn fmt::Display| {
            self.complain(node.line, format!("`{name}` is {}: {why}", node.describe()));
        };
        let quota: Quota = node
            .text()
            .unwrap_or_default()
            .parse()
            .map_err(|e: ParseQuotaError| refuse(&e))
            .ok()?;
        let units =
            u32::try_from(quota.limit()).map_err(|_| refuse(&"a flow rule counts to 4294967295"));
        Some((units.ok()?, quota.window()))
    }

    /// Reads a list of texts.
    pub(super) fn texts(&self, name: &str) -> Option<Vec<String>> {
        let node = self.fields.get(name)?;
        let texts = match &node.kind {
            Kind::Sequence(nodes) => nodes
                .iter()
                .map(|node| node.text().map(str::to_owned))
                .collect(),
            _ => None,
        };
        if texts.is_none() {
            self.fields.refuse(name, node, "write a list of names");
        }
        texts
    }

    /// Reads keys with whole numbers from 0 to 4294967295.
    pub(super) fn counts(&self, name: &str) -> impl Iterator<Item = (&'a Node, u32)> {
        let entries = self
            .fields
            .mapping_once(name, "write values with their counts, as in { vip: 100 }");
        entries.iter().filter_map(move |(key, value)| {
            let count = value.text().and_then(|text| text.parse().ok());
            if key.text().is_none() || count.is_none() {
                let pair = format!("{}: {}", key.describe(), value.describe());
                let what = format!(
                    "`{name}` has {}; write a value and a whole number",
                    abridged(&pair)
                );
                self.complain(key.line, what);
            }
            Some((key, count?))
        })
    }

    /// Reads a mapping within the rule, all of whose fields are required.
    pub(super) fn nested(&self, name: &str, known: &[&'static str], mend: &str) -> Option<Self> {
        let node = self.fields.get(name)?;
        let complaints = self.fields.complaints();
        let fields = Fields::open(
            node,
            &format!("`{name}` of {}", self.called),
            known,
            complaints,
        )?;
        for name in known.iter().filter(|name| fields.get(name).is_none()) {
            complaints.at(
                fields.line(),
                format!("{} has no `{name}`", self.called),
                mend,
            );
        }
        Some(Self {
            fields,
            called: self.called,
        })
    }

    /// Reads the resource that the rule applies to.
    pub(super) fn target(&self) -> Result<Target, InvalidRule> {
        match (self.text("resource"), self.text("pattern")) {
            (Some(name), None) => Ok(Target::Name(name)),
            (None, Some(pattern)) => Ok(Target::Pattern(pattern)),
            _ => Err("give it a resource or a pattern, and not both".into()),
        }
    }

    fn complain(&self, line: usize, what: String) {
        self.fields.complaints().add(Problem::at(line, what));
    }
}
