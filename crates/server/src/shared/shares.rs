//! One limit's part in the store.

use std::{collections::HashMap, fmt};

use tidegate_redis::{LimitError, SharedLimit};

use super::SharedStore;
use crate::rules::{LimitSpec, PolicySpec, Problem, RulesError};

/// A limit in the store: its own policy, and that of each overridden key. All have the same name there, so that a key that
/// gets a policy of its own keeps what it has used as far as the two policies keep it in the same form.
pub struct Shares {
    general: SharedLimit,
    own: HashMap<Box<[u8]>, SharedLimit>,
}

impl Shares {
    /// A limit's part in this store. While the store gives no decision, up to `local_keys` keys are decided in memory.
    ///
    /// # Errors
    /// When the store cannot decide by the limit's policy, or there is no memory for local decisions.
    pub fn new(spec: &LimitSpec, store: &SharedStore, local_keys: usize) -> Result<Self, RulesError> {
        let sharing = spec.sharing;
        let build = |policy: &PolicySpec, keys: usize| {
            let policy = policy.policy().map_err(|e| RulesError::of_policy(&spec.name, &e))?;
            let mut limit = store
                .store()
                .limit(&spec.name, policy)
                .mode(sharing.mode.unwrap_or_default())
                .on_error(sharing.on_error.unwrap_or_default())
                .deadline(sharing.deadline.unwrap_or(store.deadline()))
                .local_keys(keys);
            if let Some(slack) = sharing.slack {
                limit = limit.slack(slack);
            }
            if let Some(units) = sharing.unreported {
                limit = limit.unreported(units);
            }
            limit.build().map_err(|error| match error {
                LimitError::Local(source) => RulesError::Store { limit: spec.name.clone(), source },
                error => {
                    let what = format!("limit `{}` cannot be shared: {error}", spec.name);
                    RulesError::Invalid { path: None, problems: vec![Problem::overall(what)] }
                }
            })
        };
        let own = spec.overrides.iter();
        let own = own.map(|(key, policy)| Ok((key.as_bytes().into(), build(policy, 1)?)));
        Ok(Self { general: build(&spec.policy, local_keys)?, own: own.collect::<Result<_, RulesError>>()? })
    }

    /// What decides for this key.
    #[must_use]
    pub fn of(&self, key: &[u8]) -> &SharedLimit {
        let own = if self.own.is_empty() { None } else { self.own.get(key) };
        own.unwrap_or(&self.general)
    }
}

impl fmt::Debug for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shares").field("general", &self.general).finish_non_exhaustive()
    }
}
