//! The rules of limits, which nodes announce to each other in the store.
//!
//! While an operator changes a limit, some nodes have its former rule and some the new one. If both
//! rules have the same keys in the store, nothing is lost: each value counts for both. With another algorithm or window they
//! have different keys, and each would admit its own limit. So a node whose rule was announced
//! later asks for both in one step, and never decides before it knows what the others have
//! announced. [`announced`] says for how long.

mod announced;
#[cfg(test)]
mod model;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, RwLock, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tidegate_core::{Algorithm, Clock, Nanos, Policy, Quota, lease::Terms};
use tidegate_limiter::{Limiter, SystemClock};
use tokio::sync::Notify;

use announced::{Announced, HOLDS};

use crate::{
    Deadline, Plan, StoreError,
    batch::Batcher,
    health::Monitor,
    script::Script,
    sync::{lock, read, write},
};

/// The time between two announcements.
const EVERY: Duration = Duration::from_secs(2);
/// The same after the store refused one, and after it made no reply.
const REFUSED: Duration = Duration::from_mins(1);
const FAILED: Duration = Duration::from_millis(20);
/// How long one announcement may take.
const TIME: Duration = Duration::from_secs(2);
/// How many rules one call announces at most. Other calls wait while Redis executes it.
const PAGE: usize = 500;
/// How long a rule that is gone is kept, in milliseconds: the longest window over which a roll-out
/// is never over.
const KEPT: u64 = 31 * 86_400_000;
/// The largest number of rules of a limit. The oldest are forgotten first.
const MOST: usize = 16;
/// The maximum number of log lines per minute.
const LINES: u64 = 6;

/// A limit whose rule differs at another node.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DifferingRule {
    /// The limit's name.
    pub limit: String,
    /// This node's rule: the policy as the store has it, the mode, the slack in nanoseconds and the
    /// unreported units.
    pub here: String,
    /// The other node's rule.
    pub there: String,
    /// The other node's name (see [`Store::named`](crate::Store::named)).
    pub node: String,
}

/// Another rule of a limit, with its own keys. A former one binds: its key must be charged, too.
#[derive(Clone)]
pub struct Former {
    pub plan: Arc<Plan>,
    pub prefix: Arc<[u8]>,
    /// Until when it binds; 0 if it does not.
    until: Nanos,
}

/// A rule that this node announces.
pub struct Announcement {
    limit: String,
    rule: String,
    plan: Arc<Plan>,
    prefix: Vec<u8>,
    /// How long the rule's key remembers what was used.
    span: Nanos,
    clock: SystemClock,
    /// Until when this node knows the other rules, and until when one of them binds it.
    // Relaxed: the rules themselves are read under the lock, after these. A caller that misses an
    // update is like one that came before the announcement's reply.
    known_until: AtomicU64,
    bound_until: AtomicU64,
    others: RwLock<Vec<Former>>,
    differs: Mutex<Option<DifferingRule>>,
    /// Signals that the store has replied.
    replied: Notify,
    /// Triggers an announcement.
    wake: Arc<Notify>,
    lines: Limiter<SystemClock>,
}

impl Announcement {
    /// Whether this node knows that no other rule binds it.
    pub fn is_alone(&self) -> bool {
        let now = self.clock.now().get();
        now < self.known_until.load(Ordering::Relaxed)
            && now >= self.bound_until.load(Ordering::Relaxed)
    }

    /// The rules that bind this node, once it knows them.
    pub async fn formers(&self, deadline: Deadline) -> Result<Vec<Former>, StoreError> {
        let mut formers = self.others(deadline).await?;
        let now = self.clock.now();
        formers.retain(|former| former.until > now);
        Ok(formers)
    }

    /// The rules of the other nodes, and those that bind this one, once it knows them.
    pub async fn others(&self, deadline: Deadline) -> Result<Vec<Former>, StoreError> {
        loop {
            let replied = self.replied.notified();
            if self.clock.now().get() < self.known_until.load(Ordering::Relaxed) {
                return Ok(read(&self.others).clone());
            }
            self.wake.notify_one();
            deadline.bound(replied).await?;
        }
    }

