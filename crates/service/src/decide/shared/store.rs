//! The store that a server shares with others.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tidegate_core::{Decision, Nanos};
use tidegate_redis::{
    AdHoc, Address, Part, Plan, SeenNode, SharedDecision, Store, StoreError, Timeout,
};

use super::thread::StoreThread;
use crate::{
    decide::{
        refusal::Refusal,
        throttle::{Throttle, ThrottleError, ThrottleQuota},
    },
    rules::THROTTLE,
};

/// How many quotas of `CL.THROTTLE`, which come with each request, are cached in the form that the
/// store needs.
const PLANS: usize = 1024;

/// The version of this server, which others see next to its name.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A server that shares the store.
#[derive(Debug, PartialEq, Eq)]
pub struct SeenServer {
    /// Empty for a program that gave none.
    pub name: String,
    /// Empty for a program that is not a server.
    pub version: String,
    pub ago: Duration,
    pub is_this: bool,
}

impl From<SeenNode> for SeenServer {
    fn from(node: SeenNode) -> Self {
        let is_version =
            |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('.');
        let (name, version) = match node.name.rsplit_once(' ') {
            Some((name, version)) if is_version(version) => (name.to_owned(), version.to_owned()),
            _ => (node.name, String::new()),
        };
        Self {
            name,
            version,
            ago: node.ago,
            is_this: node.is_self,
        }
    }
}

/// A store, and the state that a server needs to use it.
pub struct SharedStore {
    store: Store,
    prefix: String,
    deadline: Timeout,
    plans: Mutex<HashMap<ThrottleQuota, Arc<Plan>>>,
    /// Decides for `CL.THROTTLE`; created by its first command.
    ad_hoc: OnceLock<AdHoc>,
    /// `None` for a cluster: its connections may need several threads.
    _thread: Option<StoreThread>,
}

impl SharedStore {
    /// The store at an address, with keys that begin with `prefix`. `deadline` applies to limits
    /// that do not set their own. Other servers see this one by its `name`.
    ///
    /// # Errors
    /// When the prefix is invalid (see [`Store::named`]), or the system refuses a thread for the
    /// connection.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn new(
        address: Address,
        prefix: &str,
        deadline: Timeout,
        name: &str,
    ) -> Result<Self, StoreError> {
        let refused = |error: io::Error| {
            StoreError::Refused(format!("no thread for the store: {error}").into())
        };
        let thread = if address.is_cluster() {
            None
        } else {
            Some(StoreThread::start().map_err(refused)?)
        };
        let store = {
            let _within = thread.as_ref().map(|thread| thread.runtime.enter());
            Store::named(address, prefix, &format!("{name} {VERSION}"))?
        };
        Ok(Self {
            _thread: thread,
            store,
            prefix: prefix.to_owned(),
            deadline,
            plans: Mutex::default(),
            ad_hoc: OnceLock::new(),
        })
    }

    /// The store itself.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The deadline of a decision, unless a limit sets its own.
    pub fn deadline(&self) -> Timeout {
        self.deadline
    }

    /// The servers that share the store, by name.
    pub fn servers(&self) -> BoxFuture<'_, Result<Vec<SeenServer>, StoreError>> {
        Box::pin(async move {
            let mut servers: Vec<SeenServer> = self
                .store
                .seen_nodes()
                .await?
                .into_iter()
                .map(Into::into)
                .collect();
            servers.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(servers)
        })
    }

    /// Takes from several limits in one step: all admit, or none is charged. Returns one decision
    /// for each part.
    pub async fn acquire_all(&self, parts: &[Part<'_>]) -> Result<Vec<SharedDecision>, Refusal> {
        self.store
            .acquire_all(parts)
            .await
            .map_err(|_| Refusal::Scattered)
    }

    /// Like [`Throttle::acquire`], in the store. A denial is remembered here until its wait is
    /// over. While the store makes no decision, each server admits its share of the quota, in
    /// memory.
    ///
    /// # Errors
    /// When the numbers are invalid: see [`ThrottleError`].
    pub fn throttle<'a>(
        &'a self,
        throttle: &'a Throttle,
        key: &'a [u8],
        quota: ThrottleQuota,
        quantity: i64,
        now: Nanos,
    ) -> BoxFuture<'a, Result<Decision, ThrottleError>> {
        Box::pin(async move {
            let asked = throttle.ask(quota, quantity)?;
            if let Some(plan) = self.plan(quota, asked.policy) {
                let stored = [
                    format!("{}:{THROTTLE}:{}:", self.prefix, plan.shape()).as_bytes(),
                    key,
                ]
                .concat();
                // Created on first use: otherwise this deadline would count for the store although no
                // client uses it.
                let ad_hoc = self.ad_hoc.get_or_init(|| self.store.ad_hoc(self.deadline));
                if let Ok(decided) = ad_hoc.decide(&plan, stored, asked.quantity).await {
                    return Ok(throttle.counted(key, &asked, decided.decision, now));
                }
            }
            Ok(throttle.acquire_share(key, &quota.share(self.store.nodes()).ask(quantity)?, now))
        })
    }

    fn plan(&self, quota: ThrottleQuota, policy: tidegate_core::Policy) -> Option<Arc<Plan>> {
        let mut plans = self.plans.lock();
        if let Some(plan) = plans.get(&quota) {
            return Some(Arc::clone(plan));
        }
        let plan = Arc::new(Plan::new(policy).ok()?);
        if plans.len() >= PLANS {
            plans.clear();
        }
        plans.insert(quota, Arc::clone(&plan));
        Some(plan)
    }
}

impl fmt::Debug for SharedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedStore")
            .field("store", &self.store)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}
