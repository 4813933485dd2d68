//! The options of a layer, which its services share.

use std::{fmt, sync::Arc, sync::atomic::AtomicU64, time::Duration};

use bytes::Bytes;
use http::{Response, request};
use tidegate_core::{Decision, Standing};

use crate::{
    Limit, Refusal, Tell,
    header_decision::{LastText, Name},
    in_flight::KnownReturns,
    key::{KeyList, KeySource},
    once::OnceById,
    settle::Settle,
    time::Time,
};

/// The treatment of a request without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoKey {
    /// Answers with 500 and logs the reason, at most once a minute: the service is not set up for
    /// this limit.
    #[default]
    Refuse,
    /// All such requests share the empty key, so a client cannot bypass the limit by omitting the
    /// key.
    Shared,
    /// Admits the request and does not count it.
    Admit,
    /// Denies the request, without a wait.
    Deny,
}

type CostOf = Box<dyn Fn(&request::Parts) -> u64 + Send + Sync>;
type LimitOf<C> = Box<dyn Fn(&request::Parts) -> Option<Limit<C>> + Send + Sync>;
type Exempts = Box<dyn Fn(&request::Parts) -> bool + Send + Sync>;
type Answers = Box<dyn Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync>;
type Hears = Box<dyn Fn(&Refusal<'_>) + Send + Sync>;

/// Where a rule gets its limit from.
pub(crate) enum LimitSource<C> {
    Fixed(Limit<C>),
    ByRequest(LimitOf<C>),
}

/// One of a layer's limits, with its key source and options.
pub(crate) struct LayerRule<C> {
    pub(crate) source: LimitSource<C>,
    pub(crate) key: Box<dyn KeySource>,
    pub(crate) cost: Option<CostOf>,
    pub(crate) settle: Settle,
    pub(crate) exempt: Option<KeyList>,
    pub(crate) shadow: bool,
    pub(crate) name: Name,
    pub(crate) last_text: LastText,
    pub(crate) returns: KnownReturns,
}

impl<C> LayerRule<C> {
    pub(crate) fn new(source: LimitSource<C>, key: impl KeySource + 'static) -> Self {
        Self {
            source,
            key: Box::new(key),
            cost: None,
            settle: Settle::Before,
            exempt: None,
            shadow: false,
            name: Name::new("default"),
            last_text: LastText::default(),
            returns: KnownReturns::default(),
        }
    }
}

/// The state that a layer shares with its services.
pub(crate) struct LayerOptions<C> {
    pub(crate) rules: Vec<LayerRule<C>>,
    /// Whether a rule learns its cost from a bill.
    pub(crate) is_billed: bool,
    pub(crate) time: Arc<dyn Time>,
    pub(crate) exempt: Option<Exempts>,
    pub(crate) answers: Option<Answers>,
    pub(crate) on_shadow: Option<Hears>,
    pub(crate) no_key: NoKey,
    pub(crate) tell: Tell,
    pub(crate) old_headers: bool,
    #[cfg(feature = "vendors")]
    pub(crate) vendor: Option<crate::Vendor>,
    pub(crate) max_wait: Option<Duration>,
    /// Whether the first limit that admits decides.
    pub(crate) any: bool,
    /// Where the ids of requests are, if they have any.
    pub(crate) once: Option<Box<OnceById>>,
    /// The time of the last log line about a request without a key, in nanoseconds; 0 for never.
    pub(crate) logged: AtomicU64,
}

impl<C> fmt::Debug for LayerOptions<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.rules.iter().map(|rule| rule.name.as_str()).collect();
        f.debug_struct("Options")
            .field("limits", &names)
            .field("no_key", &self.no_key)
            .field("tell", &self.tell)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}

/// The decision to report where a request is refused without one: `limit` is 0 if the limit is
/// unknown.
pub(crate) fn no_decision(limit: u64) -> Decision {
    Decision::deny_for_good(Standing {
        limit,
        room: 0,
        unit: 1,
        reset_after: u64::MAX,
    })
}