    /// Takes in a limit's rules. `sent` and `received` are the times of the call that brought them,
    /// and `store` the store's.
    fn take_in(&self, rules: &[Announced], store: u64, (sent, received): (Nanos, Nanos)) {
        let Some(own) = rules.iter().find(|rule| rule.rule == self.rule) else {
            return;
        };
        let others = || rules.iter().filter(|rule| rule.rule != self.rule);
        let span = self.span.get().div_ceil(1_000_000);
        let former = |other: &Announced| {
            // The store's clock was read before the reply came.
            let left = other.binds_until(own, span).saturating_sub(store);
            if left == 0 && !other.is_alive(store) {
                return None;
            }
            let (plan, prefix) = self.of_other(&other.rule)?;
            let until = match left {
                0 => Nanos::ZERO,
                left => received.saturating_add(Nanos::from_millis(left)),
            };
            Some(Former {
                plan,
                prefix,
                until,
            })
        };
        let all: Vec<Former> = others().filter_map(former).collect();
        let bound = all.iter().map(|other| other.until.get()).max().unwrap_or(0);
        *write(&self.others) = all;
        self.bound_until.store(bound, Ordering::Relaxed);
        let differing = |other: &Announced| DifferingRule {
            limit: self.limit.clone(),
            here: self.rule.clone(),
            there: other.rule.clone(),
            node: other.node.clone(),
        };
        // A node's own former rule counts as announced for a while. Nodes without a name cannot be
        // told from each other.
        let is_foreign = |other: &&Announced| other.node != own.node || own.node.is_empty();
        *lock(&self.differs) = others()
            .filter(is_foreign)
            .find(|other| other.is_alive(store))
            .map(differing);
        if self.plan.hold().is_none() {
            self.knows_until(sent.saturating_add(Nanos::from_millis(HOLDS)));
        }
    }

    fn knows_until(&self, until: Nanos) {
        self.known_until.store(until.get(), Ordering::Relaxed);
        self.replied.notify_waiters();
    }

    /// The plan and the keys of another rule, if they conflict with those of this one.
    fn of_other(&self, rule: &str) -> Option<(Arc<Plan>, Arc<[u8]>)> {
        // A later version may announce a policy that this one does not know.
        let policy: Policy = rule.split(';').next()?.parse().ok()?;
        let plan = Plan::new(policy)
            .ok()
            .filter(|plan| plan.hold().is_none())?;
        let shape = [self.plan.shape().as_bytes(), b":"].concat();
        let prefix = [
            self.prefix.strip_suffix(&shape[..])?,
            plan.shape().as_bytes(),
            b":",
        ]
        .concat();
        (prefix != self.prefix).then(|| (Arc::new(plan), prefix.into()))
    }
}

/// For how long a state of this policy remembers what was used.
fn span_of(policy: &Policy) -> Nanos {
    let mut state = vec![0; policy.words()];
    Nanos::new(
        policy
            .decide(&mut state, Nanos::ZERO, policy.limit())
            .reset_after_nanos(),
    )
}

/// The rules that this node announces in a store.
pub struct Rules {
    all: Mutex<Vec<Weak<Announcement>>>,
    script: Script,
    wake: Arc<Notify>,
    announces: AtomicBool,
    lines: Limiter<SystemClock>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            script: Script::new(include_str!("announce.lua").into()),
            wake: Arc::default(),
            announces: AtomicBool::new(false),
            lines: Limiter::new(Policy::token_bucket(Quota::per_minute(LINES))),
        }
    }
}

impl Rules {
    /// Announces a limit's rule for as long as the result exists. `prefix` is that of its keys.
    pub fn announce(
        self: &Arc<Self>,
        batcher: &Arc<Batcher>,
        (limit, prefix): (&str, &[u8]),
        (plan, terms): (&Arc<Plan>, &Terms),
    ) -> Arc<Announcement> {
        let (slack, unreported) = (terms.slack().get(), terms.unreported());
        let announcement = Arc::new(Announcement {
            limit: limit.to_owned(),
            rule: format!("{};{};{slack};{unreported}", terms.policy(), terms.mode()),
            plan: Arc::clone(plan),
            prefix: prefix.to_vec(),
            span: span_of(terms.policy()),
            clock: SystemClock::new(),
            // Permits are held by processes, which no other rule knows, so a limit of permits decides
            // before it knows the others.
            known_until: AtomicU64::new(if plan.hold().is_some() { u64::MAX } else { 0 }),
            bound_until: AtomicU64::new(0),
            others: RwLock::default(),
            differs: Mutex::default(),
            replied: Notify::new(),
            wake: Arc::clone(&self.wake),
            lines: Limiter::new(Policy::token_bucket(Quota::per_minute(1))),
        });
        let mut all = lock(&self.all);
        all.retain(|other| other.strong_count() > 0);
        all.push(Arc::downgrade(&announcement));
        drop(all);
        self.wake.notify_one();
        if !self.announces.swap(true, Ordering::Relaxed) {
            self.keep_up(batcher);
        }
        announcement
    }

