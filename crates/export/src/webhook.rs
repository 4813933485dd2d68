//! Posts each threshold that a key reaches to an operator's URL.
//!
//! A decision only puts the event into a bounded queue, whose places the limits share. A few threads send the events, so one that
//! waits for its answer does not hold the others. An event that failed is put aside, is sent again
//! after pauses that double, and holds no other event. Events that find the queue full, or that
//! failed `ATTEMPTS` times, are dropped and counted. At a stop, what waits is sent once more, and
//! what still fails is returned.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use parking_lot::{Condvar, Mutex, MutexGuard};
use tidegate_core::{Clock as _, Nanos, clock::SystemClock};
use tidegate_service::{
    observe::reached::{Reached, WebhookStats},
    shares::Shares,
};
use ureq::Agent;

use crate::agent;

/// The places for events, which the limits share: one limit has at most half of them.
const PLACES: usize = 2_048;
/// The number of events that are sent at the same time.
const SENDERS: usize = 4;
/// How often an event is sent until it is dropped: for about four minutes.
const ATTEMPTS: u32 = 8;
/// The pause after the first failure.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest time of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The queue, and the threads that send from it. Dropping it ends them after the events that they
/// send.
#[derive(Debug)]
pub struct Webhook {
    shared: Arc<Shared>,
    senders: Mutex<Vec<thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    url: String,
    agent: Agent,
    pause: Duration,
    stats: Arc<WebhookStats>,
    clock: SystemClock,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    /// The events by limit, with those that are being sent.
    places: Shares<String>,
    /// In the order in which they came.
    fresh: VecDeque<Reached>,
    /// By the time of their next attempt, and a number that separates equal times.
    failing: BTreeMap<(Nanos, u64), Failing>,
    failed: u64,
    /// Until when events are sent after a stop.
    stop_at: Option<Nanos>,
}

#[derive(Debug)]
struct Failing {
    event: Reached,
    attempts: u32,
}

impl Webhook {
    /// Posts to this URL.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn to(url: String, stats: Arc<WebhookStats>) -> io::Result<Self> {
        Self::with_pause(url, PAUSE, stats)
    }

    fn with_pause(url: String, pause: Duration, stats: Arc<WebhookStats>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            url,
            agent: agent::new(&agent::of_this_machine(), TIMEOUT),
            pause,
            stats,
            clock: SystemClock::new(),
            queue: Mutex::new(Queue::new()),
            changed: Condvar::new(),
        });
        let sender = |_| {
            let its = Arc::clone(&shared);
            thread::Builder::new()
                .name("webhook".to_owned())
                .spawn(move || its.run())
        };
        let senders = (0..SENDERS).map(sender).collect::<io::Result<_>>();
        Ok(Self {
            senders: Mutex::new(senders.inspect_err(|_| shared.stop(Duration::ZERO))?),
            shared,
        })
    }

    pub fn post(&self, event: Reached) {
        let mut queue = self.shared.lock();
        if queue.stop_at.is_some() || !queue.places.enter(event.limit.clone()) {
            drop(queue);
            self.shared.stats.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.fresh.push_back(event);
        drop(queue);
        self.shared.changed.notify_one();
    }

    /// Sends what waits once more, for at most `within`, and ends. Returns the events that were not
    /// sent. Call it on a thread that may block.
    pub fn finish(&self, within: Duration) -> Vec<Reached> {
        self.shared.stop(within);
        let mut senders = self.senders.lock();
        for sender in senders.drain(..) {
            // A sender that panicked has sent nothing more.
            let _ = sender.join();
        }
        let mut queue = self.shared.lock();
        let failing = std::mem::take(&mut queue.failing).into_values();
        let failing: Vec<_> = failing.map(|failing| failing.event).collect();
        let left: Vec<_> = queue.fresh.drain(..).chain(failing).collect();
        self.shared
            .stats
            .dropped
            .fetch_add(left.len() as u64, Ordering::Relaxed);
        left
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.shared.stop(Duration::ZERO);
    }
}

impl Queue {
    fn new() -> Self {
        Self {
            places: Shares::new(PLACES),
            fresh: VecDeque::new(),
            failing: BTreeMap::new(),
            failed: 0,
            stop_at: None,
        }
    }

