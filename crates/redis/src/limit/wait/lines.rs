//! The requests of this process that wait for keys in the store.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt,
    sync::{Arc, Mutex},
};

use tidegate_core::{Decision, Priority};
use tokio::sync::{Notify, oneshot};

use super::{LimitNow, WaitPart, grant::SharedGrant};
use crate::{
    Store, StoreError,
    health::random,
    script::call::{GroupTicket, Turn},
    sync::lock,
};

/// The keys of the lines that a group waits in.
pub type GroupKey = Arc<[Box<[u8]>]>;

/// The groups of this process.
#[derive(Default)]
pub struct Lines(Mutex<Groups>);

#[derive(Default)]
struct Groups {
    by_keys: HashMap<GroupKey, Group>,
    /// The groups that wait in several lines, by each of the lines' keys.
    of_several: HashMap<Box<[u8]>, Vec<GroupKey>>,
}

/// The requests of this process that wait for the same keys. A task asks the store for all of them.
struct Group {
    /// Distinguishes its tickets from those of other processes, and from earlier ones of this one.
    id: u64,
    now: LimitNow,
    /// By the numbers of their tickets.
    waiting: BTreeMap<u64, Waiter>,
    next: u64,
    /// Tickets with lower numbers are in the store.
    joined: u64,
    /// Tickets to remove there.
    leaves: Vec<GroupTicket>,
    /// The number of the last call.
    calls: u64,
    wake: Arc<Notify>,
}

struct Waiter {
    priority: Priority,
    /// For each line.
    costs: Box<[u64]>,
    outcome: oneshot::Sender<Outcome>,
}

impl Waiter {
    fn ticket(&self, number: u64) -> GroupTicket {
        GroupTicket {
            number,
            priority: self.priority,
            costs: self.costs.clone(),
        }
    }
}

/// How a wait ended.
#[derive(Debug)]
pub enum Outcome {
    Granted(SharedGrant),
    /// The limit at this index cannot admit the cost.
    Denied(usize, Decision),
    /// The store does not reply.
    Failed(StoreError),
}

/// A place in line, which is given up when it is dropped.
pub struct Ticket {
    store: Store,
    group: GroupKey,
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
        self.store.lines().leave(&self.group, self.number);
    }
}

