//! The examination of the store: whether the scripts of the limits in force run there, not only the
//! heartbeat. It takes place after each connection, when a limit with another kind of script comes
//! into force, after a refusal, and every now and then while the result is bad.
//!
//! Each script decides on a key of its own, with the commands and libraries that decisions use. If
//! one fails, each decision by that script would be made without the store, so the store counts as
//! down, and the result says what to do. After them, each command of all scripts is run in each
//! shard: what is missing in one shard of a cluster keeps its keys from being decided, and what is
//! missing everywhere keeps other requests from working, such as reservations.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tidegate_core::lease::{Mode, Request};
use tidegate_core::{Clock, Nanos};

use super::{Monitor, nodes};
use crate::{
    Deadline, StoreError,
    connection::beside,
    script::{Plan, Script, ScriptKind, call},
    sync::lock,
};

/// The pause after a bad result.
const AGAIN: Nanos = Nanos::from_secs(5);
/// The least pause after a refusal.
const SELDOM: Nanos = Nanos::from_secs(1);
/// The time between two looks at what the store has evicted.
const LOOKS: Nanos = Nanos::from_secs(30);
/// How long a step may take.
const TIME: Duration = Duration::from_secs(2);

/// The behaviour of a store that is not a real server, such as fakeredis.
const ENDS: &str = "it ends the connection whenever a limit's script runs, as fakeredis does, which has no library `struct`; use Redis 6.2 or \
                    later, Valkey or Redict";

/// The abilities that one kind of limit needs in the store.
struct Needed {
    plan: Arc<Plan>,
    decides: Arc<Script>,
    leases: Option<(Mode, Arc<Script>)>,
}

/// What an examination found that does not keep the store from deciding.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    /// The eviction policy, if the store may evict keys.
    pub evicts: Option<String>,
    /// How many keys it has evicted since its start.
    pub evicted: Option<u64>,
    /// Commands that Tidegate's scripts use and the store does not run.
    pub missing: Vec<String>,
}

/// The scripts in force, and the latest result.
#[derive(Default)]
pub struct Examination {
    needed: Mutex<BTreeMap<(ScriptKind, bool), Needed>>,
    /// Whether the next heartbeat examines the store.
    // Relaxed, also the time: they guard no other memory.
    due: AtomicBool,
    /// The connection that was examined last.
    examined: AtomicU64,
    next: AtomicU64,
    earliest: AtomicU64,
    is_running: AtomicBool,
    /// The connection on which the server refused to say anything about itself.
    mute: AtomicU64,
    /// The connection on which the commands were tried last; 0 if a refusal has been seen since.
    tried: AtomicU64,
    verdict: Mutex<Option<StoreError>>,
    remarks: Mutex<Remarks>,
}

impl Examination {
    /// Adds the scripts of a limit. Returns whether they are new.
    pub fn needs(
        &self,
        plan: &Arc<Plan>,
        decides: &Arc<Script>,
        leases: Option<(Mode, &Arc<Script>)>,
    ) -> bool {
        let new = lock(&self.needed).insert(
            (plan.kind(), leases.is_some()),
            Needed {
                plan: Arc::clone(plan),
                decides: Arc::clone(decides),
                leases: leases.map(|(mode, script)| (mode, Arc::clone(script))),
            },
        );
        if new.is_none() {
            self.due.store(true, Ordering::Relaxed);
        }
        new.is_none()
    }

    /// Why the store cannot decide, if the latest examination found a reason.
    pub fn verdict(&self) -> Option<StoreError> {
        lock(&self.verdict).clone()
    }

    pub fn remarks(&self) -> Remarks {
        lock(&self.remarks).clone()
    }

    /// Has the next heartbeat examine the store. Returns whether that is new.
    pub fn suspect(&self) -> bool {
        !self.due.swap(true, Ordering::Relaxed)
    }

    fn is_due(&self, connection: u64, now: Nanos) -> bool {
        let at = |time: &AtomicU64| Nanos::new(time.load(Ordering::Relaxed));
        let is_new = self.examined.load(Ordering::Relaxed) != connection;
        let asked = is_new || self.due.load(Ordering::Relaxed);
        now >= at(&self.next) || asked && now >= at(&self.earliest)
    }
}

