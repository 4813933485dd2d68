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
    /// Whether the store has lost the orders that this node knew.
    is_emptied: bool,
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
pub enum PageTaken {
    /// There are more orders, from [`Cursor::version`] on.
    Part,
    /// The node knows all orders.
    All,
    /// The node knows all orders, and those that it did not see in this round are no longer in the
    /// store.
    AllOfARound,
}

impl Cursor {
    /// Takes in a page, and passes the changes to `apply` with the round.
    pub fn take(
        &mut self,
        page: &Page,
        is_last: bool,
        mut apply: impl FnMut(&Change, u64),
    ) -> PageTaken {
        if self.must_start_again(page) {
            let round = self.round + 1;
            let is_emptied = self.is_emptied || self.made != 0 && page.made != self.made;
            *self = Self {
                made: page.made,
                forgotten: page.forgotten,
                round,
                is_emptied,
                ..Self::default()
            };
            return PageTaken::Part;
        }
        for change in &page.changes {
            self.version = self.version.max(change.version);
            apply(change, self.round);
        }
        if !is_last {
            return PageTaken::Part;
        }
        self.version = page.newest;
        if std::mem::replace(&mut self.is_complete, true) {
            PageTaken::All
        } else {
            PageTaken::AllOfARound
        }
    }

    /// Whether the store has lost orders since the last call: it was emptied.
    pub fn take_emptied(&mut self) -> bool {
        std::mem::take(&mut self.is_emptied)
    }

    /// Whether the store has other orders than those that this node knows, or has forgotten an end
    /// that it has not seen.
    fn must_start_again(&self, page: &Page) -> bool {
        let is_another = page.made != self.made || page.newest < self.version;
        is_another || page.forgotten > self.version.max(self.forgotten)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    /// The store's part, as `give.lua` and `follow.lua` have it.
    #[derive(Clone, Default)]
    struct Store {
        time: u64,
        made: u64,
        newest: u64,
        forgotten: u64,
        /// The key of each order, its version, by which they are sorted, and whether it is in
        /// force.
        orders: Vec<(u8, u64, bool)>,
    }

    impl Store {
        fn change(&mut self, key: u8, in_force: bool) {
            self.time += 1;
            self.newest = self.time.max(self.newest + 1);
            if self.made == 0 {
                self.made = self.time;
            }
            self.orders.retain(|(other, ..)| *other != key);
            self.orders.push((key, self.newest, in_force));
        }

        fn forget_ended(&mut self) {
            let ended = self.orders.iter().filter(|(.., in_force)| !in_force);
            self.forgotten = ended
                .map(|(_, version, _)| *version)
                .max()
                .unwrap_or(0)
                .max(self.forgotten);
            self.orders.retain(|(.., in_force)| *in_force);
        }

        fn in_force(&self) -> BTreeSet<u8> {
            self.orders
                .iter()
                .filter(|(.., in_force)| *in_force)
                .map(|(key, ..)| *key)
                .collect()
        }

        /// The next order.
        fn page(&self, since: u64) -> Page {
            let next = self.orders.iter().find(|(_, version, _)| *version > since);
            let change = |&(key, version, in_force): &(u8, u64, bool)| {
                let text = if in_force { "1" } else { "" };
                Change {
                    field: vec![key],
                    version,
                    ends: 0,
                    text: text.into(),
                }
            };
            let Self {
                time: now,
                made,
                newest,
                forgotten,
                ..
            } = *self;
            Page {
                now,
                made,
                newest,
                forgotten,
                changes: next.map(change).into_iter().collect(),
            }
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
        fn look(&mut self, store: &Store, guarded: bool) -> PageTaken {
            let mut page = store.page(self.cursor.version);
            if !guarded {
                page.forgotten = 0;
            }
            let kept = &mut self.kept;
            let taken = self
                .cursor
                .take(&page, page.changes.is_empty(), |change, round| {
                    if change.text.is_empty() {
                        kept.remove(&change.field[0]);
                    } else {
                        kept.insert(change.field[0], round);
                    }
                });
            if taken == PageTaken::AllOfARound {
                self.kept.retain(|_, seen| *seen == self.cursor.round);
            }
            taken
        }
    }

    /// Whether a node knows exactly the orders in force after every sequence of `depth` steps, if
    /// it then looks undisturbed.
    fn always_agrees(depth: usize, store: &Store, node: &Node, guarded: bool) -> bool {
        let mut after = node.clone();
        let looks = (0..10).find(|_| after.look(store, guarded) != PageTaken::Part);
        if looks.is_none() || !after.kept.keys().eq(&store.in_force()) {
            return false;
        }
        depth == 0
            || (0..7).all(|step| {
                let (mut store, mut node, key) = (store.clone(), node.clone(), step % 2);
                match step {
                    0 | 1 => store.change(key, true),
                    2 | 3 if store.in_force().contains(&key) => store.change(key, false),
                    4 => store.forget_ended(),
                    // The store is emptied.
                    5 => {
                        store = Store {
                            time: store.time + 1,
                            ..Store::default()
                        }
                    }
                    6 => drop(node.look(&store, guarded)),
                    _ => {}
                }
                always_agrees(depth - 1, &store, &node, guarded)
            })
    }

    #[test]
    fn a_node_that_looks_knows_the_orders_in_force_after_any_sequence_of_changes() {
        assert!(always_agrees(7, &Store::default(), &Node::default(), true));
        let guarded = always_agrees(7, &Store::default(), &Node::default(), false);
        assert!(
            !guarded,
            "a node that does not notice forgotten ends would keep an order that was ended"
        );
    }
}
