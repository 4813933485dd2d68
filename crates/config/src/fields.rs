//! Reads the values of a mapping one by one and collects all mistakes instead of stopping at the first.

use std::time::Duration;

use tidegate_core::parse_duration;

use crate::{Kind, Node, Problem, abridged, nearest};

/// The maximum number of problems that are kept. A hostile file has one in each line.
const MOST: usize = 100;

/// The problems of one file: the first 100, and how many there are.
#[derive(Debug, Default)]
pub struct Complaints {
    problems: Vec<Problem>,
    left_out: usize,
}

impl Complaints {
    /// Adds a problem.
    pub fn add(&mut self, problem: Problem) {
        if self.problems.len() < MOST {
            self.problems.push(problem);
        } else {
            self.left_out += 1;
        }
    }

    /// Returns the first 100 problems, sorted by line. If there are more, the last one says how many.
    #[must_use]
    pub fn into_sorted(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(Problem::line);
        if self.left_out > 0 {
            let what = format!("{} more problems are not listed", self.left_out);
            self.problems.push(Problem::overall(what).mend("mend these first"));
        }
        self.problems
    }

    /// Returns whether no problem was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Returns the number of problems so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.problems.len() + self.left_out
    }
}

/// A mapping with known keys.
#[derive(Debug)]
pub struct Fields<'a> {
    line: usize,
    entries: Vec<(&'a str, &'a Node)>,
}

impl<'a> Fields<'a> {
    /// Reads the keys of a mapping. Unknown, odd and repeated keys become complaints.
    pub fn open(
        node: &'a Node,
        what: &str,
        known: &[&'static str],
        complaints: &mut Complaints,
    ) -> Option<Self> {
        let Kind::Mapping(entries) = &node.kind else {
            complaints.add(
                Problem::at(node.line, format!("{what} must be a mapping, not {}", node.describe()))
                    .mend(format!("write `name: value` pairs, with names of: {}", known.join(", "))),
            );
            return None;
        };
        let mut fields = Self { line: node.line, entries: Vec::with_capacity(entries.len()) };
        for (key, value) in entries {
            let Some(name) = key.text() else {
                complaints
                    .add(Problem::at(key.line, format!("{} is not an option of {what}", key.describe())));
                continue;
            };
            if !known.contains(&name) {
                let mend = match nearest(name, known.iter().copied()) {
                    Some(meant) => format!("did you mean `{meant}`?"),
                    None => format!("the options are: {}", known.join(", ")),
                };
                complaints.add(
                    Problem::at(key.line, format!("{what} has no option `{}`", abridged(name))).mend(mend),
                );
            } else if fields.entries.iter().any(|(seen, _)| *seen == name) {
                complaints.add(
                    Problem::at(key.line, format!("`{name}` is given twice in {what}")).mend("keep one"),
                );
            } else {
                fields.entries.push((name, value));
            }
        }
        Some(fields)
    }

    /// Returns the first line of the mapping.
    #[must_use]
    pub fn line(&self) -> usize {
        self.line
    }

    /// Returns the value of this key.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a Node> {
        self.entries.iter().find(|(key, _)| *key == name).map(|(_, node)| *node)
    }

    /// Reads a field with `read`. `wants` describes the expected value, for the message about any other value.
    pub fn read<T>(
        &self,
        name: &str,
        wants: &str,
        complaints: &mut Complaints,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let node = self.get(name)?;
        let value = node.text().and_then(read);
        if value.is_none() {
            complaints.add(
                Problem::at(node.line, format!("`{name}` is {}", node.describe()))
                    .mend(format!("it must be {wants}")),
            );
        }
        value
    }

    /// Reads `true` or `false`.
    pub fn flag(&self, name: &str, complaints: &mut Complaints) -> Option<bool> {
        self.read(name, "true or false", complaints, |text| text.parse().ok())
    }

    /// Reads a whole number from `least` to 4294967295.
    pub fn number(&self, name: &str, least: u32, complaints: &mut Complaints) -> Option<u32> {
        let wants = format!("a whole number from {least} to {}", u32::MAX);
        self.read(name, &wants, complaints, |text| text.parse().ok().filter(|number| *number >= least))
    }

    /// Reads a duration such as `500ms` or `1m30s`.
    pub fn duration(&self, name: &str, complaints: &mut Complaints) -> Option<Duration> {
        let wants = "a duration such as 500ms, 10s, 1m30s, 2h or 1d";
        self.read(name, wants, complaints, |text| parse_duration(text).ok())
    }

    /// Reads one of a few words.
    pub fn word<T: Copy>(&self, name: &str, words: &[(&str, T)], complaints: &mut Complaints) -> Option<T> {
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
        complaints.add(Problem::at(node.line, format!("`{name}` is {}", node.describe())).mend(mend));
        None
    }
}
