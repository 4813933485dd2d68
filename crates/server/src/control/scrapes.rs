//! Renders the metrics for all clients that wait for them, one rendering at a time.
//!
//! A client gets a rendering that began after its request. All that wait share the next one. After
//! a rendering there is a pause of some times its duration, so that any number of clients takes at
//! most a tenth of a processor.
//!
//! The renderings are made on a thread that gives way to those that decide. They are sent in pieces,
//! and the connection's task gives way after each: a thousand limits have 657 kB of metrics, which a
//! decision would otherwise wait for.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tidegate_service::observe::metrics::{Metrics, Rendering};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

use super::OneThread;

/// The pause after a rendering, in renderings.
const PAUSE: u32 = 9;
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// The size of a piece of a rendering, in bytes.
const PIECE: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct Scrapes {
    thread: OneThread,
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
    /// # Errors
    /// When the system refuses a thread.
    pub fn start() -> io::Result<Self> {
        Ok(Self {
            thread: OneThread::start("tidegate-metrics")?,
            begun: AtomicU64::new(0),
            last: Mutex::default(),
        })
    }

    /// The part of a rendering that `select` makes, on the same thread. `None` if it panicked.
    pub async fn select(
        &self,
        select: impl FnOnce() -> String + Send + 'static,
    ) -> Option<Arc<str>> {
        Some(self.thread.run(select).await?.into())
    }

    /// A rendering that begins after this call. `None` if it panicked.
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
        let rendering = self.thread.run(move || metrics.render()).await;
        let took = started.elapsed();
        *last = Last {
            number,
            rendering: Some(Arc::new(rendering?)),
            took,
            next: Some(started + took + (took * PAUSE).min(LONGEST)),
        };
        last.rendering.clone()
    }
}

/// A long text as a body that lets other tasks run after each piece.
#[derive(Debug)]
pub(super) struct Pieces {
    text: Arc<str>,
    /// The number of bytes that were sent.
    sent: usize,
    /// The last poll returned a piece.
    gives_way: bool,
}

impl Pieces {
    pub const fn new(text: Arc<str>) -> Self {
        Self {
            text,
            sent: 0,
            gives_way: false,
        }
    }

    fn rest(&self) -> &[u8] {
        self.text.as_bytes().get(self.sent..).unwrap_or_default()
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut self.gives_way) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.gives_way = true;
        let piece = self.rest().chunks(PIECE).next().unwrap_or_default();
        let piece = Bytes::copy_from_slice(piece);
        self.sent += piece.len();
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest().is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest().len() as u64)
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
        let (metrics, scrapes) = (Arc::new(metrics), Scrapes::start().unwrap());
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
    #[test]
    fn a_long_text_is_sent_in_pieces_with_a_pause_after_each() {
        let text: String = (0..3 * PIECE + 5)
            .map(|at| char::from(b'a' + (at % 23) as u8))
            .collect();
        let mut body = Pieces::new(text.as_str().into());
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        let (mut context, mut sent) = (Context::from_waker(std::task::Waker::noop()), Vec::new());
        let mut polls = 0;
        while !body.is_end_stream() {
            let polled = Pin::new(&mut body).poll_frame(&mut context);
            assert_eq!(polled.is_ready(), polls % 2 == 0);
            polls += 1;
            if let Poll::Ready(Some(Ok(frame))) = polled {
                sent.extend(frame.into_data().unwrap());
            }
        }
        assert_eq!((sent, polls), (text.into_bytes(), 7));
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_ready());
    }
}