    /// The next event whose time has come. After a stop, every event's has, once.
    fn next(&mut self, now: Nanos) -> Option<Failing> {
        if let Some(event) = self.fresh.pop_front() {
            return Some(Failing { event, attempts: 0 });
        }
        let first = self.failing.first_entry()?;
        let is_due = match self.stop_at {
            None => first.key().0 <= now,
            Some(_) => first.key().0 < Nanos::MAX,
        };
        is_due.then(|| first.remove())
    }

    fn put_aside(&mut self, due: Nanos, failing: Failing) {
        let due = if self.stop_at.is_some() {
            Nanos::MAX
        } else {
            due
        };
        self.failed += 1;
        self.failing.insert((due, self.failed), failing);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No step panics midway.
        self.queue.lock()
    }

    fn stop(&self, within: Duration) {
        let until = self.clock.now().saturating_add(within.into());
        self.lock().stop_at.get_or_insert(until);
        self.changed.notify_all();
    }

    fn run(&self) {
        while let Some((next, within)) = self.next() {
            self.send(next, within);
        }
    }

    /// Waits for the next event. `None` after a stop.
    fn next(&self) -> Option<(Failing, Duration)> {
        let mut queue = self.lock();
        loop {
            let now = self.clock.now();
            let within = match queue.stop_at {
                None => TIMEOUT,
                Some(until) if until <= now => return None,
                Some(until) => TIMEOUT.min(until.saturating_since(now).into()),
            };
            if let Some(next) = queue.next(now) {
                return Some((next, within));
            }
            if queue.stop_at.is_some() {
                return None;
            }
            match queue.failing.first_key_value() {
                None => self.changed.wait(&mut queue),
                Some((&(due, _), _)) => {
                    let span = due.saturating_since(now).into();
                    self.changed.wait_for(&mut queue, span);
                }
            }
        }
    }

    fn send(&self, next: Failing, within: Duration) {
        let body = serde_json::to_vec(&next.event).unwrap_or_default();
        let answer = self
            .agent
            .post(&self.url)
            .content_type("application/json")
            .config()
            .timeout_global(Some(within))
            .build()
            .send(&body[..]);
        let (why, may_help) = match answer {
            Ok(answer) if answer.status().is_success() => {
                self.stats.sent.fetch_add(1, Ordering::Relaxed);
                self.lock().places.leave(&next.event.limit);
                return;
            }
            Ok(answer) if answer.status().is_redirection() => (
                format!(
                    "{}: redirects are not followed; give --webhook the final address",
                    answer.status()
                ),
                false,
            ),
            // The receiver refuses this event: it will refuse it again.
            Ok(answer) => {
                let status = answer.status().as_u16();
                (
                    answer.status().to_string(),
                    status >= 500 || [408, 425, 429].contains(&status),
                )
            }
            Err(error) => (error.to_string(), true),
        };
        self.stats.failed.fetch_add(1, Ordering::Relaxed);
        let attempts = next.attempts + 1;
        let is_last = !may_help || attempts == ATTEMPTS;
        tracing::warn!(why, attempt = attempts, is_last, "the webhook failed");
        if is_last {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
            self.lock().places.leave(&next.event.limit);
            return;
        }
        let pause = self.pause.saturating_mul(2_u32.pow(next.attempts));
        let due = self.clock.now().saturating_add(pause.into());
        self.lock().put_aside(due, Failing { attempts, ..next });
        // Another sender may wait for a later event.
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
    };

    use super::*;

    fn event(percent: u8) -> Reached {
        Reached {
            limit: "l".into(),
            key: "k".into(),
            percent,
            used: 8,
            of: 10,
            time_ms: 5,
        }
    }

