//! Building shared limits.

use std::{sync::Arc, time::Duration};

use tidegate_core::lease::{Mode, Terms};
use tidegate_core::{Policy, fair::Terms as TenantTerms};
use tidegate_limiter::{BuildError as LocalError, FairBuildError, FairTenants};

use super::{
    OnError, SharedLimit,
    local::Local,
    shared::Shared,
    tenants::{StoreTenants, TenantOf},
};
use crate::{
    PlanError, Store, Timeout,
    lease::{LeasedTenants, Leases},
    name::is_word,
    script::Plan,
};

/// Options of a [`SharedLimit`]. [`Store::limit`] returns them.
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
    announced: bool,
    line: bool,
    tenants: Option<StoreTenants>,
}

impl Store {
    /// Starts a limit in this store. Limits of the same name and policy are one limit, on all
    /// nodes.
    pub fn limit(&self, name: &str, policy: impl Into<Policy>) -> LimitBuilder {
        LimitBuilder::new(self.clone(), name, policy.into())
    }
}

impl LimitBuilder {
    fn new(store: Store, name: &str, policy: Policy) -> Self {
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
            announced: false,
            line: false,
            tenants: None,
        }
    }

    /// Where decisions are made (default: [`Mode::Exact`]). Policies that cannot be leased or
    /// reported stay exact: leaky buckets, permits, leased buckets below 16, policies that block
    /// keys for denials, and limits with a [line](Self::line); [`SharedLimit::mode`] returns the result. All nodes should use the same mode and slack.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the substitute for the store's decision while the store makes none (default:
    /// [`OnError::Local`]).
    pub fn on_error(self, on_error: OnError) -> Self {
        Self { on_error, ..self }
    }

    /// The time limit of a decision (default: 50 ms), after which [`OnError`] decides. If the store
    /// is slower than the shortest deadline of its limits, it counts as down; deadlines under 50 ms
    /// count as 50 ms, and automatic deadlines do not count.
    pub fn deadline(self, deadline: impl Into<Timeout>) -> Self {
        Self {
            deadline: deadline.into(),
            ..self
        }
    }

    /// Whether to remember a denial until its wait is over, so that a retry costs no round trip
    /// (default: yes). Units that are refunded or deleted in the store before then are not seen
    /// until then.
    pub fn remember_denials(self, remember: bool) -> Self {
        Self {
            remember_denials: remember,
            ..self
        }
    }

    /// How long a leased limit keeps units before it must use them or give them back, and how long
    /// a reported limit waits before it reports (default: 100 ms). A leased sliding log looks back
    /// longer by the slack, and a token bucket is smaller by the refill in the slack, each by at
    /// most a sixteenth. If a round trip takes half of the slack, no units are taken ahead.
    pub fn slack(self, slack: Duration) -> Self {
        Self { slack, ..self }
    }

    /// How much this node may use of a reported limit before it must report it (default: a
    /// twentieth of the limit, at least 1). With 0 the limit is exact.
    pub fn unreported(self, units: u32) -> Self {
        Self {
            unreported: Some(units),
            ..self
        }
    }

    /// The maximum number of keys of a leased or reported limit in memory (default: 65,536, each
    /// with a little over half a kilobyte plus twice the key). An evicted key gives back its units,
    /// and its next request asks the store.
    pub fn leases(self, keys: usize) -> Self {
        Self {
            leases: keys,
            ..self
        }
    }

    /// The maximum number of keys for [`OnError::Local`] (default: 65,536, or as many as fit into
    /// half a gigabyte, which is fewer for logs of more than about 1,000 entries).
    pub fn local_keys(self, keys: usize) -> Self {
        Self {
            local_keys: Some(keys),
            ..self
        }
    }

    /// Whether the nodes that share the store announce the limit's rule to each other (default:
    /// no). While nodes have different rules for a name, [`Store::differing_rules`] returns them,
    /// and a decision at a node whose rule was announced later must satisfy the earlier rule, too,
    /// until its own has counted everything for a whole window. So a change of the limit, the
    /// window, the algorithm or the mode is never over. Such a decision is a script call, also in
    /// the other [modes](Mode). A limit makes no decision before the store has answered its
    /// announcement. In a cluster, only keys with a hash tag can satisfy both rules; others satisfy
    /// their own.
    pub fn announced(self, announced: bool) -> Self {
        Self { announced, ..self }
    }

    /// Whether requests can [wait in line](SharedLimit::wait) for the limit (default: no). Nodes
    /// that share the limit must agree: one without a line overtakes those who wait. A limit that
    /// [tenants](Self::tenants) share has none. The limit is
    /// then exact in every [mode](Self::mode), and each of its decisions is a separate call, as if
    /// its policy blocked keys for denials.
    pub fn line(self, line: bool) -> Self {
        Self { line, ..self }
    }

    /// Makes one limit of all keys, which tenants share by weight (default: each key has its own).
    /// `by` returns the part of a key that names its tenant. `named` tenants have their own terms,
    /// all others those of `others`. All nodes should use the same. An operator's
    /// [order](crate::Order::Override) `weight=10` for a tenant replaces its weight; without the
    /// store the weights are the given ones.
    ///
    /// The store decides on the limit and on the tenant's share in one step. In the
    /// [mode](Self::mode) leased a node takes units ahead for each tenant, which counts them in its share;
    /// reported limits with tenants are exact. The store keeps the state of a tenant for four times the time in which a
    /// guarantee is met: a second, or the window if that is longer.
    pub fn tenants<'a>(
        self,
        by: TenantOf,
        others: TenantTerms,
        named: impl IntoIterator<Item = (&'a [u8], TenantTerms)>,
    ) -> Self {
        let named = named.into_iter().map(|(name, terms)| (name.into(), terms));
        Self {
            tenants: Some(StoreTenants {
                by,
                others,
                named: named.collect(),
                orders: self.store.orders(&self.name),
            }),
            ..self
        }
    }

    /// Builds the limit.
    ///
    /// # Errors
    /// When the name is empty or contains `:`, `{` or `}`, when the policy cannot be shared, when a
    /// limit of tenants has a line, or when the system has no memory for local decisions.
    pub fn build(self) -> Result<SharedLimit, LimitError> {
        if !is_word(&self.name) {
            return Err(LimitError::Name);
        }
        if self.line && self.tenants.is_some() {
            return Err(LimitError::LineOfTenants);
        }
        // A reported unit is used before the tenant's share is asked.
        let is_exact = self.line || self.tenants.is_some() && self.mode == Mode::Reported;
        let mode = if is_exact { Mode::Exact } else { self.mode };
        let terms = Terms::of(mode, self.policy, self.slack.into(), self.unreported);
        // The store decides on them by `whole`.
        let terms = terms.without_large_costs();
        let plan = Plan::new(*terms.policy()).map_err(LimitError::Plan)?;
        let plan = if self.line { plan.with_line() } else { plan };
        let keys = self
            .local_keys
            .unwrap_or_else(|| Local::usual_keys(&self.policy));
        let (plan, fair) = match &self.tenants {
            Some(tenants) => {
                let named = tenants.named.iter();
                let named = named.map(|(name, terms)| (&**name, *terms));
                let fair = FairTenants::new(&self.policy, keys, tenants.others, named)?;
                let plan = plan.with_shares().map_err(FairBuildError::Policy)?;
                (plan, Some((tenants.by, fair)))
            }
            None => (plan, None),
        };
        let plan = Arc::new(plan);
        let local = match self.on_error {
            OnError::Local => Some(Local::new(self.policy, keys, fair).map_err(LimitError::Local)?),
            OnError::Open | OnError::Closed => None,
        };
        let batcher = self.store.batcher();
        let prefix = batcher.monitor.runner.connector.prefix();
        let prefix = format!("{prefix}:{}:{}:", self.name, plan.shape()).into_bytes();
        let wait = Arc::new(batcher.monitor.wait(self.deadline));
        // Permits can be released before the wait is over.
        let remembers = self.remember_denials && plan.hold().is_none();
        // The salt separates denials of one key by limits with different numbers.
        let salt = self.store.denials().tag(plan.numbers());
        let whole = (terms.mode() == Mode::Leased)
            .then(|| Plan::whole(self.policy, &plan, terms.slack()))
            .flatten();
        let script = batcher
            .scripts
            .lease(plan.kind())
            .filter(|_| terms.mode() != Mode::Exact);
        let script_of_leases = script;
        let leases = script.map(|script| {
            let (plan, script) = (Arc::clone(&plan), Arc::clone(script));
            let leases = Leases::new(
                terms,
                plan,
                script,
                prefix.clone(),
                self.leases,
                Arc::clone(&wait),
            );
            let of_tenants = self.tenants.clone().map(|tenants| LeasedTenants {
                by: tenants.by,
                terms: Box::new(move |name| tenants.terms(name)),
            });
            Arc::new(leases.of_tenants(of_tenants))
        });
        // Tenants' allotments are joint decisions.
        let of_leases = leases.as_ref().and(script_of_leases);
        let of_leases = of_leases.filter(|_| self.tenants.is_none());
        batcher.monitor.needs(
            &plan,
            batcher.scripts.batch(plan.kind()),
            of_leases.map(|script| (terms.mode(), script)),
        );
        if let Some(leases) = &leases {
            batcher.take_on(leases);
            // Resets and refunds concern the leases.
            self.store.orders_followed();
        }
        let announce = || {
            self.store
                .rules()
                .announce(batcher, (&self.name, &prefix), (&plan, &terms))
        };
        let announcement = self.announced.then(announce);
        Ok(SharedLimit::new(Shared {
            store: self.store,
            name: self.name,
            policy: self.policy,
            plan,
            whole: whole.map(Arc::new),
            prefix,
            leases,
            on_error: self.on_error,
            wait,
            remembers,
            salt,
            local,
            tenants: self.tenants,
            announcement,
        }))
    }
}

/// Why a limit cannot be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// The name is empty, or contains `:`, `{` or `}`, which separate the parts of a key.
    #[error("a limit's name must not be empty or contain `:`, `{{` or `}}`")]
    Name,
    /// The policy cannot be shared.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// [Tenants](LimitBuilder::tenants) share the limit, and it has a [line](LimitBuilder::line).
    #[error("a limit that tenants share has no line: build it without one")]
    LineOfTenants,
    /// The policy or the terms do not support [tenants](LimitBuilder::tenants), or the system has no
    /// memory for their states.
    #[error("for tenants: {0}")]
    Tenants(#[from] FairBuildError),
    /// The system has no memory for local decisions. The limiter in memory calls `local_keys`
    /// `max_keys`.
    #[error("for on_error = local: {}", _0.to_string().replace("max_keys", "local_keys"))]
    Local(#[source] LocalError),
}