    fn living(&self) -> Vec<Arc<Announcement>> {
        lock(&self.all).iter().filter_map(Weak::upgrade).collect()
    }

    /// The limits whose rules differ at another node, by name.
    pub fn differing(&self) -> Vec<DifferingRule> {
        let differing = |announcement: &Arc<Announcement>| lock(&announcement.differs).clone();
        let mut all: Vec<_> = self.living().iter().filter_map(differing).collect();
        all.sort_by(|one, other| one.limit.cmp(&other.limit));
        all
    }

    /// Renews the announcements for as long as the store exists.
    fn keep_up(self: &Arc<Self>, batcher: &Arc<Batcher>) {
        let (rules, weak) = (Arc::clone(self), Arc::downgrade(batcher));
        batcher.monitor.runner.connector.runtime().spawn(async move {
            while let Some(batcher) = weak.upgrade() {
                let pause = match rules.renew(&batcher.monitor).await {
                    Ok(()) => EVERY,
                    Err(error) if error.is_refusal() || error.is_about_the_key() => {
                        tracing::warn!(%error, "rules that differ between nodes of the shared store are not found");
                        for announcement in rules.living() {
                            announcement.knows_until(Nanos::MAX);
                        }
                        REFUSED
                    }
                    // The store's health shows any other error.
                    Err(_) => FAILED,
                };
                drop(batcher);
                let _ = tokio::time::timeout(pause, rules.wake.notified()).await;
                if pause == FAILED {
                    tokio::time::sleep(FAILED).await;
                }
            }
        });
    }

    async fn renew(&self, monitor: &Monitor) -> Result<(), StoreError> {
        let key = [format!("{}:rules", monitor.runner.connector.prefix()).into_bytes()];
        let living = self.living();
        for page in living.chunks(PAGE) {
            if monitor.is_down(monitor.shard_of(&key[0])) {
                return Err(StoreError::Down);
            }
            let clock = &monitor.clock;
            let mut arguments = vec![
                monitor.node_name().as_bytes().to_vec(),
                HOLDS.to_string().into_bytes(),
                KEPT.to_string().into_bytes(),
                MOST.to_string().into_bytes(),
            ];
            for announcement in page {
                arguments.push(announcement.limit.clone().into_bytes());
                arguments.push(announcement.rule.clone().into_bytes());
            }
            let sent = clock.now();
            let call = monitor.runner.run(&self.script, &key, &arguments, true);
            let reply = Deadline::after(TIME).bound(call).await.flatten()?;
            let times = (sent, clock.now());
            let (store, fields) = parse(reply).ok_or(StoreError::BadReply)?;
            // Two announcements of one limit: only the later reply has both.
            let fields: HashMap<&str, &String> = page
                .iter()
                .zip(&fields)
                .map(|(announcement, field)| (&*announcement.limit, field))
                .collect();
            for announcement in page {
                let Some(field) = fields.get(&*announcement.limit) else {
                    continue;
                };
                let rules: Vec<Announced> = field.lines().filter_map(Announced::parse).collect();
                announcement.take_in(&rules, store, times);
                self.log(announcement);
            }
        }
        Ok(())
    }

    fn log(&self, announcement: &Announcement) {
        let differs = lock(&announcement.differs).clone();
        if let Some(DifferingRule {
            limit,
            here,
            there,
            node,
        }) = differs
            && announcement.lines.acquire(1).is_allowed()
            && self.lines.acquire(1).is_allowed()
        {
            tracing::warn!(
                limit,
                node,
                here,
                there,
                "another node has another rule for this limit; until all have the same, each decides by its own, and also by the older rule if that has another algorithm or window"
            );
        }
    }
}

fn parse(reply: Value) -> Option<(u64, Vec<String>)> {
    let mut fields: Vec<String> = redis::from_redis_value(reply).ok()?;
    let rules = fields.split_off(1.min(fields.len()));
    Some((fields.first()?.parse().ok()?, rules))
}
