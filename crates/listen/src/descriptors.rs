//! Makes room when the process has no free descriptor: the listener with the most connections
//! closes idle ones, whichever listener needs one.

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// How many connections are closed at once. One is for the new connection, the others for files and
/// for more connections.
const AT_ONCE: usize = 8;
/// The least time between two calls that close connections, and until `accept` is retried after
/// one.
pub const PAUSE: Duration = Duration::from_millis(10);

/// A listener's connections.
pub trait Connections: fmt::Debug + Send + Sync {
    /// How many are open.
    fn open(&self) -> usize;

    /// Closes this many that are idle, now or soon. Returns whether there may be any.
    fn close_idle(&self, most: usize) -> bool;
}

/// The connections of all listeners of a server.
#[derive(Debug, Default)]
pub struct Descriptors(Mutex<Listeners>);

#[derive(Debug, Default)]
struct Listeners {
    all: Vec<Weak<dyn Connections>>,
    closed_at: Option<Instant>,
}

impl Descriptors {
    pub fn add<C: Connections + 'static>(&self, connections: &Arc<C>) {
        let connections: Weak<C> = Arc::downgrade(connections);
        self.lock().all.push(connections);
    }

    /// Closes idle connections. Returns whether descriptors will be free after [`PAUSE`].
    pub fn make_room(&self) -> bool {
        let mut listeners = self.lock();
        if listeners.closed_at.is_some_and(|at| at.elapsed() < PAUSE) {
            return true;
        }
        let mut all: Vec<_> = listeners.all.iter().filter_map(Weak::upgrade).collect();
        all.sort_by_key(|connections| std::cmp::Reverse(connections.open()));
        let makes_room = all
            .iter()
            .any(|connections| connections.close_idle(AT_ONCE));
        if makes_room {
            listeners.closed_at = Some(Instant::now());
        }
        makes_room
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Listeners> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Debug)]
    struct Idle(AtomicUsize);

    impl Connections for Idle {
        fn open(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }

        fn close_idle(&self, most: usize) -> bool {
            self.0.fetch_sub(most.min(self.open()), Ordering::Relaxed) > 0
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_listener_with_the_most_connections_closes_some_and_not_again_within_the_pause() {
        let descriptors = Descriptors::default();
        let [few, many] = [3, 20].map(|open| Arc::new(Idle(AtomicUsize::new(open))));
        descriptors.add(&few);
        descriptors.add(&many);
        let open = || [few.open(), many.open()];
        assert!(descriptors.make_room() && descriptors.make_room());
        assert_eq!(open(), [3, 12]);
        for left in [[3, 4], [3, 0], [0, 0]] {
            tokio::time::advance(PAUSE).await;
            assert!(descriptors.make_room());
            assert_eq!(open(), left);
        }
        tokio::time::advance(PAUSE).await;
        assert!(!descriptors.make_room());
        drop(many);
        assert!(!descriptors.make_room(), "a listener that is gone has none");
    }
}