impl Lines {
    /// Joins the line at each of these keys, which differ. A new group is served by a task of its
    /// own.
    pub(super) fn join<S: Future<Output = ()> + Send + 'static>(
        store: &Store,
        parts: &[WaitPart],
        priority: Priority,
        now: LimitNow,
        serve: impl FnOnce(Store, GroupKey, Box<[Box<[u8]>]>, Arc<Notify>) -> S,
    ) -> Option<Ticket> {
        let runtime = parts.first()?.limit.runtime();
        let (sender, outcome) = oneshot::channel();
        let line = |part: &WaitPart| part.limit.line_key(&part.key[..]).into_boxed_slice();
        let keys: GroupKey = parts.iter().map(line).collect();
        let mut groups = lock(&store.lines().0);
        let Groups {
            by_keys,
            of_several,
        } = &mut *groups;
        let group = match by_keys.entry(Arc::clone(&keys)) {
            Entry::Occupied(group) => group.into_mut(),
            Entry::Vacant(vacant) => {
                let group = vacant.insert(Group {
                    id: random(),
                    now: Arc::clone(&now),
                    waiting: BTreeMap::new(),
                    next: 0,
                    joined: 0,
                    leaves: Vec::new(),
                    calls: 0,
                    wake: Arc::default(),
                });
                if keys.len() > 1 {
                    for key in keys.iter() {
                        let groups = of_several.entry(key.clone()).or_default();
                        groups.push(Arc::clone(&keys));
                    }
                }
                let limited = parts.iter().map(|part| part.key.clone().into_boxed_slice());
                runtime.spawn(serve(
                    store.clone(),
                    Arc::clone(&keys),
                    limited.collect(),
                    Arc::clone(&group.wake),
                ));
                group
            }
        };
        group.now = now;
        let number = group.next;
        group.next += 1;
        let waiter = Waiter {
            priority,
            costs: parts.iter().map(|part| part.cost).collect(),
            outcome: sender,
        };
        group.waiting.insert(number, waiter);
        group.wake.notify_one();
        Some(Ticket {
            store: store.clone(),
            group: keys,
            number,
            outcome,
        })
    }

    fn leave(&self, group: &GroupKey, number: u64) {
        if let Some(group) = lock(&self.0).by_keys.get_mut(group) {
            group.remove(number);
            group.wake.notify_one();
        }
    }

    /// The next call about this group, and which limits decide. Forgets the group if nothing is
    /// left to do for it.
    pub fn next_turn(&self, keys: &GroupKey) -> Option<(Turn, LimitNow)> {
        let mut groups = lock(&self.0);
        let group = groups.by_keys.get_mut(keys)?;
        if group.waiting.is_empty() && group.leaves.is_empty() {
            groups.remove(keys);
            return None;
        }
        let joined = std::mem::replace(&mut group.joined, group.next);
        let new = group.waiting.range(joined..);
        group.calls += 1;
        let turn = Turn {
            id: group.id,
            number: group.calls,
            joins: new.map(|(number, waiter)| waiter.ticket(*number)).collect(),
            leaves: std::mem::take(&mut group.leaves),
            is_all: group.waiting.range(..joined).next().is_none(),
        };
        Some((turn, Arc::clone(&group.now)))
    }

    /// The tickets are no longer in all lines: the next call adds them again to all. Those that are
    /// left in some of them expire, so that tickets of several groups have one order in all lines.
    pub fn rejoin(&self, keys: &GroupKey) {
        if let Some(group) = lock(&self.0).by_keys.get_mut(keys) {
            group.joined = 0;
            group.leaves.clear();
            group.id = random();
        }
    }

    /// Ends the wait of the ticket with this number, whose costs were taken. If it was given up, the
    /// units return.
    pub fn grant(&self, keys: &GroupKey, number: u64, grant: SharedGrant) {
        let waiter = lock(&self.0)
            .by_keys
            .get_mut(keys)
            .and_then(|group| group.waiting.remove(&number));
        if let Some(waiter) = waiter {
            // If the caller has just left, the units return with the outcome.
            let _ = waiter.outcome.send(Outcome::Granted(grant));
        }
    }

    /// Ends the wait of a ticket whose cost is above the limit at this index by now.
    pub fn deny(&self, keys: &GroupKey, number: u64, (at, decision): (usize, Decision)) {
        let waiter = lock(&self.0)
            .by_keys
            .get_mut(keys)
            .and_then(|group| group.remove(number));
        if let Some(waiter) = waiter {
            let _ = waiter.outcome.send(Outcome::Denied(at, decision));
        }
    }

    /// Ends all waits of a group. Its tickets in the store expire.
    pub fn fail(&self, keys: &GroupKey, error: &StoreError) {
        let group = lock(&self.0).remove(keys);
        for waiter in group
            .into_iter()
            .flat_map(|group| group.waiting.into_values())
        {
            let _ = waiter.outcome.send(Outcome::Failed(error.clone()));
        }
    }

    /// Has the tasks of all groups that wait in a line ask at once: units may have become free.
    pub fn poke(&self, line: &[u8]) {
        let groups = lock(&self.0);
        let several = groups.of_several.get(line).into_iter().flatten();
        let alone: [Box<[u8]>; 1] = [line.into()];
        let alone = groups.by_keys.get(&alone[..]);
        let several = several.filter_map(|keys| groups.by_keys.get(keys));
        for group in alone.into_iter().chain(several) {
            group.wake.notify_one();
        }
    }
}

impl Groups {
    fn remove(&mut self, keys: &GroupKey) -> Option<Group> {
        let group = self.by_keys.remove(keys)?;
        for key in keys.iter().filter(|_| keys.len() > 1) {
            if let Some(groups) = self.of_several.get_mut(key) {
                groups.retain(|other| other != keys);
                if groups.is_empty() {
                    self.of_several.remove(key);
                }
            }
        }
        Some(group)
    }
}

impl Group {
    /// Removes a ticket here, and with the next call in the store.
    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let waiter = self.waiting.remove(&number)?;
        if number < self.joined {
            self.leaves.push(waiter.ticket(number));
        }
        Some(waiter)
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lines").finish_non_exhaustive()
    }
}
