//! Reads the values of a mapping one by one and collects all mistakes instead of stopping at the
//! first.

use std::{cell::RefCell, collections::HashSet, ops::RangeInclusive, time::Duration};

use tidegate_core::{parse_duration, parse_units};

use crate::{Kind, Node, Problem, abridged, nearest};

/// The maximum number of problems that are kept. A hostile file has one in each line.
const MOST: usize = 100;

/// The problems of one file: the first 100, and how many there are.
#[derive(Debug, Default)]
pub struct Complaints(RefCell<(Vec<Problem>, usize)>);

impl Complaints {
    /// Adds a problem.
    pub fn add(&self, problem: Problem) {
        let (problems, left_out) = &mut *self.0.borrow_mut();
        if problems.len() < MOST {
            problems.push(problem);
        } else {
            *left_out += 1;
        }
    }

    /// Adds a problem of one line, and how to fix it.
    pub fn at(&self, line: usize, what: impl Into<String>, mend: impl Into<String>) {
        self.add(Problem::at(line, what).mend(mend));
    }

    /// Returns the first 100 problems, sorted by line. If there are more, the last one says how
    /// many.
    pub fn into_sorted(self) -> Vec<Problem> {
        let (mut problems, left_out) = self.0.into_inner();
        problems.sort_by_key(Problem::line);
        if left_out > 0 {
            let what = format!("{left_out} more problems are not listed");
            problems.push(Problem::overall(what).mend("mend these first"));
        }
        problems
    }

    /// Returns whether no problem was found.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of problems so far.
    pub fn len(&self) -> usize {
        let (problems, left_out) = &*self.0.borrow();
        problems.len() + left_out
    }
}

/// Reads a parsed text with `read`, which gets `None` for a text without a document.
///
/// # Errors
/// The problem of a text that cannot be parsed, or all complaints, sorted by line.
pub fn read<T>(
    parsed: Result<Option<Node>, Problem>,
    read: impl FnOnce(Option<&Node>, &Complaints) -> T,
) -> Result<T, Vec<Problem>> {
    let complaints = Complaints::default();
    let root = parsed.map_err(|problem| vec![problem])?;
    let value = read(root.as_ref(), &complaints);
    if complaints.is_empty() {
        Ok(value)
    } else {
        Err(complaints.into_sorted())
    }
}

/// A mapping with known keys.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    line: usize,
    entries: Vec<(&'a str, &'a Node)>,
    complaints: &'a Complaints,
}

impl<'a> Fields<'a> {
    /// Reads the keys of a mapping. Unknown, odd and repeated keys become complaints.
    pub fn open(
        node: &'a Node,
        what: &str,
        known: &[&str],
        complaints: &'a Complaints,
    ) -> Option<Self> {
        let Kind::Mapping(entries) = &node.kind else {
            let what = format!("{what} must be a mapping, not {}", node.describe());
            complaints.at(
                node.line,
                what,
                format!(
                    "write `name: value` pairs, with names of: {}",
                    known.join(", ")
                ),
            );
            return None;
        };
        let mut fields = Self {
            line: node.line,
            entries: Vec::with_capacity(entries.len()),
            complaints,
        };
        for (key, value) in entries {
            let Some(name) = key.text() else {
                let what = format!("{} is not an option of {what}", key.describe());
                complaints.add(Problem::at(key.line, what));
                continue;
            };
            if !known.contains(&name) {
                let mend = match nearest(name, known.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("the options are: {}", known.join(", ")),
                };
                complaints.at(
                    key.line,
                    format!("{what} has no option `{}`", abridged(name)),
                    mend,
                );
            } else if fields.get(name).is_some() {
                complaints.at(
                    key.line,
                    format!("`{name}` is given twice in {what}"),
                    "keep one",
                );
            } else {
                fields.entries.push((name, value));
            }
        }
        Some(fields)
    }

    /// Returns the first line of the mapping.
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the line of this key's value, or the first line of the mapping if it does not have
    /// the key.
    pub fn line_of(&self, name: &str) -> usize {
        self.get(name).map_or(self.line, |node| node.line)
    }

