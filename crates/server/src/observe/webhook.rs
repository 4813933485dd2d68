//! Posts each threshold that a key reaches to an operator's URL.
//!
//! A decision only puts the event into a bounded queue. A thread sends one event after the other, and repeats one that failed with
//! pauses that double. Events that find the queue full, or that failed [`ATTEMPTS`] times, are dropped and counted.

use std::{
    io,
    sync::{Arc, atomic::Ordering, mpsc},
    thread,
    time::Duration,
};

use ureq::Agent;

use super::agent;
use crate::decide::thresholds::{Reached, WebhookStats};

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
pub(crate) struct Webhook {
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
        thread::Builder::new().name("webhook".to_owned()).spawn(move || {
            for event in waiting {
                send(&agent, &url, &event, pause, &its);
            }
        })?;
        Ok(Self { queue, stats })
    }

    pub fn tell(&self, event: Reached) {
        if self.queue.try_send(event).is_err() {
            self.stats.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn send(agent: &Agent, url: &str, event: &Reached, pause: Duration, stats: &WebhookStats) {
    let body = serde_json::to_vec(event).unwrap_or_default();
    for attempt in 0..ATTEMPTS {
        let answer = agent.post(url).content_type("application/json").send(&body[..]);
        let (why, may_help) = match answer {
            Ok(answer) if answer.status().is_success() => {
                stats.sent.fetch_add(1, Ordering::Relaxed);
                return;
            }
            // The receiver refuses this event: it will refuse it again.
            Ok(answer) => {
                let status = answer.status().as_u16();
                (answer.status().to_string(), status >= 500 || [408, 425, 429].contains(&status))
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
        io::{BufRead as _, BufReader, Read as _, Write as _},
        net::TcpListener,
    };

    use tidegate_redis_servers::eventually;

    use super::*;

    /// A receiver that answers with these statuses in order, and the bodies that it got.
    fn receiver(statuses: &'static [u16]) -> (String, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/hook", listener.local_addr().unwrap());
        let (bodies, got) = mpsc::channel();
        thread::spawn(move || {
            for status in statuses {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut length = 0;
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                        length = value.trim().parse().unwrap();
                    }
                    if line == "\r\n" {
                        break;
                    }
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                bodies.send(String::from_utf8(body).unwrap()).unwrap();
                let head = format!("HTTP/1.1 {status} x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
            }
        });
        (url, got)
    }

    fn event(percent: u8) -> Reached {
        Reached { limit: "l".into(), key: "k".into(), percent, used: 8, of: 10, time_ms: 5 }
    }

    fn counts(webhook: &Webhook) -> [u64; 3] {
        let WebhookStats { sent, failed, dropped } = &*webhook.stats;
        [sent, failed, dropped].map(|counter| counter.load(Ordering::Relaxed))
    }

    #[test]
    fn an_event_is_repeated_until_it_is_taken_and_the_next_one_waits() {
        let (url, got) = receiver(&[503, 429, 200, 204]);
        let webhook = Webhook::with_pause(url, Duration::from_millis(1), Arc::default()).unwrap();
        webhook.tell(event(80));
        webhook.tell(event(100));
        eventually("both are taken", || counts(&webhook) == [2, 2, 0]);
        let [first, again, third, next]: [String; 4] =
            got.iter().take(4).collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(first, r#"{"limit":"l","key":"k","percent":80,"used":8,"of":10,"time_ms":5}"#);
        assert!(first == again && again == third && next.contains(r#""percent":100"#), "{next}");
    }

    #[test]
    fn what_is_refused_or_finds_no_room_is_dropped_and_counted() {
        let (url, got) = receiver(&[400, 200]);
        let webhook = Webhook::with_pause(url, Duration::from_millis(1), Arc::default()).unwrap();
        webhook.tell(event(80));
        webhook.tell(event(90));
        eventually("the second is taken", || counts(&webhook) == [1, 1, 1]);
        assert_eq!(got.iter().take(2).count(), 2);
        // Nobody listens there any more, and the thread pauses for long after its first attempt.
        let url = format!("http://{}/", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        let webhook = Webhook::with_pause(url.clone(), Duration::from_secs(1_000), Arc::default()).unwrap();
        webhook.tell(event(1));
        eventually("the thread pauses", || counts(&webhook)[1] == 1);
        (0..WAITING + 7).for_each(|_| webhook.tell(event(2)));
        assert_eq!(counts(&webhook), [0, 1, 7]);
        let webhook = Webhook::with_pause(url, Duration::from_nanos(1), Arc::default()).unwrap();
        webhook.tell(event(3));
        eventually("it is given up", || counts(&webhook) == [0, u64::from(ATTEMPTS), 1]);
    }
}
