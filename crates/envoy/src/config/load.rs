//! The files of a configuration: one file, or all files of a directory.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use tidegate_service::rules::{
    Keeping, LimitSpec, PolicySpec, Problem, RulesError, files::files, read_text,
};

use super::{Domains, Unit, parse, tree::Domain};

/// The maximum number of rules in all files together. It bounds the number of metrics.
pub(crate) const MAX_RULES: usize = 10_000;

/// The contents of all files of a configuration.
#[derive(Debug, Default)]
pub struct Config {
    /// The domains, with their rules.
    pub domains: Domains,
    /// The limits of the rules, in the same order.
    pub limits: Vec<LimitSpec>,
}

impl Config {
    /// The same with months of the calendar, in UTC, instead of 30 days, except for limits that
    /// have a time zone or another kind of window already.
    pub fn with_calendar_months(mut self) -> Self {
        let month = Some(Unit::Month.span());
        let months = self
            .limits
            .iter_mut()
            .filter(|limit| limit.policy.window == month);
        months.for_each(|limit| by_calendar(&mut limit.policy));
        self
    }
}

/// Makes a fixed window one of the calendar of UTC. Another algorithm stays as it is, and so does a
/// window whose options say how it is aligned.
pub(crate) fn by_calendar(policy: &mut PolicySpec) {
    let algorithm = &mut policy.algorithm;
    let said = ["calendar", "time_zone", "starts", "first_hit"];
    if algorithm.name() == "fixed-window" && said.iter().all(|said| algorithm.get(said).is_none()) {
        let is_set = algorithm.set("calendar", Some("true"));
        debug_assert!(is_set.is_ok(), "the service builds core with calendars");
    }
}

/// A part of a configuration: a file, or a resource of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// Where it is from, for messages.
    pub origin: PathBuf,
    pub text: String,
}

/// Reads and checks a file, or all files with any name of a directory and its subdirectories,
/// except those that begin with a dot. `keeping` says where the limits are kept.
///
/// # Errors
/// When a file cannot be read or has problems, or two files have the same domain. The error lists
/// all problems of all files, and none of the files is used.
pub fn load(path: &Path, keeping: Keeping) -> Result<Config, RulesError> {
    let texts = read(path)?;
    build(texts, keeping, false)
}

/// The parts at a path, or why they cannot be read.
///
/// # Errors
/// When the path leads to no file.
pub fn read(path: &Path) -> Result<Vec<Result<Text, RulesError>>, RulesError> {
    let read = |origin: PathBuf| read_text(&origin).map(|text| Text { origin, text });
    Ok(files(path)?.into_iter().map(read).collect())
}

/// Checks all parts of a configuration. If `merge`, several parts may have descriptors of one
/// domain.
///
/// # Errors
/// As [`load`]. If `merge`, when two parts have the same outermost descriptor of a domain.
pub fn build(
    texts: impl IntoIterator<Item = Result<Text, RulesError>>,
    keeping: Keeping,
    merge: bool,
) -> Result<Config, RulesError> {
    let mut errors = Vec::new();
    let (mut domains, mut rules, mut limits) = (Vec::<Domain>::new(), Vec::new(), Vec::new());
    // Where a domain is from, and its place in `domains`.
    let mut seen: BTreeMap<String, (PathBuf, usize)> = BTreeMap::new();
    for text in texts {
        let parsed =
            text.and_then(
                |Text { origin, text }| match parse(&text, rules.len(), keeping) {
                    Ok(file) => Ok((origin, file)),
                    Err(problems) => Err(RulesError::Invalid {
                        path: Some(origin),
                        problems,
                    }),
                },
            );
        let (origin, file) = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let name = &file.domain.name;
        let problem = match seen.get(name) {
            None => {
                seen.insert(name.clone(), (origin.clone(), domains.len()));
                domains.push(file.domain);
                None
            }
            Some((first, at)) if merge => domains[*at].root.merge(file.domain.root).map(|again| {
                let what = format!(
                    "the descriptor `{again}` of domain `{name}` is already in {}",
                    first.display()
                );
                Problem::at(file.line, what).mend("remove one of the two")
            }),
            Some((first, _)) => {
                let what = format!("the domain `{name}` is already in {}", first.display());
                let mend = "put all its descriptors into one of the files, or serve with --envoy-merge-domains";
                Some(Problem::at(file.line, what).mend(mend))
            }
        };
        if let Some(problem) = problem {
            errors.push(RulesError::invalid(Some(&origin), problem));
            continue;
        }
        rules.extend(file.rules);
        limits.extend(file.limits);
    }
    if rules.len() > MAX_RULES {
        let what = format!(
            "the configuration has {} rules; at most {MAX_RULES} are allowed",
            rules.len()
        );
        let mend = "remove `value`, so that one rule limits each value separately";
        errors.push(RulesError::invalid(None, Problem::overall(what).mend(mend)));
    }
    RulesError::check(errors)?;
    Ok(Config {
        domains: Domains::new(domains, rules),
        limits,
    })
}

/// Whether a file looks like a configuration of Envoy's rate limit service: a line begins with
/// `domain` or `descriptors`, and no line begins with a key of a rules file.
pub fn is_config(path: &Path) -> bool {
    let Ok(text) = read_text(path) else {
        return false;
    };
    let begins = |key: &str| {
        text.lines().any(|line| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with(':'))
        })
    };
    (begins("domain") || begins("descriptors")) && !begins("limits")
}
