//! Bounds the number of connections, and decides which one is closed for a new one.
//!
//! ```text
//! a new connection ─┬─ a slot is free ────────────────► full service
//!                   ├─ one has been idle: it is closed ► full service
//!                   ├─ all are busy ──────────────────► a spare slot: health and metrics, one request
//!                   └─ no spare slot is free or idle ─► closed
//! ```
//!
//! A connection is busy from a request's head to its response, and otherwise idle, even if it sends
//! its head slowly or does not read its response.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use slab::Slab;
use tokio::sync::Notify;

use crate::{descriptors::Connections, idle::LongestIdle};

/// Slots for health checks and metrics when all others are taken.
pub const SPARE: usize = 32;

/// The stamp of a busy connection.
const BUSY: u64 = 0;

/// All connections of a listener.
#[derive(Debug)]
pub struct Slots {
    regular: Mutex<SlotPool>,
    spare: Mutex<SlotPool>,
    /// Incremented whenever a connection becomes idle, so that stamps have the order of those
    /// moments.
    stamps: AtomicU64,
}

/// The slots of one kind.
#[derive(Debug)]
struct SlotPool {
    most: usize,
    taken: Slab<Arc<Connection>>,
    longest_idle: LongestIdle,
}

#[derive(Debug)]
struct Connection {
    /// When it became idle; [`BUSY`] while it serves a request.
    idle_since: AtomicU64,
    /// Another connection has its slot.
    evicted: AtomicBool,
    give_way: Notify,
}

/// A connection's slot, which is free again when this is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    connection: Arc<Connection>,
    at: usize,
    /// Whether only health checks and metrics are served.
    pub is_spare: bool,
}

/// The slot of a new connection.
#[derive(Debug)]
pub struct Admission {
    pub slot: Slot,
    /// Whether another connection was closed for it.
    pub evicted: bool,
}

impl Slots {
    pub fn new(most: usize) -> Arc<Self> {
        let kind = |most| {
            Mutex::new(SlotPool {
                most,
                taken: Slab::new(),
                longest_idle: LongestIdle::default(),
            })
        };
        Arc::new(Self {
            regular: kind(most),
            spare: kind(SPARE),
            stamps: AtomicU64::new(BUSY + 1),
        })
    }

    /// A slot for a new connection. If necessary, the connection that was idle longest is closed.
    /// `None` if all are busy, including the spare ones.
    pub fn admit(self: &Arc<Self>) -> Option<Admission> {
        self.admit_to(&self.regular, false)
            .or_else(|| self.admit_to(&self.spare, true))
    }

    fn admit_to(self: &Arc<Self>, kind: &Mutex<SlotPool>, is_spare: bool) -> Option<Admission> {
        let mut kind = lock(kind);
        let evicted = kind.taken.len() >= kind.most;
        if evicted {
            kind.evict()?;
        }
        let connection = Arc::new(Connection {
            idle_since: AtomicU64::new(self.stamp()),
            evicted: AtomicBool::new(false),
            give_way: Notify::new(),
        });
        let at = kind.taken.insert(Arc::clone(&connection));
        Some(Admission {
            slot: Slot {
                slots: Arc::clone(self),
                connection,
                at,
                is_spare,
            },
            evicted,
        })
    }

    fn stamp(&self) -> u64 {
        // Relaxed: only the order of the stamps matters, and a single word has one order.
        self.stamps.fetch_add(1, Ordering::Relaxed)
    }
}

