//! The requests of this process that wait for keys in the store.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt,
    sync::{Arc, Mutex},
};

use tidegate_core::Decision;
use tokio::sync::{Notify, oneshot};

use super::{LimitNow, grant::Grant, turn::serve};
use crate::{SharedLimit, Store, StoreError, health::random, script::call::Turn, sync::lock};

/// The lines of this process, by their keys in Redis.
#[derive(Default)]
pub struct Lines(Mutex<HashMap<Arc<[u8]>, Line>>);

/// The requests of this process for one key. A task asks the store for all of them.
struct Line {
    /// Distinguishes this line from those of other processes, and from earlier ones of this one.
    id: u64,
    now: LimitNow,
    /// By the numbers of their tickets.
    waiting: BTreeMap<u64, Waiter>,
    next: u64,
    /// Tickets with lower numbers are in the store.
    joined: u64,
    /// Tickets to remove there, with their costs.
    leaves: Vec<(u64, u64)>,
    /// The number of the last call.
    calls: u64,
    wake: Arc<Notify>,
}

struct Waiter {
    cost: u64,
    outcome: oneshot::Sender<Outcome>,
}

/// How a wait ended.
#[derive(Debug)]
pub enum Outcome {
    Granted(Grant),
    Denied(Decision),
    /// The store does not reply.
    Failed(StoreError),
}

/// A place in line, which is given up when it is dropped.
pub struct Ticket {
    store: Store,
    line: Arc<[u8]>,
    number: u64,
    outcome: oneshot::Receiver<Outcome>,
}

impl Ticket {
    /// How the wait ends; `None` if the runtime of the store has ended.
    pub async fn outcome(&mut self) -> Option<Outcome> {
        (&mut self.outcome).await.ok()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.store.lines().leave(&self.line, self.number);
    }
}

impl Lines {
    /// Joins the end of the line at a key of this limit.
    pub fn join(limit: &SharedLimit, key: &[u8], cost: u64, now: LimitNow) -> Ticket {
        let store = limit.store();
        let (sender, outcome) = oneshot::channel();
        let mut lines = lock(&store.lines().0);
        let line_key: Arc<[u8]> = limit.line_key(key).into();
        let line = match lines.entry(Arc::clone(&line_key)) {
            Entry::Occupied(line) => line.into_mut(),
            Entry::Vacant(vacant) => {
                let line = vacant.insert(Line {
                    id: random(),
                    now: Arc::clone(&now),
                    waiting: BTreeMap::new(),
                    next: 0,
                    joined: 0,
                    leaves: Vec::new(),
                    calls: 0,
                    wake: Arc::default(),
                });
                let serve = serve(
                    store.clone(),
                    Arc::clone(&line_key),
                    key.into(),
                    Arc::clone(&line.wake),
                );
                limit.runtime().spawn(serve);
                line
            }
        };
        line.now = now;
        let number = line.next;
        line.next += 1;
        let waiter = Waiter {
            cost,
            outcome: sender,
        };
        line.waiting.insert(number, waiter);
        line.wake.notify_one();
        Ticket {
            store: store.clone(),
            line: line_key,
            number,
            outcome,
        }
    }

    fn leave(&self, line: &[u8], number: u64) {
        let mut lines = lock(&self.0);
        let Some(line) = lines.get_mut(line) else {
            return;
        };
        line.remove(number);
        line.wake.notify_one();
    }

    /// The next call about this line, and which limit decides. Forgets the line if nothing is left
    /// to do for it.
    pub fn next_turn(&self, key: &[u8]) -> Option<(Turn, LimitNow)> {
        let mut lines = lock(&self.0);
        let line = lines.get_mut(key)?;
        if line.waiting.is_empty() && line.leaves.is_empty() {
            lines.remove(key);
            return None;
        }
        let joined = std::mem::replace(&mut line.joined, line.next);
        let new = line.waiting.range(joined..);
        line.calls += 1;
        let turn = Turn {
            id: line.id,
            number: line.calls,
            joins: new.map(|(number, waiter)| (*number, waiter.cost)).collect(),
            leaves: std::mem::take(&mut line.leaves),
            is_all: line.waiting.range(..joined).next().is_none(),
        };
        Some((turn, Arc::clone(&line.now)))
    }

    /// The tickets are no longer in the store: the next call adds them again.
    pub fn rejoin(&self, key: &[u8]) {
        if let Some(line) = lock(&self.0).get_mut(key) {
            line.joined = 0;
        }
    }

    /// The wait of the ticket with this number, whose cost was taken. If it was given up, the units
    /// return.
    pub fn grant(&self, key: &[u8], number: u64, grant: Grant) {
        let waiter = lock(&self.0)
            .get_mut(key)
            .and_then(|line| line.waiting.remove(&number));
        if let Some(waiter) = waiter {
            // If the caller has just left, the units return with the outcome.
            let _ = waiter.outcome.send(Outcome::Granted(grant));
        }
    }

    /// Ends the wait of a ticket whose cost is above the limit by now.
    pub fn deny(&self, key: &[u8], number: u64, decision: Decision) {
        let waiter = lock(&self.0)
            .get_mut(key)
            .and_then(|line| line.remove(number));
        if let Some(waiter) = waiter {
            let _ = waiter.outcome.send(Outcome::Denied(decision));
        }
    }

    /// Ends all waits of a line. Its tickets in the store expire.
    pub fn fail(&self, key: &[u8], error: &StoreError) {
        let line = lock(&self.0).remove(key);
        for waiter in line.into_iter().flat_map(|line| line.waiting.into_values()) {
            let _ = waiter.outcome.send(Outcome::Failed(error.clone()));
        }
    }

    /// Has a line's task ask at once: units may have become free.
    pub fn poke(&self, key: &[u8]) {
        if let Some(line) = lock(&self.0).get(key) {
            line.wake.notify_one();
        }
    }
}

impl Line {
    /// Removes a ticket here, and with the next call in the store.
    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let waiter = self.waiting.remove(&number)?;
        if number < self.joined {
            self.leaves.push((number, waiter.cost));
        }
        Some(waiter)
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}