    /// Returns where complaints about this mapping go.
    pub fn complaints(&self) -> &'a Complaints {
        self.complaints
    }

    /// Returns the value of this key.
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        self.entries
            .iter()
            .find(|(key, _)| *key == name)
            .map(|(_, node)| *node)
    }

    /// Complains about a value of this key, or of an entry of it.
    pub fn refuse(&self, name: &str, node: &Node, mend: impl Into<String>) {
        self.complaints
            .at(node.line, format!("`{name}` is {}", node.describe()), mend);
    }

    /// Reads a list. Without the key, or if it has no value, the list is empty.
    pub fn list(&self, name: &str, mend: &str) -> &'a [Node] {
        match self.get(name) {
            Some(Node {
                kind: Kind::Sequence(items),
                ..
            }) => items,
            Some(node) if !node.is_null() => {
                self.refuse(name, node, mend);
                &[]
            }
            _ => &[],
        }
    }

    /// Reads a mapping with any keys. Without the key, or if it has no value, the mapping is empty.
    pub fn mapping(&self, name: &str, mend: &str) -> &'a [(Node, Node)] {
        match self.get(name) {
            Some(Node {
                kind: Kind::Mapping(entries),
                ..
            }) => entries,
            Some(node) if !node.is_null() => {
                self.refuse(name, node, mend);
                &[]
            }
            _ => &[],
        }
    }

    /// Reads a mapping like [`mapping`](Self::mapping), and complains of keys that are there twice:
    /// one of the values would be lost.
    pub fn mapping_once(&self, name: &str, mend: &str) -> &'a [(Node, Node)] {
        let entries = self.mapping(name, mend);
        let mut seen = HashSet::new();
        for (key, _) in entries {
            if let Some(text) = key.text().filter(|text| !seen.insert(*text)) {
                let what = format!("`{}` is given twice in `{name}`", abridged(text));
                self.complaints.at(key.line, what, "keep one");
            }
        }
        entries
    }

    /// Reads a field with `read`. `wants` describes the expected value, for the message about any
    /// other value.
    pub fn read<T>(
        &self,
        name: &str,
        wants: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let node = self.get(name)?;
        let value = node.text().and_then(read);
        if value.is_none() {
            self.refuse(name, node, format!("it must be {wants}"));
        }
        value
    }

    /// Reads `true` or `false`.
    pub fn flag(&self, name: &str) -> Option<bool> {
        self.read(name, "true or false", |text| text.parse().ok())
    }

    /// Reads a whole number from `least` to 4294967295.
    pub fn number(&self, name: &str, least: u32) -> Option<u32> {
        let wants = format!("a whole number from {least} to {}", u32::MAX);
        self.read(name, &wants, |text| {
            text.parse().ok().filter(|number| *number >= least)
        })
    }

    /// Reads a whole number in this range, with `_` between digits or not.
    pub fn units(&self, name: &str, within: RangeInclusive<u64>) -> Option<u64> {
        let wants = format!("a whole number from {} to {}", within.start(), within.end());
        self.read(name, &wants, |text| {
            parse_units(text).filter(|number| within.contains(number))
        })
    }

    /// Reads a duration such as `500ms` or `1m30s`.
    pub fn duration(&self, name: &str) -> Option<Duration> {
        let wants = "a duration such as 500ms, 10s, 1m30s, 2h or 1d";
        self.read(name, wants, |text| parse_duration(text).ok())
    }

    /// Reads one of a few words.
    pub fn word<T: Copy>(&self, name: &str, words: &[(&str, T)]) -> Option<T> {
        let node = self.get(name)?;
        let names = || words.iter().map(|(word, _)| *word);
        let text = node.text().unwrap_or_default();
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text) {
            return Some(*value);
        }
        let mend = match nearest(text, names()) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => format!("choose one of: {}", names().collect::<Vec<_>>().join(", ")),
        };
        self.refuse(name, node, mend);
        None
    }
}