impl Monitor {
    /// Starts an examination of the store if one is due. Heartbeats go on meanwhile.
    pub fn examine_if_due(self: &Arc<Self>) {
        let now = self.clock.now();
        let Some(number) = self.runner.connector.number() else {
            return;
        };
        let examination = &self.examination;
        if !examination.is_due(number, now) || examination.is_running.swap(true, Ordering::Relaxed)
        {
            return;
        }
        let monitor = Arc::clone(self);
        self.runner.connector.runtime().spawn(async move {
            let had = monitor.examination.verdict();
            let verdict = monitor.examine_now(number).await;
            let verdict = verdict.err().filter(StoreError::is_refusal);
            let (pause, least) = match verdict {
                Some(_) => (AGAIN, AGAIN),
                None => (LOOKS, SELDOM),
            };
            let (examination, now) = (&monitor.examination, monitor.clock.now());
            let until = |pause| now.saturating_add(pause).get();
            examination.next.store(until(pause), Ordering::Relaxed);
            examination.earliest.store(until(least), Ordering::Relaxed);
            examination.is_running.store(false, Ordering::Relaxed);
            if had != verdict {
                // The heartbeat logs the change.
                monitor.wake.notify_one();
            }
        });
    }

    /// Examines the store behind the connection with this number.
    ///
    /// # Errors
    /// Why it cannot decide, also if only the connection failed.
    pub async fn examine_now(&self, number: u64) -> Result<(), StoreError> {
        let examination = &self.examination;
        if examination.due.swap(false, Ordering::Relaxed) {
            examination.tried.store(0, Ordering::Relaxed);
        }
        let result = self.examined(number).await;
        // Heartbeats report any other failure.
        if result.as_ref().err().is_none_or(StoreError::is_refusal) {
            *lock(&examination.verdict) = result.as_ref().err().cloned();
            examination.examined.store(number, Ordering::Relaxed);
        }
        result
    }

