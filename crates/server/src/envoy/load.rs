//! The files of a configuration: one, or all in a directory.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use super::{Domains, parse};
use crate::rules::{Keeping, LimitSpec, Problem, RulesError, read_text};

/// The most rules in all files together: each has metrics of its own, whose number must be bounded.
const MAX_RULES: usize = 10_000;

/// What all files of a configuration say together.
#[derive(Debug, Default)]
pub struct Config {
    /// The domains, with their rules.
    pub domains: Domains,
    /// The limits that the rules name, in the same order.
    pub limits: Vec<LimitSpec>,
}

/// Reads and checks a file, or all files of a directory whose names end with `.yaml` or `.yml` (but those that begin with
/// a dot), for limits that are to be kept there.
///
/// # Errors
/// When a file cannot be read or has problems, or a domain is in two files: everything that is wrong with all of them.
/// Then none of it is used.
pub fn load(path: &Path, keeping: Keeping) -> Result<Config, RulesError> {
    let mut errors = Vec::new();
    let (mut domains, mut rules, mut limits) = (Vec::new(), Vec::new(), Vec::new());
    let mut seen: BTreeMap<String, PathBuf> = BTreeMap::new();
    for path in files(path)? {
        let text = match read_text(&path) {
            Ok(text) => text,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        let invalid = |problems| RulesError::Invalid { path: Some(path.clone()), problems };
        let file = match parse(&text, rules.len(), keeping) {
            Ok(file) => file,
            Err(problems) => {
                errors.push(invalid(problems));
                continue;
            }
        };
        if let Some(first) = seen.get(&file.domain.name) {
            let what = format!("the domain `{}` is already in {}", file.domain.name, first.display());
            let problem = Problem::at(file.line, what);
            errors.push(invalid(vec![problem.mend("put all its descriptors into one of the files")]));
            continue;
        }
        seen.insert(file.domain.name.clone(), path.clone());
        rules.extend(file.rules);
        limits.extend(file.limits);
        domains.push(file.domain);
    }
    if rules.len() > MAX_RULES {
        let problem = Problem::overall(format!("{} rules are more than {MAX_RULES}", rules.len()));
        let problems = vec![problem.mend("leave values out, so that one rule counts for each of them")];
        errors.push(RulesError::Invalid { path: Some(path.to_owned()), problems });
    }
    match errors.len() {
        0 => Ok(Config { domains: Domains::new(domains, rules), limits }),
        1 => Err(errors.remove(0)),
        _ => Err(RulesError::Several { errors }),
    }
}

/// Whether a file looks like a configuration of Envoy's rate limit service: `domain` or `descriptors` begins one of its lines, and
/// no key of a rules file does.
#[must_use]
pub fn is_config(path: &Path) -> bool {
    let Ok(text) = read_text(path) else { return false };
    let begins =
        |key: &str| text.lines().any(|line| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')));
    (begins("domain") || begins("descriptors")) && !begins("limits")
}

/// The files that a path stands for, in the order of their names.
///
/// # Errors
/// When the directory cannot be read, or has no such file.
pub(crate) fn files(path: &Path) -> Result<Vec<PathBuf>, RulesError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let read = |source| RulesError::Read { path: path.to_owned(), source };
    let entries = fs::read_dir(path).map_err(read)?.collect::<io::Result<Vec<_>>>().map_err(read)?;
    let mut files: Vec<PathBuf> = entries
        .iter()
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .map(fs::DirEntry::path)
        .filter(|path| path.extension().is_some_and(|end| end == "yaml" || end == "yml") && path.is_file())
        .collect();
    if files.is_empty() {
        let problem = Problem::overall("the directory has no .yaml or .yml file");
        let problems =
            vec![problem.mend("is this the right directory? its own directories are not searched")];
        return Err(RulesError::Invalid { path: Some(path.to_owned()), problems });
    }
    files.sort();
    Ok(files)
}
