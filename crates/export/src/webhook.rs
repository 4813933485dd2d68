//! Posts each threshold that a key reaches to an operator's URL.
//!
//! A decision only puts the event into a bounded queue. A thread sends one event after the other,
//! and repeats one that failed with pauses that double. Events that find the queue full, or that
//! failed `ATTEMPTS` times, are dropped and counted.

use std::{
    io,
    sync::{Arc, atomic::Ordering, mpsc},
    thread,
    time::Duration,
};

use tidegate_service::observe::reached::{Reached, WebhookStats};
use ureq::Agent;

use crate::agent;

/// The maximum number of events that wait.
const WAITING: usize = 1_024;
/// How often an event is sent until it is dropped: for about four minutes.
const ATTEMPTS: u32 = 8;
/// The pause after the first failure.
const PAUSE: Duration = Duration::from_secs(2);
/// The longest time of one attempt.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The queue. Dropping it ends the thread after the event that it sends.
#[derive(Debug)]
pub struct Webhook {
    queue: mpsc::SyncSender<Reached>,
    stats: Arc<WebhookStats>,
}

impl Webhook {
    /// Posts to this URL.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn to(url: String, stats: Arc<WebhookStats>) -> io::Result<Self> {
        Self::with_pause(url, PAUSE, stats)
    }

    fn with_pause(url: String, pause: Duration, stats: Arc<WebhookStats>) -> io::Result<Self> {
        let (queue, waiting) = mpsc::sync_channel(WAITING);
        let its = Arc::clone(&stats);
        let agent = agent::new(&agent::of_this_machine(), TIMEOUT);
        thread::Builder::new()
            .name("webhook".to_owned())
            .spawn(move || {
                for event in waiting {
                    send(&agent, &url, &event, pause, &its);
                }
            })?;
        Ok(Self { queue, stats })
    }

    pub fn post(&self, event: Reached) {
        if self.queue.try_send(event).is_err() {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn send(agent: &Agent, url: &str, event: &Reached, pause: Duration, stats: &WebhookStats) {
    let body = serde_json::to_vec(event).unwrap_or_default();
    for attempt in 0..ATTEMPTS {
        let answer = agent
            .post(url)
            .content_type("application/json")
            .send(&body[..]);
        let (why, may_help) = match answer {
            Ok(answer) if answer.status().is_success() => {
                stats.sent.fetch_add(1, Ordering::Relaxed);
                return;
            }
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
        stats.failed.fetch_add(1, Ordering::Relaxed);
        let is_last = !may_help || attempt + 1 == ATTEMPTS;
        tracing::warn!(why, attempt = attempt + 1, is_last, "the webhook failed");
        if is_last {
            break;
        }
        thread::park_timeout(pause * 2_u32.pow(attempt));
    }
    stats.dropped.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
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
        } = &*webhook.stats;
        [sent, failed, dropped].map(|counter| counter.load(Ordering::Relaxed))
    }

    #[test]
    fn what_is_refused_or_finds_no_room_is_dropped_and_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let webhook =
            Webhook::with_pause(url.clone(), Duration::from_millis(1), Arc::default()).unwrap();
        webhook.post(event(80));
        webhook.post(event(90));
        for status in [400, 429, 200] {
            let (mut stream, _) = listener.accept().unwrap();
            // The body ends with the event.
            let mut request = Vec::new();
            while !request.ends_with(b"}") {
                let mut piece = [0; 1024];
                let read = stream.read(&mut piece).unwrap();
                request.extend_from_slice(&piece[..read]);
            }
            let head =
                format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(head.as_bytes()).unwrap();
        }
        eventually("the second is taken", || counts(&webhook) == [1, 2, 1]);
        // Nobody listens there any more, and the thread pauses for long after its first attempt.
        drop(listener);
        let webhook =
            Webhook::with_pause(url.clone(), Duration::from_secs(1_000), Arc::default()).unwrap();
        webhook.post(event(1));
        eventually("the thread pauses", || counts(&webhook)[1] == 1);
        (0..WAITING + 7).for_each(|_| webhook.post(event(2)));
        assert_eq!(counts(&webhook), [0, 1, 7]);
        let webhook = Webhook::with_pause(url, Duration::from_nanos(1), Arc::default()).unwrap();
        webhook.post(event(3));
        eventually("it is given up", || {
            counts(&webhook) == [0, u64::from(ATTEMPTS), 1]
        });
    }
}