impl SlotPool {
    /// Closes the connection that has been idle longest. `None` if all are busy.
    fn evict(&mut self) -> Option<()> {
        let Self {
            taken,
            longest_idle,
            ..
        } = self;
        let idle_since = |at: usize| {
            let connection: &Arc<Connection> = taken.get(at)?;
            Some(connection.idle_since.load(Ordering::Relaxed)).filter(|since| *since != BUSY)
        };
        let at = longest_idle.next(taken.iter().map(|(at, _)| at), idle_since)?;
        // The task that serves it may notice late, but the slot is reused immediately.
        let gives_way = taken.remove(at);
        // SeqCst: see `Call::drop`.
        gives_way.evicted.store(true, Ordering::SeqCst);
        gives_way.give_way.notify_one();
        Some(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Connections for Slots {
    fn open(&self) -> usize {
        lock(&self.regular).taken.len() + lock(&self.spare).taken.len()
    }

    fn close_idle(&self, most: usize) -> bool {
        let kinds = [&self.regular, &self.spare];
        kinds.into_iter().any(|kind| {
            let mut kind = lock(kind);
            (0..most).map_while(|_| kind.evict()).count() > 0
        })
    }
}

impl Slot {
    /// Waits until this connection must be closed for another. A request that just began is
    /// answered first.
    pub async fn must_give_way(&self) {
        loop {
            self.connection.give_way.notified().await;
            // SeqCst: see `Call::drop`.
            let is_busy = self.connection.idle_since.load(Ordering::SeqCst) == BUSY;
            if self.connection.evicted.load(Ordering::Relaxed) && !is_busy {
                return;
            }
        }
    }
}

/// The requests in progress on one connection, of which HTTP/2 can have several. The connection is
/// busy while there are any.
#[derive(Debug)]
pub struct Calls {
    pub slot: Slot,
    under_way: Mutex<usize>,
    /// How many requests have begun so far.
    begun: AtomicU64,
}

impl Calls {
    pub fn new(slot: Slot) -> Self {
        Self {
            slot,
            under_way: Mutex::default(),
            begun: AtomicU64::new(0),
        }
    }

    /// Marks a request as in progress until the guard is dropped.
    pub fn begin(self: &Arc<Self>) -> Call {
        let mut under_way = lock(&self.under_way);
        *under_way += 1;
        if *under_way == 1 {
            self.slot
                .connection
                .idle_since
                .store(BUSY, Ordering::Relaxed);
        }
        drop(under_way);
        // Relaxed: it is only compared with itself.
        self.begun.fetch_add(1, Ordering::Relaxed);
        Call(Arc::clone(self))
    }

    /// Until this long has passed without a single request; never, if there was one.
    pub async fn never_begin(&self, span: Duration) {
        tokio::time::sleep(span).await;
        if self.begun.load(Ordering::Relaxed) > 0 {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until no request has begun or been in progress for this long; takes at most twice as
    /// long.
    pub async fn are_absent_for(&self, span: Duration) {
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            tokio::time::sleep(span).await;
            let is_idle = *lock(&self.under_way) == 0;
            if is_idle && self.begun.load(Ordering::Relaxed) == begun {
                return;
            }
        }
    }
}

/// One request in progress.
#[derive(Debug)]
pub struct Call(Arc<Calls>);

impl Drop for Call {
    fn drop(&mut self) {
        let mut under_way = lock(&self.0.under_way);
        *under_way -= 1;
        if *under_way > 0 {
            return;
        }
        // SeqCst: a connection that is evicted while it is busy either sees here that it was, or
        // its task, which is woken after `evicted` is set, sees that it is idle. To wake the task
        // after every request would cost each of them another poll.
        let Slot {
            slots, connection, ..
        } = &self.0.slot;
        connection.idle_since.store(slots.stamp(), Ordering::SeqCst);
        if connection.evicted.load(Ordering::SeqCst) {
            connection.give_way.notify_one();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let kind = if self.is_spare {
            &self.slots.spare
        } else {
            &self.slots.regular
        };
        let mut kind = lock(kind);
        // It may have been evicted, and its slot taken by another connection.
        if kind
            .taken
            .get(self.at)
            .is_some_and(|there| Arc::ptr_eq(there, &self.connection))
        {
            kind.taken.remove(self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::FutureExt;

    use super::*;

    fn calls(slots: &Arc<Slots>) -> Arc<Calls> {
        Arc::new(Calls::new(slots.admit().unwrap().slot))
    }

    #[test]
    fn a_connection_that_was_busy_when_evicted_gives_way_after_its_answer() {
        let slots = Slots::new(1);
        let calls = calls(&slots);
        let mut gives_way = pin!(calls.slot.must_give_way());
        assert!(slots.admit().unwrap().evicted);
        // A request began just then.
        let call = calls.begin();
        assert!(
            gives_way.as_mut().now_or_never().is_none(),
            "it is answered first"
        );
        drop(call);
        assert!(
            gives_way.now_or_never().is_some(),
            "nothing else would wake it"
        );
    }

    #[test]
    fn a_request_wakes_no_connection_that_may_stay() {
        let calls = calls(&Slots::new(1));
        let mut notified = pin!(calls.slot.connection.give_way.notified());
        drop(calls.begin());
        assert!(notified.as_mut().now_or_never().is_none());
    }
}