    async fn examined(&self, number: u64) -> Result<(), StoreError> {
        let examination = &self.examination;
        // A refusal is one line in the server's ACL log, and enough.
        if !self.is_cluster() && examination.mute.load(Ordering::Relaxed) != number {
            self.look_at_the_server(number).await?;
        }
        let probes: Vec<_> = lock(&examination.needed)
            .values()
            .map(|needed| {
                let Needed {
                    plan,
                    decides,
                    leases,
                } = needed;
                (Arc::clone(plan), Arc::clone(decides), leases.clone())
            })
            .collect();
        let first = format!("{}:nodes", self.runner.connector.prefix());
        let is_new = !probes.is_empty() && examination.tried.load(Ordering::Relaxed) != number;
        for (plan, decides, leases) in probes {
            let text = format!("{}:probe:", self.runner.connector.prefix());
            let name = format!("{}{:016x}", plan.kind().letter(), super::random());
            let key = [beside(first.as_bytes(), &text, &name)];
            let batch = call::Batch {
                keys: key.to_vec(),
                costs: vec![1],
                counts: vec![1],
            };
            let mut outcome = self.probe(&decides, &key, &batch.arguments(&plan)).await;
            if let (Ok(_), Some((mode, script))) = (&outcome, leases) {
                let request = Request {
                    cost: 1,
                    ahead: 0,
                    back: None,
                    spent: 0,
                    sent: Nanos::ZERO,
                };
                let (requests, counts) = ([request], [1]);
                let arguments =
                    call::lease_arguments(&plan, mode, requests.iter(), counts.into_iter());
                outcome = self.probe(&script, &key, &arguments).await;
            }
            if matches!(outcome, Err(StoreError::Lost(_))) {
                // Perhaps the connection broke by chance.
                let other = Script::new("return 1".to_owned());
                let others_run = self.probe(&other, &key, &[] as &[Vec<u8>]).await.is_ok();
                outcome = self.probe(&decides, &key, &batch.arguments(&plan)).await;
                if others_run && matches!(outcome, Err(StoreError::Lost(_))) {
                    return Err(StoreError::Unfit(ENDS.into()));
                }
            }
            // Otherwise the key expires with its limit.
            let end = Script::new("return redis.call('DEL', KEYS[1])".to_owned());
            let _ = self.probe(&end, &key, &[] as &[Vec<u8>]).await;
            outcome?;
        }
        // Not each time: a refusal is a line in the server's ACL log.
        if is_new {
            self.try_commands().await?;
            examination.tried.store(number, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Runs each command of the scripts in each shard.
    async fn try_commands(&self) -> Result<(), StoreError> {
        let script = Script::new(include_str!("commands.lua").to_owned());
        let (keys, home) = nodes::a_key_of_each_shard(self);
        let text = format!("{}:probe:", self.runner.connector.prefix());
        let try_in = async |shard: usize| {
            let number = super::random();
            let key = |kind| beside(&keys[shard], &text, &format!("{kind}{number:016x}"));
            let reply = self.probe(&script, &["s", "h", "z"].map(key), &[]).await?;
            let mut reply: Vec<String> =
                redis::from_redis_value(reply).map_err(|_| StoreError::BadReply)?;
            let missing = reply.split_off(1.min(reply.len()));
            Ok((reply.pop().unwrap_or_default(), missing))
        };
        let (why, missing) = try_in(home).await?;
        for shard in (0..keys.len()).filter(|shard| *shard != home) {
            let (why, here) = try_in(shard).await?;
            if let Some(command) = here.iter().find(|command| !missing.contains(command)) {
                let slot = super::slot(&keys[shard]);
                return Err(StoreError::Unfit(
                    format!(
                        "the server of the cluster that has the slot {slot} does not run {command} ({why}); give the user the same rights at \
                         each server"
                    )
                    .into(),
                ));
            }
        }
        let before = std::mem::replace(
            &mut lock(&self.examination.remarks).missing,
            missing.clone(),
        );
        if !missing.is_empty() && missing != before {
            let (store, missing) = (self.runner.connector.address(), missing.join(" "));
            tracing::warn!(
                %store,
                missing,
                why,
                "the shared store does not run some commands: limits in force work, and others, reservations, refunds, blocks or overrides \
                 may not"
            );
        }
        Ok(())
    }

    async fn probe(
        &self,
        script: &Script,
        key: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> Result<Value, StoreError> {
        Deadline::after(TIME)
            .bound(self.runner.run_uncounted(script, key, arguments, true))
            .await
            .flatten()
    }

    /// Reads what the server says about itself, if the user may.
    async fn look_at_the_server(&self, number: u64) -> Result<(), StoreError> {
        let info = async {
            let (_, mut connection) = self.runner.connector.get().await?;
            let reply = connection.query(&redis::cmd("INFO")).await;
            reply.map_err(|error| self.runner.connector.fault(&error))
        };
        let reply = match Deadline::after(TIME).bound(info).await.flatten() {
            Ok(reply) => reply,
            Err(error) => {
                if error.is_refusal() {
                    self.examination.mute.store(number, Ordering::Relaxed);
                }
                return Ok(());
            }
        };
        let text: String = redis::from_redis_value(reply).unwrap_or_default();
        let field = |name: &str| {
            let lines = || text.lines().filter_map(|line| line.split_once(':'));
            lines()
                .find(|(field, _)| *field == name)
                .map(|(_, value)| value.trim())
        };
        // Valkey calls it `server_mode`, and Redict by its own name.
        let modes = ["redis_mode", "server_mode", "redict_mode"];
        if modes.into_iter().find_map(field) == Some("cluster") {
            return Err(StoreError::node_of_a_cluster());
        }
        let policy = field("maxmemory_policy").filter(|policy| *policy != "noeviction");
        let bounded = field("maxmemory").is_some_and(|bytes| bytes != "0");
        let evicted = field("evicted_keys").and_then(|keys| keys.parse().ok());
        let new = Remarks {
            evicts: policy.filter(|_| bounded).map(str::to_owned),
            evicted,
            missing: self.examination.remarks().missing,
        };
        let old = std::mem::replace(&mut *lock(&self.examination.remarks), new.clone());
        let store = self.runner.connector.address();
        if let Some(policy) = new.evicts.as_ref().filter(|_| new.evicts != old.evicts) {
            tracing::warn!(
                %store,
                policy,
                "the shared store may evict limits in force, which then admit their units again; set maxmemory-policy to noeviction, \
                 or give the limits a store of their own"
            );
        }
        if let (Some(evicted), Some(before)) = (new.evicted, old.evicted)
            && evicted > before
        {
            let keys = evicted - before;
            tracing::warn!(
                %store,
                keys,
                "the shared store has evicted keys: limits among them admit their units again; raise maxmemory, or give the limits a \
                 store of their own"
            );
        }
        Ok(())
    }
}
