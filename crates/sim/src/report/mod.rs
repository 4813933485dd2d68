//! Findings for people (a table, a page) and for programs (JSON).

mod chart;
mod format;
mod html;
mod json;
mod shared;
mod table;
mod tenants;

pub use crate::escape::printable;
pub(crate) use format::{grouped, percent};
pub use html::write_html;
pub use json::write_json;
pub use table::write_table;

use std::time::Duration;

use crate::{
    algorithm::AlgorithmSpec,
    input::Sample,
    replay::{DeniedKey, Findings, HeatMap, Row, SharesFindings},
    suggest::{Goal, MOST_DENIED, Recommendation, Suggestion, Survey},
};

/// The contents of a report.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The command line that made the report; may be empty.
    pub command: String,
    /// The date of the report as text; may be empty.
    pub date: String,
    /// The source of the traffic as text: a file's name, or how it was generated.
    pub source: String,
    /// The key: `ip`, `global`.
    pub by: String,
    /// The number of lines read; 0 for synthetic traffic.
    pub lines: u64,
    /// The number of lines that are not requests.
    pub unparsed: u64,
    /// The number of requests that a filter left out.
    pub excluded: u64,
    /// Lines of the log, and what was taken from them.
    pub samples: Vec<Sample>,
    /// Warnings that qualify the numbers.
    pub warnings: Vec<String>,
    /// The findings of each trial.
    pub findings: Vec<Findings>,
    /// The name of each trial's limit: one for each of `findings`, or empty if limits have no
    /// names.
    pub limits: Vec<String>,
    /// The keys' names in the order of each trial's `most_denied`.
    pub names: Vec<Vec<String>>,
    /// For each trial, its `most_denied` over time; may be empty.
    pub heat: Vec<HeatMap>,
    /// The suggested limits, if they were requested.
    pub suggested: Option<Suggested>,
    /// Limits that tenants share.
    pub shares: Vec<SharesReport>,
}

/// A limit that tenants share, in a report.
#[derive(Clone, Debug)]
pub struct SharesReport {
    /// The limit's name; empty if it has none.
    pub name: String,
    /// The field or fields that name a tenant.
    pub by: String,
    /// The findings.
    pub findings: SharesFindings,
}

/// Suggested limits.
#[derive(Clone, Debug)]
pub struct Suggested {
    /// The goal of the search.
    pub goal: Goal,
    /// The smallest limit of each algorithm in each window.
    pub found: Vec<(AlgorithmSpec, Suggestion)>,
    /// The number of requests that keys make in their busiest window.
    pub busiest: Vec<BusiestWindow>,
    /// The recommended limit.
    pub recommended: Option<Recommendation>,
}

/// The number of requests of a key in its busiest window (windows aligned to the clock).
#[derive(Clone, Debug)]
pub struct BusiestWindow {
    /// The window.
    pub window: Duration,
    /// Shares of the keys in thousandths, each with the highest number of requests of a key in that
    /// share.
    pub percentiles: Vec<(u64, u64)>,
}

impl BusiestWindow {
    /// The shares of keys that are reported, in thousandths: 1,000 is the busiest key.
    pub const SHARES: [u64; 5] = [500, 900, 990, 999, 1_000];

    /// The busiest windows that a survey found.
    pub fn new(survey: &Survey) -> Self {
        let percentiles = Self::SHARES.map(|share| (share, survey.busiest_window(share)));
        Self {
            window: survey.window(),
            percentiles: percentiles.into(),
        }
    }

    /// Each share with its number of requests.
    fn listed(&self) -> String {
        let each =
            |(share, most): &(u64, u64)| format!("{} {}", Self::name(*share), grouped(*most));
        self.percentiles
            .iter()
            .map(each)
            .collect::<Vec<_>>()
            .join(", ")
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
        let names = self
            .names
            .get(trial)
            .into_iter()
            .flatten()
            .map(String::as_str);
        names.zip(
            self.findings
                .get(trial)
                .into_iter()
                .flat_map(|findings| &findings.most_denied),
        )
    }

