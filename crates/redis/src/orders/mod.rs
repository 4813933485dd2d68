//! Orders of operators about single keys: blocks, own quotas, resets and refunds. They are kept in
//! the store and followed by every node, in every mode.
//!
//! Each order has a version, which grows. A node asks for the orders since the newest version that
//! it knows, several times a second, so a change costs each node one order, however many there are.
//! A node starts from the beginning if the store has other orders than those that it knows (it was
//! emptied), or has forgotten an end that the node has not seen. If it was emptied, every node gives
//! the orders in force again that it knows.

mod cursor;
mod kept;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tidegate_core::{Clock, Nanos};
use tokio::sync::Mutex;

use cursor::{Change, Cursor, Page, PageTaken};
use kept::KeptOrders;
pub use kept::{GivenOrder, LimitOrders};

use crate::{
    Deadline, StoreError, batch::Batcher, connection::beside, health::Monitor, script::Script,
};

/// The time between two looks for new orders. With a round trip, an order is in force everywhere
/// within a second.
const EVERY: Duration = Duration::from_millis(400);
/// The same after the store refused a look.
const REFUSED: Duration = Duration::from_mins(1);
/// How long one look, or giving an order, may take.
const TIME: Duration = Duration::from_secs(2);
/// How many orders one call brings at most. Other calls wait while Redis executes it.
const PAGE: usize = 500;
/// The largest number of orders in a store.
const MOST: u32 = 2_000_000;
/// How long a reset or a refund stays, for nodes that do not reach the store for a moment.
pub const MOMENT: Duration = Duration::from_mins(1);

/// Orders that stay in force until their time has come or they are ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order<'a> {
    /// The key is denied.
    Block,
    /// The key has its own quota: the text means what the nodes that share the limit agree on, and
    /// is not empty.
    Override(&'a str),
}

/// A kind of [`Order`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OrderKind {
    /// [`Order::Block`].
    Block,
    /// [`Order::Override`].
    Override,
}

/// A kind of order in the store, by its letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredOrder {
    Lasting(OrderKind),
    /// The key's use was forgotten: nodes drop what they hold.
    Reset,
    /// Units were refunded: nodes give back what they hold, and ask the store again.
    Refund,
}

impl StoredOrder {
    const ALL: [Self; 4] = [
        Self::Lasting(OrderKind::Block),
        Self::Lasting(OrderKind::Override),
        Self::Reset,
        Self::Refund,
    ];

    const fn letter(self) -> u8 {
        match self {
            Self::Lasting(OrderKind::Block) => b'b',
            Self::Lasting(OrderKind::Override) => b'o',
            Self::Reset => b'r',
            Self::Refund => b'g',
        }
    }

    /// The order's field in the hash. A limit's name has no zero byte.
    fn field(self, limit: &str, key: &[u8]) -> Vec<u8> {
        [&[self.letter()], limit.as_bytes(), &[0], key].concat()
    }

    fn parse(field: &[u8]) -> Option<(Self, &str, &[u8])> {
        let (&letter, rest) = field.split_first()?;
        let kind = Self::ALL.into_iter().find(|kind| kind.letter() == letter)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        Some((
            kind,
            std::str::from_utf8(&rest[..end]).ok()?,
            &rest[end + 1..],
        ))
    }
}

/// The orders in a store, as this node knows them.
pub struct Orders {
    kept: KeptOrders,
    cursor: Mutex<Cursor>,
    keys: OnceLock<[Vec<u8>; 3]>,
    give: Script,
    follow: Script,
    follows: AtomicBool,
}

impl Default for Orders {
    fn default() -> Self {
        Self {
            kept: KeptOrders::default(),
            cursor: Mutex::default(),
            keys: OnceLock::new(),
            give: Script::new(include_str!("give.lua").into()),
            follow: Script::new(include_str!("follow.lua").into()),
            follows: AtomicBool::new(false),
        }
    }
}

impl Orders {
    /// Follows the orders for as long as the store exists.
    pub fn keep_up(self: &Arc<Self>, batcher: &Arc<Batcher>) {
        if self.follows.swap(true, Ordering::Relaxed) {
            return;
        }
        let (orders, weak) = (Arc::clone(self), Arc::downgrade(batcher));
        batcher.monitor.runner.connector.runtime().spawn(async move {
            while let Some(batcher) = weak.upgrade() {
                let pause = match orders.catch_up(&batcher).await {
                    Err(error) if error.is_refusal() => {
                        tracing::warn!(%error, "blocks, overrides and resets in the shared store are not in force here");
                        REFUSED
                    }
                    // The store's health shows any other error.
                    Ok(()) | Err(_) => EVERY,
                };
                drop(batcher);
                tokio::time::sleep(pause).await;
            }
        });
    }

    /// The orders about a limit's keys that this node knows.
    pub fn of(&self, limit: &str) -> Arc<LimitOrders> {
        self.kept.of(limit)
    }

