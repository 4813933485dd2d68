//! The sources of a server's limits: a rules file, the configuration of Envoy's rate limit service,
//! or both.

use std::{
    collections::BTreeSet,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use tidegate_config::file::Watch;
use tidegate_envoy::{
    config::{
        Config, Domains,
        load::{build, read},
    },
    descriptors::Descriptors,
    xds::Discovered,
};
#[cfg(feature = "sentinel")]
use tidegate_redis::Mode;
#[cfg(feature = "sentinel")]
use tidegate_sentinel::cluster::{ClusterRules, TokenRules, load_cluster};
use tidegate_service::decide::{
    limits::Limits,
    service::{Attached, InForce},
};
use tidegate_service::rules::{
    self, Keeping, LimitSpec, Problem, Rules, RulesError, file::RulesFile, files::files,
};

use crate::serve::options::Options;

/// The files that define what a server enforces. Without any, the built-in example rules apply.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    /// The rules file.
    pub rules: Option<PathBuf>,
    /// A file or a directory with Envoy's configuration.
    pub envoy: Option<PathBuf>,
    /// Whether several of its files, or of the control planes' resources, may have descriptors of
    /// one domain.
    pub merge_domains: bool,
    /// Whether their months are those of the calendar.
    pub calendar_months: bool,
    /// A file or a directory with Sentinel's cluster rules.
    pub sentinel: Option<PathBuf>,
    #[cfg(feature = "sentinel")]
    pub sentinel_sharing: Option<Mode>,
    /// The configurations of Envoy's rate limit service that control planes send.
    pub discovered: Vec<Arc<Discovered>>,
}

/// The contents of all files.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// The rules, including the limits that protocols have rules for.
    pub rules: Rules,
    pub of_protocols: OfProtocols,
}

/// What protocols keep about the limits of loaded rules.
#[derive(Debug, Default)]
pub(crate) struct OfProtocols {
    domains: Domains,
    #[cfg(feature = "sentinel")]
    tokens: TokenRules,
}

impl OfProtocols {
    /// Attaches it to these limits. Rules for descriptors keep their counts from `before`.
    pub fn in_force(self, limits: Limits, before: Option<&InForce>) -> InForce {
        let limit = |name: &str| limits.limit(name.as_bytes());
        let descriptors = Descriptors::new(self.domains, limit, before.map(Descriptors::of));
        let attached: Vec<Box<dyn Attached>> = vec![
            Box::new(descriptors),
            #[cfg(feature = "sentinel")]
            Box::new(self.tokens),
        ];
        InForce::new(limits, attached)
    }
}

impl Sources {
    pub fn of(options: &Options) -> Self {
        Self {
            rules: options.rules.clone(),
            envoy: options.envoy_config.clone(),
            merge_domains: options.envoy_modes.merge_domains,
            calendar_months: options.envoy_modes.calendar_months,
            sentinel: options.sentinel_rules.clone(),
            #[cfg(feature = "sentinel")]
            sentinel_sharing: options.sentinel_sharing,
            discovered: options.envoy_xds.iter().map(|_| Arc::default()).collect(),
        }
    }

    /// The rules file of these sources, which clients of the control plane may change if
    /// `is_writable`.
    pub fn rules_file(self, is_writable: bool) -> RulesFile {
        let built_in = if self.envoy.is_some() {
            ""
        } else {
            rules::EXAMPLE
        };
        let path = self.rules.clone();
        let check =
            move |text: &str, keeping| Ok(self.with_rules(text, keeping)?.rules.limits.len());
        RulesFile::new(path, built_in, Box::new(check), is_writable)
    }

