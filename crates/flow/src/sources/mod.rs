//! Sources of rules outside code: texts, files, and any implementation of [`RuleSource`]. Those that
//! follow a key of Redis, Consul, etcd, Nacos or Apollo are in the crate `tidegate-flow-net`.
//!
//! ```
//! use tidegate_flow::{Gate, sources::sentinel::{self, Kind}};
//! let gate = Gate::new();
//! let text = r#"[{"resource":"abc","count":20,"grade":1,"controlBehavior":0}]"#;
//! gate.apply(sentinel::parse(Kind::Flow, text)?)?;
//! assert_eq!(gate.rules().flow[0].to_string(), "20/1s");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "watch")]
mod file;
mod follow;
#[cfg(feature = "json")]
pub mod sentinel;
#[cfg(feature = "yaml")]
pub mod yaml;

#[cfg(feature = "watch")]
pub use file::FileSource;
pub use follow::{Follower, GoodRules, RuleSource};

use std::io;

use crate::rules::{
    AdaptiveRule, AuthorityRule, BreakerRule, FlowRule, HotParamRule, IsolationRule, LoadError,
    Rules, SystemRule,
};

/// New rules of some kinds. Kinds that are `None` keep their rules.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleUpdate {
    /// Which origins may enter a resource.
    pub authority: Option<Vec<AuthorityRule>>,
    /// Limits on all inbound traffic.
    pub system: Option<Vec<SystemRule>>,
    /// Limits for each value of an argument.
    pub hot_params: Option<Vec<HotParamRule>>,
    /// Limits on the traffic of a resource.
    pub flow: Option<Vec<FlowRule>>,
    /// Limits on the units in flight.
    pub isolation: Option<Vec<IsolationRule>>,
    /// Limits on the units in flight that are learned from the calls.
    pub adaptive: Option<Vec<AdaptiveRule>>,
    /// Circuit breakers.
    pub breakers: Option<Vec<BreakerRule>>,
}

impl RuleUpdate {
    /// Replaces the old rules with the new ones.
    pub fn apply(self, rules: &mut Rules) {
        fn put<R>(new: Option<Vec<R>>, old: &mut Vec<R>) {
            if let Some(new) = new {
                *old = new;
            }
        }
        put(self.authority, &mut rules.authority);
        put(self.system, &mut rules.system);
        put(self.hot_params, &mut rules.hot_params);
        put(self.flow, &mut rules.flow);
        put(self.isolation, &mut rules.isolation);
        put(self.adaptive, &mut rules.adaptive);
        put(self.breakers, &mut rules.breakers);
    }

    /// Whether a rule in it is valid.
    fn has_good_rules(&self) -> bool {
        let mut rules = Rules::default();
        self.clone().apply(&mut rules);
        // The bad ones do not matter.
        let _ = rules.remove_invalid();
        rules != Rules::default()
    }
}

impl SourceError {
    /// Adds the rules that can be used, if there are any.
    #[cfg(any(feature = "json", feature = "yaml"))]
    fn beside(self, good: RuleUpdate) -> Self {
        if good.has_good_rules() {
            return Self::Partial {
                good: Box::new(good),
                why: self.to_string(),
            };
        }
        self
    }
}

/// Replaces the rules of all kinds.
impl From<Rules> for RuleUpdate {
    fn from(rules: Rules) -> Self {
        let Rules {
            authority,
            system,
            hot_params,
            flow,
            isolation,
            adaptive,
            breakers,
        } = rules;
        Self {
            authority: Some(authority),
            system: Some(system),
            hot_params: Some(hot_params),
            flow: Some(flow),
            isolation: Some(isolation),
            adaptive: Some(adaptive),
            breakers: Some(breakers),
        }
    }
}

/// The error of a source whose rules cannot be read or loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source could not be read.
    #[error("the rules cannot be read: {0}")]
    Read(#[source] io::Error),
    /// The text is malformed. The message says what is wrong and where.
    #[error("the rules are not well formed: {0}")]
    Format(String),
    /// Some rules are invalid.
    #[error("{0}")]
    Rules(#[from] LoadError),
    /// Some rules cannot be used, and others can. What loads rules as a whole treats this as any
    /// other error; [`Gate::follow`](crate::Gate::follow) loads the good ones at the start.
    #[error("{why}")]
    Partial {
        /// The good rules; at least one.
        good: Box<RuleUpdate>,
        /// What is wrong with the others.
        why: String,
    },
    /// An error of a custom source.
    #[error("{0}")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Another of these errors, with the name of its source.
    #[error("{source_name}: {error}")]
    In {
        /// The source's name, such as a file's path.
        source_name: String,
        /// The error.
        #[source]
        error: Box<SourceError>,
    },
}