    /// Gives an order, or ends it if the text is empty. Returns whether it was in force before.
    pub async fn give(
        &self,
        batcher: &Arc<Batcher>,
        (kind, limit, key): (StoredOrder, &str, &[u8]),
        text: &str,
        span: Option<Duration>,
    ) -> Result<bool, StoreError> {
        let span = span.map_or(0, |span| {
            u64::try_from(span.as_micros())
                .unwrap_or(u64::MAX >> 12)
                .max(1)
        });
        let arguments = [
            kind.field(limit, key),
            text.as_bytes().to_vec(),
            span.min(u64::MAX >> 12).to_string().into_bytes(),
            MOST.to_string().into_bytes(),
        ];
        let was = match self
            .run(&batcher.monitor, &self.give, 3, &arguments)
            .await?
        {
            Value::Int(-1) => return Err(StoreError::TooManyOrders),
            Value::Int(was) => was == 1,
            _ => return Err(StoreError::BadReply),
        };
        // This node follows at once. If that fails, it follows with the others.
        let _ = self.catch_up(batcher).await;
        Ok(was)
    }

    /// Asks for the orders that this node does not know yet, and follows them.
    pub async fn catch_up(&self, batcher: &Arc<Batcher>) -> Result<(), StoreError> {
        let mut cursor = self.cursor.lock().await;
        loop {
            let sent = batcher.monitor.clock.now();
            let arguments = [
                cursor.version.to_string().into_bytes(),
                PAGE.to_string().into_bytes(),
            ];
            let reply = self
                .run(&batcher.monitor, &self.follow, 2, &arguments)
                .await?;
            let page = parse(reply).ok_or(StoreError::BadReply)?;
            let received = batcher.monitor.clock.now();
            self.kept.time.set(
                Nanos::from_micros(page.now),
                sent.get().midpoint(received.get()),
            );
            let is_last = page.changes.len() < PAGE;
            match cursor.take(&page, is_last, |change, round| {
                self.apply(change, round, batcher);
            }) {
                PageTaken::Part => {}
                PageTaken::All => return Ok(()),
                PageTaken::AllOfARound => {
                    if cursor.take_emptied() {
                        // They come back with the next looks.
                        self.give_again(batcher, cursor.round).await;
                        return Ok(());
                    }
                    self.kept.keep_only(cursor.round);
                    return Ok(());
                }
            }
        }
    }

    /// Gives the orders again that an emptied store has lost, unless another node has.
    async fn give_again(&self, batcher: &Arc<Batcher>, round: u64) {
        let (mut given, mut lost) = (0_u64, 0_u64);
        for (kind, limit, order) in self.kept.not_seen(round) {
            let left = order.until.map_or(0, |until| {
                let left = until.saturating_since(self.kept.time.now());
                (left.get() / 1_000).max(1)
            });
            let arguments = [
                StoredOrder::Lasting(kind).field(&limit, &order.key),
                order.text.as_bytes().to_vec(),
                left.to_string().into_bytes(),
                MOST.to_string().into_bytes(),
                b"absent".to_vec(),
            ];
            let again = self.run(&batcher.monitor, &self.give, 3, &arguments).await;
            match again {
                Ok(Value::Int(0..)) => given += 1,
                _ => lost += 1,
            }
        }
        if given + lost > 0 {
            let counters = &batcher.monitor.runner.counters;
            counters.orders_given_again.add(given);
            counters.orders_lost.add(lost);
            let store = batcher.monitor.runner.connector.address();
            tracing::warn!(
                %store,
                given,
                lost,
                "the shared store has lost its blocks and overrides, for example in a restart without appendonly; this server has given \
                 those that it knew again, and goes on with those that the store did not take"
            );
        }
    }

    fn apply(&self, change: &Change, round: u64, batcher: &Arc<Batcher>) {
        let Some((kind, limit, key)) = StoredOrder::parse(&change.field) else {
            // A later version has other kinds of orders.
            return;
        };
        match kind {
            StoredOrder::Lasting(kind) => {
                self.kept
                    .set(kind, limit, key, (&change.text, change.ends), round);
            }
            StoredOrder::Reset | StoredOrder::Refund => {
                let prefix = batcher.monitor.runner.connector.prefix();
                batcher.forget(
                    format!("{prefix}:{limit}:").as_bytes(),
                    key,
                    kind == StoredOrder::Refund,
                );
            }
        }
    }

    async fn run(
        &self,
        monitor: &Monitor,
        script: &Script,
        keys: usize,
        arguments: &[Vec<u8>],
    ) -> Result<Value, StoreError> {
        let all = self.keys.get_or_init(|| {
            let first = format!("{}:orders", monitor.runner.connector.prefix());
            let other = |name| beside(first.as_bytes(), &format!("{first}:"), name);
            [first.clone().into_bytes(), other("versions"), other("ends")]
        });
        if monitor.is_down(monitor.shard_of(&all[0])) {
            return Err(StoreError::Down);
        }
        Deadline::after(TIME)
            .bound(monitor.runner.run(script, &all[..keys], arguments, true))
            .await
            .flatten()
    }
}

fn parse(reply: Value) -> Option<Page> {
    let Value::Array(mut numbers) = reply else {
        return None;
    };
    let changes = Value::Array(numbers.split_off(4.min(numbers.len())));
    let (now, made, newest, forgotten) = redis::from_redis_value(Value::Array(numbers)).ok()?;
    let change = |(field, value): (Vec<u8>, String)| {
        let mut words = value.splitn(3, ' ');
        let (version, ends) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Change {
            field,
            version,
            ends,
            text: words.next()?.to_owned(),
        })
    };
    let changes: Vec<(Vec<u8>, String)> = redis::from_redis_value(changes).ok()?;
    Some(Page {
        now,
        made,
        newest,
        forgotten,
        changes: changes.into_iter().map(change).collect::<Option<_>>()?,
    })
}
