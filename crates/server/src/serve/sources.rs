//! The sources of a server's limits: a rules file, the configuration of Envoy's rate limit service, or both.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
};

use tidegate_config::file::Watch;

use crate::{
    envoy::{self, Config, Domains},
    rules::{self, Keeping, Problem, Rules, RulesError},
};

/// The files that define what a server enforces. Without any, the built-in example rules apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The rules file.
    pub rules: Option<PathBuf>,
    /// A file or a directory with Envoy's configuration.
    pub envoy: Option<PathBuf>,
}

/// The contents of all files.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The rules, including the limits for the descriptors of `domains`.
    pub rules: Rules,
    pub domains: Domains,
}

impl Sources {
    /// The configured paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.rules.iter().chain(&self.envoy).cloned().collect()
    }

    /// Watches for changes of the files.
    pub fn watch(&self) -> Watch {
        let paths = self.paths();
        let list = move || {
            let lists: Option<Vec<_>> = paths.iter().map(|path| envoy::load::files(path).ok()).collect();
            Some(lists?.concat())
        };
        Watch::new(list, rules::MAX_FILE)
    }

    /// Reads and checks all files.
    ///
    /// # Errors
    /// All problems of all files; then none of them is used.
    pub fn load(&self, keeping: Keeping) -> Result<Loaded, RulesError> {
        let rules = match (&self.rules, &self.envoy) {
            (Some(path), _) => rules::load_to_serve(path, keeping),
            (None, Some(_)) => Ok(Rules::default()),
            (None, None) => Ok(rules::example()),
        };
        self.joined(rules, keeping)
    }

    /// As [`load`](Self::load), with this text in place of the rules file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn with_rules(&self, text: &str, keeping: Keeping) -> Result<Loaded, RulesError> {
        self.joined(rules::parse_to_serve(text, self.rules.as_deref(), keeping), keeping)
    }

    fn joined(&self, rules: Result<Rules, RulesError>, keeping: Keeping) -> Result<Loaded, RulesError> {
        let config = match &self.envoy {
            Some(path) => {
                envoy::load(path, keeping).and_then(|config| distinct(path, config, rules.as_ref().ok()))
            }
            None => Ok(Config::default()),
        };
        match (rules, config) {
            (Ok(mut rules), Ok(Config { domains, limits })) => {
                rules.limits.extend(limits);
                Ok(Loaded { rules, domains })
            }
            (Err(error), Ok(_)) | (Ok(_), Err(error)) => Err(error),
            (Err(one), Err(other)) => Err(RulesError::Several { errors: vec![one, other] }),
        }
    }
}

/// For messages.
impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.paths().iter().map(|path| path.display().to_string()).collect();
        f.write_str(&paths.join(", "))
    }
}

/// Checks that the configuration has no limit with the name of one in the rules.
fn distinct(path: &Path, config: Config, rules: Option<&Rules>) -> Result<Config, RulesError> {
    let taken: BTreeSet<&str> =
        rules.map(|rules| rules.limits.iter().map(|limit| limit.name.as_str()).collect()).unwrap_or_default();
    let problems: Vec<Problem> = config
        .limits
        .iter()
        .filter(|limit| taken.contains(limit.name.as_str()))
        .map(|limit| {
            let what = format!("a descriptor's limit is called `{}`, as one of the rules is", limit.name);
            Problem::overall(what).mend("rename the limit in the rules file")
        })
        .collect();
    if problems.is_empty() {
        return Ok(config);
    }
    Err(RulesError::Invalid { path: Some(path.to_owned()), problems })
}
