use std::{ops::Deref, sync::Arc};

use arc_swap::Guard;

use crate::{
    decide::{descriptors::Descriptors, limits::Limits},
    envoy::Domains,
    rules::TokenRule,
};

/// The limits that a server enforces, and the descriptors that lead to some of them. Replaced as a
/// whole when the rules change.
pub struct InForce {
    pub(crate) limits: Limits,
    pub(crate) descriptors: Descriptors,
    /// Rules for tokens, whose limits are among these.
    pub(crate) tokens: Vec<TokenRule>,
}

impl InForce {
    /// These limits, and the descriptors of `domains`, whose rules keep their counts from `before`.
    pub(crate) fn new(
        limits: Limits,
        domains: Domains,
        tokens: Vec<TokenRule>,
        before: Option<&Self>,
    ) -> Self {
        let before = before.map(|before| &before.descriptors);
        let descriptors = Descriptors::new(domains, |name| limits.limit(name.as_bytes()), before);
        Self {
            limits,
            descriptors,
            tokens,
        }
    }
}

/// Limits without descriptors.
impl From<Limits> for InForce {
    fn from(limits: Limits) -> Self {
        Self {
            limits,
            descriptors: Descriptors::default(),
            tokens: Vec::new(),
        }
    }
}

/// The limits in force when this was created. They stay in memory while it is held, even if the
/// rules change.
pub struct CurrentLimits(pub(super) Guard<Arc<InForce>>);

impl Deref for CurrentLimits {
    type Target = Limits;

    #[inline]
    fn deref(&self) -> &Limits {
        &self.0.limits
    }
}
