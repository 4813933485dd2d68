//! The groups of descriptors in quota mode: the quotas of one backend and model are used up
//! together.

use std::collections::BTreeMap;

use super::{Descriptor, Found};

/// The quotas of one backend and model, or of one list of entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group<'a> {
    Target { backend: &'a str, model: &'a str },
    Entries(&'a [(&'a str, &'a str)]),
}

impl<'a> Group<'a> {
    pub fn of(descriptor: &'a Descriptor<'_>) -> Self {
        let last = |wanted: &str| {
            let mut found = descriptor
                .entries
                .iter()
                .rev()
                .filter(|(key, _)| *key == wanted);
            found.next().map_or("", |(_, value)| *value)
        };
        match (last("backend_name"), last("model_name_override")) {
            ("", "") => Self::Entries(&descriptor.entries),
            (backend, model) => Self::Target { backend, model },
        }
    }
}

/// What the limits of a request say together: it is denied if one outside quota mode denies, or if
/// every group of quotas is over. A group is over if any of its quotas denies.
#[derive(Clone, Debug, Default)]
pub(super) struct Verdict<'a> {
    is_denied: bool,
    /// Each group, and whether it is over.
    groups: BTreeMap<Group<'a>, bool>,
}

impl<'a> Verdict<'a> {
    /// The verdict of these limits.
    pub fn of<'f>(limits: impl Iterator<Item = &'f Found<'a>>) -> Self
    where
        'a: 'f,
    {
        let mut verdict = Self::default();
        limits.for_each(|found| verdict.add(found));
        verdict
    }

    /// Adds a limit that is decided.
    pub fn add(&mut self, found: &Found<'a>) {
        match found.quota {
            Some(group) => *self.groups.entry(group).or_default() |= found.denies(),
            None => self.is_denied |= found.denies(),
        }
    }

    /// Whether the request is denied.
    pub fn is_over(&self) -> bool {
        self.is_denied || !self.groups.is_empty() && self.groups.values().all(|is_over| *is_over)
    }

    /// Whether the limit belongs to a group that is over.
    pub fn leaves_out(&self, found: &Found<'a>) -> bool {
        found
            .quota
            .is_some_and(|group| self.groups.get(&group) == Some(&true))
    }
}
