//! The state that a rule keeps per node, outside the node's own counts.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use tidegate_core::{
    Nanos,
    stats::{Head, Ring, Tally, Trailing, View},
};

use crate::stats::node::Node;

/// One state if a rule measures one node, or one for each of several nodes.
pub(super) enum PerNode<T> {
    One(T),
    Each {
        new: Box<dyn Fn() -> T + Send + Sync>,
        states: RwLock<States<T>>,
    },
}

/// States by the address of their node. An address is unique while the map keeps the node. The
/// nodes are origins of one resource, so the resource's limit bounds their number.
type States<T> = HashMap<usize, (Arc<Node>, Arc<T>)>;

impl<T> PerNode<T> {
    pub(super) fn new(each: bool, new: impl Fn() -> T + Send + Sync + 'static) -> Self {
        if each {
            Self::Each {
                new: Box::new(new),
                states: RwLock::default(),
            }
        } else {
            Self::One(new())
        }
    }

    /// Runs `then` on the state of `node` and creates the state if necessary.
    pub(super) fn of<R>(&self, node: &Arc<Node>, then: impl FnOnce(&T) -> R) -> R {
        let (new, states) = match self {
            Self::One(state) => return then(state),
            Self::Each { new, states } => (new, states),
        };
        let at = Arc::as_ptr(node).addr();
        let known = states
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&at)
            .map(|(_, state)| state.clone());
        let state = known.unwrap_or_else(|| {
            let mut states = states.write().unwrap_or_else(PoisonError::into_inner);
            states
                .entry(at)
                .or_insert_with(|| (node.clone(), Arc::new(new())))
                .1
                .clone()
        });
        then(&state)
    }
}

/// Counts units in an interval that does not fit the node's window.
pub(super) struct Interval {
    ring: Arc<Ring<1, 0>>,
    trailing: Trailing,
}

impl Interval {
    pub(super) fn new(ring: Arc<Ring<1, 0>>, view: View) -> Self {
        Self {
            ring,
            trailing: Trailing::new(view),
        }
    }

    /// Checks that `n` more units stay within `limit`.
    ///
    /// # Errors
    /// The time until they fit, if it can be given.
    pub(super) fn peek(&self, now: Nanos, n: u32, limit: u64) -> Result<(), Option<Duration>> {
        self.ring.turn_to(now);
        let (tally, head) = self.ring.standing(0);
        self.fits(tally, head, now, n.into(), limit)
    }

    /// Takes `n` units.
    ///
    /// # Errors
    /// Same as [`peek`](Self::peek).
    pub(super) fn take(&self, now: Nanos, n: u32, limit: u64) -> Result<Tally, Option<Duration>> {
        self.ring.turn_to(now);
        self.ring.add_if(0, n, |tally, head| {
            self.fits(tally, head, now, n.into(), limit)
        })
    }

    /// Gives back units that were [taken](Self::take), if their slot is still the newest.
    pub(super) fn give_back(&self, n: u32, taken: Tally) {
        self.ring.undo(0, n, taken);
    }

    fn fits(
        &self,
        tally: Tally,
        head: Head,
        now: Nanos,
        n: u64,
        limit: u64,
    ) -> Result<(), Option<Duration>> {
        match self.trailing.used(&self.ring, 0, tally, head) {
            Some(used) if used + n > limit => {
                let goal = limit.checked_sub(n);
                Err(goal.map(|goal| {
                    self.ring
                        .fits_after(0, tally, head, now, self.trailing.view(), goal)
                }))
            }
            _ => Ok(()),
        }
    }
}