    /// Whether a trial's quota was suggested for this algorithm.
    fn is_suggested(&self, findings: &Findings, algorithm: &str) -> bool {
        let mut suggestions = self.suggested.iter().flat_map(|suggested| &suggested.found);
        suggestions.any(|(spec, suggestion)| {
            spec.label() == algorithm && suggestion.quota == findings.quota
        })
    }

    /// A trial's limit, with its name if it has one.
    fn limit(&self, trial: usize) -> String {
        let quota = self
            .findings
            .get(trial)
            .map(|findings| findings.quota.to_string())
            .unwrap_or_default();
        match self.limits.get(trial) {
            Some(name) => format!("{} ({quota})", printable(name, 200)),
            None => quota,
        }
    }

    /// The trials' rows with the number of their trial.
    fn rows(&self) -> impl Iterator<Item = (usize, &Findings, &Row)> {
        let all = self.findings.iter().enumerate();
        all.flat_map(|(trial, findings)| {
            findings.rows.iter().map(move |row| (trial, findings, row))
        })
    }

    /// The row of the recommended algorithm, if the recommended limit was tried here.
    fn recommended_for<'a>(&self, findings: &'a Findings) -> Option<&'a Row> {
        let recommended = self.suggested.as_ref()?.recommended.as_ref()?;
        let mut rows = findings.rows.iter();
        (recommended.quota == findings.quota)
            .then(|| rows.find(|row| row.algorithm == recommended.algorithm))?
    }

    /// What to begin with. A limit that denies much is not recommended before that is said.
    fn begin_with(&self, recommended: &Recommendation) -> Vec<String> {
        let Recommendation {
            quota,
            algorithm,
            reason,
            denied,
            denied_keys,
            milder,
            ..
        } = recommended;
        let (requests, keys) = self
            .findings
            .first()
            .map_or((0, 0), |findings| (findings.requests, findings.keys));
        if *denied <= MOST_DENIED.of(requests) {
            return vec![format!("Begin with {quota} and {algorithm}: {reason}.")];
        }
        let mut said = vec![format!(
            "{quota} denies {} of all requests, those of {} of {} keys: look at the keys denied most before you begin with it.",
            percent(*denied, requests),
            grouped(*denied_keys),
            grouped(keys),
        )];
        said.push(match milder {
            Some(milder) => format!(
                "Begin with {} and {algorithm}, which denies {} of all requests: {reason}.",
                milder.quota,
                percent(milder.denied, requests)
            ),
            None => format!("No limit denies at most {MOST_DENIED} of the requests."),
        });
        said
    }

    /// The conclusions from the numbers, one sentence each.
    pub fn conclusions(&self) -> Vec<String> {
        let mut said = Vec::new();
        if let Some(recommended) = self
            .suggested
            .as_ref()
            .and_then(|suggested| suggested.recommended.as_ref())
        {
            said.extend(self.begin_with(recommended));
        }
        for (trial, findings) in self.findings.iter().enumerate() {
            let limit = self.limit(trial);
            // The sentence about the recommended limit is about the recommended algorithm.
            let recommended = self.recommended_for(findings);
            let reference = recommended.or_else(|| {
                let mut rows = findings.rows.iter();
                rows.find(|row| row.wrongly_admitted == 0 && row.wrongly_denied == 0)
            });
            let Some(row) = reference.or_else(|| findings.rows.iter().min_by_key(|row| row.denied))
            else {
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
            if let Some(worst) = worst.filter(|row| row.worst_window > findings.quota.limit()) {
                said.push(format!(
                    "{} lets up to {} {} of one key through in a window of {limit}.",
                    worst.algorithm,
                    grouped(worst.worst_window),
                    if findings.is_charged {
                        "units"
                    } else {
                        "requests"
                    },
                ));
            }
        }
        said
    }
}
