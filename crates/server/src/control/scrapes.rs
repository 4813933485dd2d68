//! Renders the metrics for all clients that wait for them, one rendering at a time.
//!
//! A client gets a rendering that began after its request. All that wait share the next one. After
//! a rendering there is a pause of some times its duration, so that any number of clients takes at
//! most a tenth of a processor.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_service::observe::metrics::{Metrics, Rendering};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

/// The pause after a rendering, in renderings.
const PAUSE: u32 = 9;
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(crate) struct Scrapes {
    /// How many renderings have begun.
    begun: AtomicU64,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    /// The number of this rendering among those that have begun.
    number: u64,
    rendering: Option<Arc<Rendering>>,
    /// How long a rendering takes.
    took: Duration,
    /// When the next one may begin.
    next: Option<Instant>,
}

impl Scrapes {
    /// A rendering that begins after this call. `None` if the runtime is shutting down.
    pub async fn render(&self, metrics: &Arc<Metrics>) -> Option<Arc<Rendering>> {
        // A rendering that begins later has a higher number.
        let arrived = self.begun.load(Ordering::SeqCst);
        let mut last = self.last.lock().await;
        if last.number > arrived {
            return last.rendering.clone();
        }
        if let Some(next) = last.next {
            sleep_until(next).await;
        }
        let (number, started) = (
            self.begun.fetch_add(1, Ordering::SeqCst) + 1,
            Instant::now(),
        );
        // Set before the rendering, which ends without its client if that leaves.
        last.next = Some(started + (last.took * (PAUSE + 1)).min(LONGEST));
        let metrics = Arc::clone(metrics);
        let rendering = tokio::task::spawn_blocking(move || metrics.render()).await;
        let took = started.elapsed();
        *last = Last {
            number,
            rendering: Some(Arc::new(rendering.ok()?)),
            took,
            next: Some(started + took + (took * PAUSE).min(LONGEST)),
        };
        last.rendering.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt, sync::atomic::AtomicUsize};

    use futures_util::future::join_all;
    use tidegate_service::observe::metrics::{MetricSource, Sink};

    use super::*;

    /// Counts how often it is read.
    #[derive(Debug, Default)]
    struct Reads(AtomicUsize);

    impl MetricSource for Reads {
        fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
            let reads = self.0.fetch_add(1, Ordering::Relaxed) as u64 + 1;
            sink.gauge("reads", "How often it was read", reads)
        }
    }

    #[tokio::test]
    async fn clients_that_wait_share_a_rendering_which_began_after_they_asked() {
        let (reads, mut metrics) = (Arc::new(Reads::default()), Metrics::new());
        metrics.add_without_prefix(reads.clone());
        let (metrics, scrapes) = (Arc::new(metrics), Scrapes::default());
        let count = |rendering: Option<Arc<Rendering>>| {
            let rendering = rendering.unwrap();
            let (text, _) = rendering.in_format(None);
            let line = text.lines().find(|line| line.starts_with("reads "));
            line.unwrap()["reads ".len()..].parse::<usize>().unwrap()
        };
        // The first begins alone; the others wait, and share the second.
        let all = join_all((0..50).map(|_| scrapes.render(&metrics))).await;
        let counts: Vec<_> = all.into_iter().map(count).collect();
        assert_eq!(counts[0], 1);
        assert!(counts[1..].iter().all(|count| *count <= 2), "{counts:?}");
        let before = reads.0.load(Ordering::Relaxed);
        let again = count(scrapes.render(&metrics).await);
        assert_eq!(again, before + 1, "an old rendering is never used again");
    }
}