    /// The configured paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.rules
            .iter()
            .chain(&self.envoy)
            .chain(&self.sentinel)
            .cloned()
            .collect()
    }

    /// Whether the limits may change.
    pub fn may_change(&self) -> bool {
        !self.paths().is_empty() || !self.discovered.is_empty()
    }

    /// Watches for changes of the files.
    pub fn watch(&self) -> Watch {
        let paths = self.paths();
        let list = move || {
            let lists: Option<Vec<_>> = paths.iter().map(|path| files(path).ok()).collect();
            Some(lists?.concat())
        };
        Watch::new(list, rules::MAX_FILE)
    }

    /// Reads and checks all files.
    ///
    /// # Errors
    /// All problems of all files; then none of them is used.
    pub fn load(&self, keeping: Keeping) -> Result<Loaded, RulesError> {
        let rules = match &self.rules {
            Some(path) => rules::load_to_serve(path, keeping),
            None if self.may_change() => Ok(Rules::default()),
            None => Ok(rules::example()),
        };
        self.joined(rules, keeping)
    }

    /// As [`load`](Self::load), with this text in place of the rules file.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn with_rules(&self, text: &str, keeping: Keeping) -> Result<Loaded, RulesError> {
        self.joined(
            rules::parse_to_serve(text, self.rules.as_deref(), keeping),
            keeping,
        )
    }

    fn joined(
        &self,
        rules: Result<Rules, RulesError>,
        keeping: Keeping,
    ) -> Result<Loaded, RulesError> {
        let taken = rules
            .as_ref()
            .map(|rules| rules.limits.as_slice())
            .unwrap_or_default();
        let config = self
            .envoy
            .as_deref()
            .map_or(Ok(Vec::new()), read)
            .and_then(|files| {
                let discovered = self
                    .discovered
                    .iter()
                    .flat_map(|discovered| discovered.texts());
                let config = build(
                    files.into_iter().chain(discovered.map(Ok)),
                    keeping,
                    self.merge_domains,
                )?;
                let config = if self.calendar_months {
                    config.with_calendar_months()
                } else {
                    config
                };
                let path = self
                    .envoy
                    .as_deref()
                    .unwrap_or(Path::new("the control plane's configuration"));
                distinct(path, &config.limits, "a descriptor's limit", taken).map(|()| config)
            });
        #[cfg(feature = "sentinel")]
        let cluster = self.sentinel.as_deref().map_or_else(
            || Ok(ClusterRules::default()),
            |path| {
                let mut cluster = load_cluster(path)?;
                for limit in cluster
                    .limits
                    .iter_mut()
                    .filter(|limit| !limit.sharing.unshared)
                {
                    limit.sharing.mode = self.sentinel_sharing;
                }
                distinct(path, &cluster.limits, "a cluster rule's limit", taken)?;
                let taken = config
                    .as_ref()
                    .map(|config| config.limits.as_slice())
                    .unwrap_or_default();
                distinct(path, &cluster.limits, "a cluster rule's limit", taken).map(|()| cluster)
            },
        );
        let mut errors = Vec::new();
        let mut rules = rules.unwrap_or_else(|error| left_out(error, &mut errors));
        let Config { domains, limits } =
            config.unwrap_or_else(|error| left_out(error, &mut errors));
        rules.limits.extend(limits);
        #[cfg(feature = "sentinel")]
        let tokens = {
            let ClusterRules { tokens, limits } =
                cluster.unwrap_or_else(|error| left_out(error, &mut errors));
            rules.limits.extend(limits);
            TokenRules(tokens)
        };
        RulesError::check(errors)?;
        let of_protocols = OfProtocols {
            domains,
            #[cfg(feature = "sentinel")]
            tokens,
        };
        Ok(Loaded {
            rules,
            of_protocols,
        })
    }
}

/// For messages.
impl fmt::Display for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self
            .paths()
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        f.write_str(&paths.join(", "))
    }
}

fn left_out<T: Default>(error: RulesError, errors: &mut Vec<RulesError>) -> T {
    errors.push(error);
    T::default()
}

/// Checks that no limit of a source has the name of one that is taken.
fn distinct(
    path: &Path,
    limits: &[LimitSpec],
    what: &str,
    taken: &[LimitSpec],
) -> Result<(), RulesError> {
    let taken: BTreeSet<&str> = taken.iter().map(|limit| limit.name.as_str()).collect();
    let problems: Vec<Problem> = limits
        .iter()
        .filter(|limit| taken.contains(limit.name.as_str()))
        .map(|limit| {
            let what = format!("{what} is called `{}`, as another limit is", limit.name);
            Problem::overall(what).mend("rename the other one in its file")
        })
        .collect();
    if problems.is_empty() {
        return Ok(());
    }
    Err(RulesError::Invalid {
        path: Some(path.to_owned()),
        problems,
    })
}
