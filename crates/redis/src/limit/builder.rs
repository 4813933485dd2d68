//! How a shared limit is made.

use std::{sync::Arc, time::Duration};

use tidegate_core::Policy;
use tidegate_core::lease::{Mode as Agreed, Terms};
use tidegate_limiter::BuildError as LocalError;

use super::{Mode, OnError, SharedLimit, local::Local, shared::Shared};
use crate::{PlanError, Store, Timeout, lease::Leases, name::is_word, script::Plan};

/// Options of a [`SharedLimit`]; from [`Store::limit`].
#[derive(Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct LimitBuilder {
    store: Store,
    name: String,
    policy: Policy,
    mode: Mode,
    on_error: OnError,
    deadline: Timeout,
    remember_denials: bool,
    local_keys: Option<usize>,
    slack: Duration,
    unreported: Option<u32>,
    leases: usize,
}

impl LimitBuilder {
    pub(crate) fn new(store: Store, name: &str, policy: Policy) -> Self {
        Self {
            store,
            name: name.into(),
            policy,
            mode: Mode::default(),
            on_error: OnError::default(),
            deadline: Timeout::USUAL,
            remember_denials: true,
            local_keys: None,
            slack: Terms::SLACK.into(),
            unreported: None,
            leases: 1 << 16,
        }
    }

    /// Where to decide (default: [`Mode::Exact`]). What cannot be leased or reported is exact: leaky buckets, permits,
    /// and leased buckets of less than 16; [`SharedLimit::mode`] tells. All nodes should have the same mode and slack.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// What to answer while the store gives no decision (default: [`OnError::Local`]).
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// How long a decision may take (default: 50 ms); then [`OnError`] decides. A store that is slower than the shortest of its
    /// limits' deadlines (but those under 50 ms, and automatic ones) counts as down.
    pub fn deadline(self, deadline: impl Into<Timeout>) -> Self {
        Self { deadline: deadline.into(), ..self }
    }

    /// Whether a denial is remembered until its time, so that asking again costs no round trip (default: yes). What a
    /// release or a deletion in the store gives back is then not seen before.
    pub fn remember_denials(self, remember: bool) -> Self {
        Self { remember_denials: remember, ..self }
    }

    /// How long units of a leased limit are kept before they must be used or given back, and how long the report of a
    /// reported one waits (default: 100 ms). A leased sliding log looks back for so much longer, a token bucket is smaller by
    /// what refills in it, each by a sixteenth at most. Where a round trip takes half of it, nothing is taken ahead.
    pub fn slack(self, slack: Duration) -> Self {
        Self { slack, ..self }
    }

    /// How much of a reported limit this node may have used without the store knowing (default: a twentieth of the limit, at
    /// least 1). With 0 the limit is exact.
    pub fn unreported(self, units: u32) -> Self {
        Self { unreported: Some(units), ..self }
    }

    /// How many keys of a leased or reported limit are held in memory at most (default: 65,536, of somewhat over half a
    /// kilobyte each and twice the key). One that has to make room gives back what it holds, and its next request asks the store.
    pub fn leases(self, keys: usize) -> Self {
        Self { leases: keys, ..self }
    }

    /// How many keys [`OnError::Local`] holds at most (default: 65,536, or as many as have room in half a gigabyte, which is
    /// fewer for logs of more than about 1,000 entries).
    pub fn local_keys(self, keys: usize) -> Self {
        Self { local_keys: Some(keys), ..self }
    }

    /// The limit.
    ///
    /// # Errors
    /// When the name is empty or has a `:`, `{` or `}` in it, the policy cannot be shared, or there is no memory for local
    /// decisions.
    pub fn build(self) -> Result<SharedLimit, LimitError> {
        if !is_word(&self.name) {
            return Err(LimitError::Name);
        }
        let terms = self.mode.terms(self.policy, self.slack, self.unreported);
        let plan = Arc::new(Plan::new(*terms.policy()).map_err(LimitError::Plan)?);
        let local = match self.on_error {
            OnError::Local => {
                let keys = self.local_keys.unwrap_or_else(|| Local::usual_keys(&self.policy));
                Some(Local::new(self.policy, keys).map_err(LimitError::Local)?)
            }
            OnError::Open | OnError::Closed => None,
        };
        let batcher = self.store.batcher();
        let prefix = batcher.monitor.runner.connector.prefix();
        let prefix = format!("{prefix}:{}:{}:", self.name, plan.shape()).into_bytes();
        let wait = Arc::new(batcher.monitor.wait(self.deadline));
        // Permits come back before their time.
        let remembers = self.remember_denials && plan.hold().is_none();
        // Denials of one key by limits of other numbers are told apart.
        let salt = self.store.denials().tag(plan.numbers());
        let script = batcher.scripts.lease(plan.kind()).filter(|_| terms.mode() != Agreed::Exact);
        let leases = script.map(|script| {
            let (plan, script) = (Arc::clone(&plan), Arc::clone(script));
            Arc::new(Leases::new(terms, plan, script, prefix.clone(), self.leases, Arc::clone(&wait)))
        });
        if let Some(leases) = &leases {
            self.store.sweeper().take_on(batcher, leases);
        }
        Ok(SharedLimit::new(Shared {
            store: self.store,
            policy: self.policy,
            plan,
            prefix,
            leases,
            on_error: self.on_error,
            wait,
            remembers,
            salt,
            local,
        }))
    }
}

/// Why there is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A name that is empty, or has a `:`, `{` or `}` in it, which part a key.
    #[error("a limit's name must not be empty or contain `:`, `{{` or `}}`")]
    Name,
    /// The policy cannot be shared.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// There is no room for local decisions. The limiter in memory calls `max_keys` what is `local_keys` here.
    #[error("for on_error = local: {}", _0.to_string().replace("max_keys", "local_keys"))]
    Local(#[source] LocalError),
}
