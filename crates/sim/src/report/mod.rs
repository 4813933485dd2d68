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
pub(crate) use format::{grouped, percent};
pub use html::write_html;
pub use json::write_json;
pub use table::write_table;

use std::time::Duration;

use crate::{
    replay::{DeniedKey, Findings, HeatMap, Row},
    suggest::{Goal, Recommendation, Suggestion, Survey},
};

/// What is reported.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The command line that made it; empty where there is none.
    pub command: String,
    /// When it was made, in words; empty where nobody says.
    pub date: String,
    /// Where the traffic comes from, in words: a file's name, or how it was made.
    pub source: String,
    /// What the keys are: `ip`, `global`.
    pub by: String,
    /// Lines read; 0 for traffic that was made.
    pub lines: u64,
    /// Lines that are no requests.
    pub unparsed: u64,
    /// Requests that were left out by a filter.
    pub excluded: u64,
    /// What the reader should know before trusting the numbers.
    pub warnings: Vec<String>,
    /// One for each trial.
    pub findings: Vec<Findings>,
    /// What each trial's limit is called, where limits have names: one for each of `findings`, or none.
    pub limits: Vec<String>,
    /// The keys' names in the order of each trial's `most_denied`.
    pub names: Vec<Vec<String>>,
    /// For each trial, its `most_denied` over time; may be empty.
    pub heat: Vec<HeatMap>,
    /// What was suggested, where that was asked.
    pub suggested: Option<Suggested>,
}

/// The answer to what limit there should be.
#[derive(Clone, Debug)]
pub struct Suggested {
    /// What was asked for.
    pub goal: Goal,
    /// The smallest limit of each algorithm in each window.
    pub found: Vec<(String, Suggestion)>,
    /// How many requests keys make in their busiest window.
    pub busiest: Vec<BusiestWindow>,
    /// The one to begin with.
    pub recommended: Option<Recommendation>,
}

/// How many requests a key makes in its busiest window (windows aligned to the clock).
#[derive(Clone, Debug)]
pub struct BusiestWindow {
    /// The window.
    pub window: Duration,
    /// Shares of the keys in thousandths, and the most that so many of them make.
    pub percentiles: Vec<(u64, u64)>,
}

impl BusiestWindow {
    /// The shares of keys that are told, in thousandths: 1,000 is the busiest key.
    pub const SHARES: [u64; 5] = [500, 900, 990, 999, 1_000];

    /// What a survey found.
    #[must_use]
    pub fn new(survey: &Survey) -> Self {
        let percentiles = Self::SHARES.map(|share| (share, survey.busiest_window(share)));
        Self { window: survey.window(), percentiles: percentiles.into() }
    }

    /// `p99`, or `most` for the busiest key.
    fn name(share: u64) -> String {
        match share {
            1_000 => "most".to_owned(),
            share if share.is_multiple_of(10) => format!("p{}", share / 10),
            share => format!("p{}.{}", share / 10, share % 10),
        }
    }
}

impl Report {
    /// The keys that a trial's algorithms deny most, with their names.
    fn most_denied(&self, trial: usize) -> impl Iterator<Item = (&str, &DeniedKey)> {
        let names = self.names.get(trial).into_iter().flatten().map(String::as_str);
        names.zip(self.findings.get(trial).into_iter().flat_map(|findings| &findings.most_denied))
    }

    /// Whether a trial's quota was suggested for this algorithm.
    fn is_suggested(&self, findings: &Findings, algorithm: &str) -> bool {
        let mut suggestions = self.suggested.iter().flat_map(|suggested| &suggested.found);
        suggestions.any(|(name, suggestion)| name == algorithm && suggestion.quota == findings.quota)
    }

    /// A trial's limit with its name, if it has one.
    fn limit(&self, trial: usize) -> String {
        let quota = self.findings.get(trial).map(|findings| findings.quota.to_string()).unwrap_or_default();
        match self.limits.get(trial) {
            Some(name) => format!("{name} ({quota})"),
            None => quota,
        }
    }

    /// The trials' rows with the number of their trial.
    fn rows(&self) -> impl Iterator<Item = (usize, &Findings, &Row)> {
        let all = self.findings.iter().enumerate();
        all.flat_map(|(trial, findings)| findings.rows.iter().map(move |row| (trial, findings, row)))
    }

    /// What follows from the numbers, a sentence each.
    #[must_use]
    pub fn conclusions(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(recommended) =
            self.suggested.as_ref().and_then(|suggested| suggested.recommended.as_ref())
        {
            let Recommendation { quota, algorithm, reason, .. } = recommended;
            said.push(format!("Begin with {quota} and {algorithm}: {reason}."));
        }
        for (trial, findings) in self.findings.iter().enumerate() {
            let limit = self.limit(trial);
            let reference =
                findings.rows.iter().find(|row| row.wrongly_admitted == 0 && row.wrongly_denied == 0);
            let Some(row) = reference.or_else(|| findings.rows.iter().min_by_key(|row| row.denied)) else {
                continue;
            };
            said.push(if row.denied == 0 {
                format!("{limit} denies nothing with {}.", row.algorithm)
            } else {
                format!(
                    "{limit} denies {} of {} requests ({}) and touches {} of {} keys ({}) with {}.",
                    grouped(row.denied),
                    grouped(findings.requests),
                    percent(row.denied, findings.requests),
                    grouped(row.denied_keys),
                    grouped(findings.keys),
                    percent(row.denied_keys, findings.keys),
                    row.algorithm,
                )
            });
            let worst = findings.rows.iter().max_by_key(|row| row.worst_window);
            if let Some(worst) = worst.filter(|row| row.worst_window > u64::from(findings.quota.limit())) {
                said.push(format!(
                    "{} lets up to {} requests of one key through in a window of {limit}.",
                    worst.algorithm,
                    grouped(worst.worst_window),
                ));
            }
        }
        said
    }
}
