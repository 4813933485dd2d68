//! Findings for a person (a table, a page) and for a program (JSON).

mod chart;
mod escape;
mod format;
mod html;
mod json;
mod shared;
mod style;
mod table;

pub use escape::printable;
pub use html::write_html;
pub use json::write_json;
pub use table::write_table;

use crate::{
    replay::{DeniedKey, Findings},
    suggest::{Goal, Suggestion},
};

/// What is reported.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Where the traffic comes from, in words: a file's name, or how it was made.
    pub source: String,
    /// What the keys are: `ip`, `global`.
    pub by: String,
    /// Lines read; 0 for traffic that was made.
    pub lines: u64,
    /// Lines that are no requests.
    pub unparsed: u64,
    /// One for each trial.
    pub findings: Vec<Findings>,
    /// The keys' names in the order of each trial's `most_denied`.
    pub names: Vec<Vec<String>>,
    /// What was asked to be suggested and what was, where it was asked.
    pub suggestions: Option<(Goal, Vec<(String, Suggestion)>)>,
}

impl Report {
    /// The keys that a trial's algorithms deny most, with their names.
    fn most_denied(&self, trial: usize) -> impl Iterator<Item = (&str, &DeniedKey)> {
        let names = self.names.get(trial).into_iter().flatten().map(String::as_str);
        names.zip(self.findings.get(trial).into_iter().flat_map(|findings| &findings.most_denied))
    }

    /// Whether a trial's quota was suggested for this algorithm.
    fn is_suggested(&self, findings: &Findings, algorithm: &str) -> bool {
        let mut suggestions = self.suggestions.iter().flat_map(|(_, suggestions)| suggestions);
        suggestions.any(|(name, suggestion)| name == algorithm && suggestion.quota == findings.quota)
    }
}