    /// Polls for at most ten seconds.
    fn eventually(what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..1_000 {
            if is_so() {
                return;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
        panic!("not within ten seconds: {what}");
    }

    fn counts(webhook: &Webhook) -> [u64; 3] {
        let WebhookStats {
            sent,
            failed,
            dropped,
        } = &*webhook.shared.stats;
        [sent, failed, dropped].map(|counter| counter.load(Ordering::Relaxed))
    }

    /// The next post, whose body ends with the event.
    fn accept(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            let mut piece = [0; 1024];
            let read = stream.read(&mut piece).unwrap();
            request.extend_from_slice(&piece[..read]);
        }
        stream
    }

    fn answer(mut stream: &TcpStream, status: u16, more: &str) {
        let head =
            format!("HTTP/1.1 {status} x\r\n{more}content-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
    }

    fn receiver() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        (listener, url)
    }

    #[test]
    fn a_redirect_is_a_failure_and_is_not_followed() {
        let ((listener, url), (other, elsewhere)) = (receiver(), receiver());
        other.set_nonblocking(true).unwrap();
        for (count, status) in [301, 302, 303, 307, 308].into_iter().enumerate() {
            let webhook = Webhook::to(url.clone(), Arc::default()).unwrap();
            webhook.post(event(80));
            answer(
                &accept(&listener),
                status,
                &format!("location: {elsewhere}\r\n"),
            );
            eventually("it is dropped", || counts(&webhook) == [0, 1, 1]);
            assert!(
                other.accept().is_err(),
                "{count}: nobody came from {status}"
            );
        }
    }

    #[test]
    fn an_event_that_fails_or_gets_no_answer_holds_no_other_event() {
        let (listener, url) = receiver();
        let pause = Duration::from_secs(1_000);
        let webhook = Webhook::with_pause(url, pause, Arc::default()).unwrap();
        webhook.post(event(1));
        let _never_answered = accept(&listener);
        webhook.post(event(2));
        answer(&accept(&listener), 503, "");
        eventually("it is put aside", || counts(&webhook)[1] == 1);
        for percent in 3..10 {
            webhook.post(event(percent));
            answer(&accept(&listener), 200, "");
        }
        eventually("the others are sent", || counts(&webhook) == [7, 1, 0]);
    }

    #[test]
    fn what_waits_at_a_stop_is_sent_or_returned() {
        let (listener, url) = receiver();
        let pause = Duration::from_secs(1_000);
        let webhook = Webhook::with_pause(url, pause, Arc::default()).unwrap();
        for percent in [1, 2] {
            webhook.post(event(percent));
            answer(&accept(&listener), 503, "");
        }
        eventually("both are put aside", || counts(&webhook)[1] == 2);
        let left = thread::scope(|scope| {
            let left = scope.spawn(|| webhook.finish(Duration::from_secs(5)));
            let (one, other) = (accept(&listener), accept(&listener));
            answer(&one, 200, "");
            answer(&other, 503, "");
            left.join().unwrap()
        });
        assert_eq!(left.len(), 1);
        assert_eq!(counts(&webhook), [1, 3, 1]);
        webhook.post(event(3));
        assert_eq!(
            counts(&webhook),
            [1, 3, 2],
            "nothing is taken after the end"
        );
    }

    #[test]
    fn what_is_refused_or_finds_no_room_is_dropped_and_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let webhook =
            Webhook::with_pause(url.clone(), Duration::from_millis(1), Arc::default()).unwrap();
        webhook.post(event(80));
        for status in [429, 200] {
            answer(&accept(&listener), status, "");
        }
        eventually("it is taken", || counts(&webhook) == [1, 1, 0]);
        webhook.post(event(90));
        answer(&accept(&listener), 400, "");
        eventually("it is refused", || counts(&webhook) == [1, 2, 1]);
        // None of these is answered, so the others wait.
        let webhook = Webhook::to(url.clone(), Arc::default()).unwrap();
        let of = |limit: &str| Reached {
            limit: limit.into(),
            ..event(2)
        };
        (0..SENDERS).for_each(|_| webhook.post(of("flood")));
        let unanswered: Vec<_> = (0..SENDERS).map(|_| accept(&listener)).collect();
        (SENDERS..PLACES / 2 + 7).for_each(|_| webhook.post(of("flood")));
        assert_eq!(counts(&webhook), [0, 0, 7]);
        // The events of another limit have places.
        (0..100).for_each(|_| webhook.post(of("other")));
        assert_eq!(counts(&webhook), [0, 0, 7]);
        drop((unanswered, webhook, listener));
        let webhook = Webhook::with_pause(url, Duration::from_nanos(1), Arc::default()).unwrap();
        webhook.post(event(3));
        eventually("it is given up", || {
            counts(&webhook) == [0, u64::from(ATTEMPTS), 1]
        });
    }
}
