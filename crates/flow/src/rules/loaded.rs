//! The rules that a gate has loaded, and how they change.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use arc_swap::ArcSwap;
use tidegate_core::Nanos;

use super::{LoadError, RuleSet, Rules};
use crate::stats::node::Node;

/// The rules of a gate, in versions.
pub(crate) struct LoadedRules {
    /// The version of `set`. It changes after `set`, so a thread that reads a version finds its
    /// rules or newer ones.
    version: AtomicU64,
    set: ArcSwap<RuleSet>,
    loading: Mutex<()>,
}

impl Default for LoadedRules {
    fn default() -> Self {
        let set = ArcSwap::from_pointee(RuleSet::new(0, Nanos::ZERO, Rules::default(), |_| {
            unreachable!("no rule names a resource")
        }));
        Self {
            version: AtomicU64::new(0),
            set,
            loading: Mutex::new(()),
        }
    }
}

impl LoadedRules {
    #[inline]
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self) -> arc_swap::Guard<Arc<RuleSet>> {
        self.set.load()
    }

    /// Applies `change` to the rules at `now`. Changes are serialized. `node` returns the
    /// statistics of a resource that a rule for another resource measures.
    ///
    /// # Errors
    /// If a rule is invalid. Nothing has changed then.
    pub(crate) fn update(
        &self,
        change: impl FnOnce(&mut Rules),
        now: Nanos,
        node: impl Fn(&str) -> Arc<Node>,
    ) -> Result<(), LoadError> {
        let _one = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.set.load();
        let mut rules = old.rules.clone();
        change(&mut rules);
        rules.validate()?;
        let version = old.version + 1;
        self.set
            .store(Arc::new(RuleSet::new(version, now, rules, node)));
        self.version.store(version, Ordering::Release);
        Ok(())
    }
}
