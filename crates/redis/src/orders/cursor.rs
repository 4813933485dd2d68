//! How far a node has followed the orders in the store, without I/O.

/// How far a node has followed.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// When the orders in the store were made.
    made: u64,
    pub version: u64,
    /// The newest end that the store had forgotten when this round began.
    forgotten: u64,
    /// Grows when the node starts from the beginning.
    pub round: u64,
    is_complete: bool,
}

/// Some orders in the reply to a look.
#[derive(Debug)]
pub struct Page {
    /// The store's time in microseconds.
    pub now: u64,
    pub made: u64,
    pub newest: u64,
    pub forgotten: u64,
    /// Those since the version that was asked for, oldest first.
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug)]
pub struct Change {
    pub field: Vec<u8>,
    pub version: u64,
    /// Microseconds; 0 for never.
    pub ends: u64,
    /// Empty if the order was ended.
    pub text: String,
}

/// How much a page has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// There are more orders, from [`Cursor::version`] on.
    Part,
    /// The node knows all orders.
    All,
    /// The node knows all orders, and those that it did not see in this round are no longer in the store.
    AllOfARound,
}

impl Cursor {
    /// Takes in a page, and passes the changes to `apply` with the round.
    pub fn take(&mut self, page: &Page, is_last: bool, mut apply: impl FnMut(&Change, u64)) -> Taken {
        if self.must_start_again(page) {
            let round = self.round + 1;
            *self = Self { made: page.made, forgotten: page.forgotten, round, ..Self::default() };
            return Taken::Part;
        }
        for change in &page.changes {
            self.version = self.version.max(change.version);
            apply(change, self.round);
        }
        if !is_last {
            return Taken::Part;
        }
        self.version = page.newest;
        if std::mem::replace(&mut self.is_complete, true) { Taken::All } else { Taken::AllOfARound }
    }

    /// Whether the store has other orders than those that this node knows, or has forgotten an end that it has not seen.
    fn must_start_again(&self, page: &Page) -> bool {
        let is_another = page.made != self.made || page.newest < self.version;
        is_another || page.forgotten > self.version.max(self.forgotten)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const KEYS: [u8; 2] = [b'a', b'b'];

    /// The store's part, as `give.lua` and `follow.lua` have it.
    #[derive(Clone, Default)]
    struct Store {
        time: u64,
        made: u64,
        newest: u64,
        forgotten: u64,
        /// The version of each key's order, and whether it is in force.
        orders: BTreeMap<u8, (u64, bool)>,
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Give(u8),
        End(u8),
        /// The store forgets the ends of a day ago.
        Forget,
        /// The store is emptied.
        Empty,
        /// The node asks for one order.
        Look,
    }

    impl Store {
        fn change(&mut self, key: u8, in_force: bool) {
            self.time += 1;
            self.newest = self.time.max(self.newest + 1);
            if self.made == 0 {
                self.made = self.time;
            }
            self.orders.insert(key, (self.newest, in_force));
        }

        fn step(&mut self, step: Step) {
            match step {
                Step::Give(key) => self.change(key, true),
                Step::End(key) if self.orders.get(&key).is_some_and(|(_, in_force)| *in_force) => {
                    self.change(key, false);
                }
                Step::Forget => {
                    let ended = self.orders.values().filter(|(_, in_force)| !in_force);
                    let newest = ended.map(|(version, _)| *version).max().unwrap_or(0);
                    self.forgotten = self.forgotten.max(newest);
                    self.orders.retain(|_, (_, in_force)| *in_force);
                }
                Step::Empty => *self = Self { time: self.time + 1, ..Self::default() },
                Step::End(_) | Step::Look => {}
            }
        }

        fn page(&self, since: u64) -> (Page, bool) {
            let mut newer: Vec<_> = self.orders.iter().filter(|(_, (version, _))| *version > since).collect();
            newer.sort_by_key(|(_, (version, _))| *version);
            let change = |(key, (version, in_force)): &(&u8, &(u64, bool))| Change {
                field: vec![**key],
                version: *version,
                ends: 0,
                text: if *in_force { "1".into() } else { String::new() },
            };
            let changes: Vec<_> = newer.iter().take(1).map(change).collect();
            let is_last = changes.is_empty();
            let (made, newest, forgotten) = (self.made, self.newest, self.forgotten);
            (Page { now: self.time, made, newest, forgotten, changes }, is_last)
        }
    }

    #[derive(Clone, Default)]
    struct Node {
        cursor: Cursor,
        /// The round in which each order in force was seen.
        kept: BTreeMap<u8, u64>,
    }

    impl Node {
        /// Looks once. `guarded` is false for a node that does not notice forgotten ends.
        fn look(&mut self, store: &Store, guarded: bool) -> Taken {
            let (mut page, is_last) = store.page(self.cursor.version);
            if !guarded {
                page.forgotten = 0;
            }
            let kept = &mut self.kept;
            let taken = self.cursor.take(&page, is_last, |change, round| {
                if change.text.is_empty() {
                    kept.remove(&change.field[0]);
                } else {
                    kept.insert(change.field[0], round);
                }
            });
            if taken == Taken::AllOfARound {
                let round = self.cursor.round;
                self.kept.retain(|_, seen| *seen == round);
            }
            taken
        }
    }

    /// Whether a node knows exactly the orders in force after every sequence of `depth` steps, if it then looks undisturbed.
    fn always_agrees(depth: usize, store: &Store, node: &Node, guarded: bool) -> bool {
        let mut after = node.clone();
        let looks = (0..10).find(|_| after.look(store, guarded) != Taken::Part);
        let in_force = store.orders.iter().filter(|(_, (_, in_force))| *in_force).map(|(key, _)| *key);
        if looks.is_none() || !after.kept.keys().copied().eq(in_force) {
            return false;
        }
        let steps = KEYS.map(Step::Give).into_iter().chain(KEYS.map(Step::End));
        let mut steps = steps.chain([Step::Forget, Step::Empty, Step::Look]);
        depth == 0
            || steps.all(|step| {
                let (mut store, mut node) = (store.clone(), node.clone());
                store.step(step);
                if matches!(step, Step::Look) {
                    node.look(&store, guarded);
                }
                always_agrees(depth - 1, &store, &node, guarded)
            })
    }

    #[test]
    fn a_node_that_looks_knows_the_orders_in_force_after_any_sequence_of_changes() {
        assert!(always_agrees(7, &Store::default(), &Node::default(), true));
    }

    #[test]
    fn a_node_that_does_not_notice_forgotten_ends_would_keep_an_order_that_was_ended() {
        assert!(!always_agrees(7, &Store::default(), &Node::default(), false));
    }
}
