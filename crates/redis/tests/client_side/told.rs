//! Failures of a store are counted and logged in few lines.
#![cfg(feature = "servers")]

use crate::waiting;

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate_core::{Policy, Quota, algorithm::Concurrency};
use tidegate_redis::{Health, Mode, Part, SharedLimit, Source, Store, StoreError};
use tidegate_redis_servers::{PATIENCE, Reply, Server};
use tokio::time::sleep;
use waiting::{Until, reach, until};

fn quota(text: &str) -> Quota {
    text.parse().expect("the quota is well formed")
}

fn limit(store: &Store, name: &str) -> SharedLimit {
    let policy = Policy::sliding_window(quota("1000/1h"));
    let limit = store
        .limit(name, policy)
        .deadline(PATIENCE)
        .remember_denials(false);
    limit.build().expect("the policy can be shared")
}

/// The lines that this thread logs.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Lines {
    /// Every test in this file captures lines: `tracing` caches for all threads whether a line has
    /// a subscriber, and a thread without one might be the first to ask.
    fn capture() -> (Self, tracing::subscriber::DefaultGuard) {
        let lines = Self::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        (lines, tracing::subscriber::set_default(subscriber))
    }

    fn with(&self, text: &str) -> Vec<String> {
        let bytes = self
            .0
            .lock()
            .expect("no thread panics with the lines")
            .clone();
        let all = String::from_utf8(bytes).expect("lines are text");
        all.lines()
            .filter(|line| line.contains(text))
            .map(str::to_owned)
            .collect()
    }
}

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .expect("no thread panics with the lines")
            .extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn an_outage_logs_one_line_when_it_begins_and_one_when_it_ends() {
    let (lines, _guard) = Lines::capture();
    let mut server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let limit = limit(&store, "x");
    assert_eq!(limit.acquire("k", 1).await.source, Source::Store);
    assert_eq!(lines.with("").len(), 0, "{:?}", lines.with(""));
    server.kill();
    // Several heartbeats and a thousand requests fail.
    until("it is found to be down", || store.health() == Health::Down).await;
    let failed = Until::new("six heartbeats are refused");
    while failed.is_yet_to_be(store.stats().errors_of("refused") >= 6) {
        for at in 0..100 {
            let _ = limit.acquire(format!("k{at}"), 1).await;
        }
        sleep(Duration::from_millis(5)).await;
    }
    let down = lines.with("the shared store is down");
    assert!(
        down.len() == 1 && down[0].contains("cannot reach the store"),
        "{down:?}"
    );
    assert!(
        down[0].contains("WARN") && down[0].contains(&server.port().to_string()),
        "{down:?}"
    );
    server.start_again();
    until("it is back", || store.health() == Health::Up).await;
    until("that is logged", || {
        lines.with("the shared store is up again").len() == 1
    })
    .await;
    // A broken connection may be logged as well.
    let others: Vec<_> = lines
        .with("")
        .into_iter()
        .filter(|line| !line.contains("the shared store is down"))
        .collect();
    assert!(others.len() <= 2, "{others:?}");
}

#[tokio::test]
async fn a_time_that_no_clock_shows_is_logged_once_a_minute() {
    let (lines, _guard) = Lines::capture();
    let server = Server::start(&[]);
    let defect = ["ZADD", "tidegate:nodes", "4611686018427", "clock"];
    server.ask(&defect);
    let store = reach(&server.address()).await;
    let text = "ignored a time that the shared store's clock does not show";
    until("it is logged", || lines.with(text).len() == 1).await;
    assert!(lines.with(text)[0].contains("time_ms=4611686018427"));
    let clock = || server.ask(&["ZSCORE", "tidegate:nodes", "clock"]);
    server.ask(&defect);
    until("it is removed again", || clock() == Reply::Nil).await;
    assert_eq!(lines.with(text).len(), 1, "{:?}", lines.with(""));
    assert_eq!(lines.with("the shared store's clock went back").len(), 0);
    assert!(!store.stats().clock_went_back);
}

#[tokio::test]
async fn a_key_of_another_program_is_logged_once_with_its_limit_and_without_the_key() {
    let (lines, _guard) = Lines::capture();
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let (window, log) = (
        limit(&store, "window"),
        store.limit("log", Policy::sliding_log(quota("5/1h")).expect("short")),
    );
    let log = log
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared");
    let key = |limit: &SharedLimit| String::from_utf8(limit.redis_key("alice")).expect("text");
    server.ask(&["LPUSH", &key(&window), "x"]);
    server.ask(&["SET", &key(&log), "no log"]);
    for _ in 0..100 {
        let answer = window.acquire("alice", 1).await;
        assert_eq!(answer.source, Source::Local(StoreError::WrongType));
        assert_eq!(
            log.acquire("alice", 1).await.source,
            Source::Local(StoreError::NotOurs)
        );
    }
    for (text, limit) in [
        ("another type of value", "window"),
        ("another value", "log"),
    ] {
        let told = lines.with(text);
        assert!(
            told.len() == 1 && told[0].contains(&format!("tidegate:{limit}:")),
            "{told:?}"
        );
    }
    assert_eq!(lines.with("alice").len(), 0);
    assert_eq!(store.stats().errors_of("wrong-type"), 100);
    assert_eq!((store.health(), store.stats().opened), (Health::Up, 0));
}

#[tokio::test]
async fn a_joint_decision_without_the_store_counts_one_error() {
    let _lines = Lines::capture();
    let mut server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let limit = limit(&store, "x");
    server.kill();
    until("it is found to be down", || store.health() == Health::Down).await;
    for _ in 0..100 {
        let part = Part {
            limit: &limit,
            key: b"k",
            cost: 1,
        };
        let answers = store
            .acquire_all(&[part])
            .await
            .expect("one key is of one slot");
        assert_eq!(answers[0].source, Source::Local(StoreError::Down));
    }
    assert_eq!(store.stats().errors_of("down"), 100);
}

#[tokio::test]
async fn a_failed_background_report_is_counted() {
    let _lines = Lines::capture();
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let limit = store
        .limit("x", Policy::sliding_window(quota("100000/1h")))
        .mode(Mode::Reported);
    let limit = limit
        .slack(Duration::from_secs(4))
        .deadline(PATIENCE)
        .build()
        .expect("it can be reported");
    while limit.acquire("k", 1).await.source != Source::Lease {}
    let key = String::from_utf8(limit.redis_key("k")).expect("text");
    server.ask(&["DEL", &key]);
    server.ask(&["LPUSH", &key, "x"]);
    // Without further requests, the use is reported in the background.
    until("that has failed", || {
        store.stats().errors_of("wrong-type") > 0
    })
    .await;
}

#[tokio::test]
async fn permits_that_cannot_be_renewed_or_given_back_are_counted() {
    let _lines = Lines::capture();
    let server = Server::start(&[]);
    let store = reach(&server.address()).await;
    let permits: Policy = Concurrency::new(5)
        .hold(Duration::from_hours(1))
        .expect("the hold is short")
        .into();
    let limit = store
        .limit("jobs", permits)
        .deadline(PATIENCE)
        .build()
        .expect("the policy can be shared");
    let mut permit = limit.permit("k", 1).await.expect("there are five");
    let key = String::from_utf8(limit.redis_key("k")).expect("text");
    server.ask(&["SET", &key, "no permits"]);
    let error = permit
        .renew()
        .await
        .expect_err("the key is another program's");
    let counted = || store.stats().errors_of(error.name());
    assert_eq!(counted(), 1, "{error}");
    drop(permit);
    until("giving back has failed", || counted() > 1).await;
}
