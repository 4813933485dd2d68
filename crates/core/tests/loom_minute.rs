//! The minute behind a window, read while a second ends:
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_minute`. Under loom a minute has three
//! seconds.
//!
//! Ending a second is about a hundred steps. Two threads that both do so are more than loom gets
//! through; that they lose nothing is for the stress tests (`stats_concurrency.rs`).
#![cfg(loom)]

use std::time::Duration;

use loom::{sync::Arc, thread};
use tidegate_core::{
    Nanos,
    stats::{Event, Layout, Window},
};

/// A window of one slot of a second: each turn ends a second, and folds it.
fn window() -> Arc<Window> {
    let layout = Layout::new(1, Duration::from_secs(1)).unwrap();
    Arc::new(Window::with_minute(layout).unwrap())
}

fn add(window: &Window, second: u64, n: u64) {
    window.add(Nanos::from_secs(second), Event::Block, n);
}

/// The seconds kept at `now`, with what was counted in each.
fn counted(window: &Window, now: u64) -> Vec<(u64, u64)> {
    let seconds = window.seconds(Nanos::from_secs(now));
    seconds
        .iter()
        .map(|second| (second.start.get() / 1_000_000_000, second.counts.block))
        .collect()
}

/// Explores every interleaving with at most one preemption.
fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(1);
    builder.check(check);
}

#[test]
fn a_reader_sees_each_second_whole() {
    model(|| {
        let window = window();
        add(&window, 1, 1);
        add(&window, 2, 10);
        // The spawned one reads: see `loom_ring.rs`.
        let reader = {
            let window = window.clone();
            thread::spawn(move || counted(&window, 3))
        };
        add(&window, 3, 100);
        let seen = reader.join().unwrap();
        let before = [(1, 1), (2, 10)];
        let turned = [(1, 1), (2, 10), (3, 0)];
        let after = [(1, 1), (2, 10), (3, 100)];
        assert!(
            seen == before || seen == turned || seen == after,
            "{seen:?}"
        );
        assert_eq!(counted(&window, 3), after);
    });
}

#[test]
fn a_reader_sees_the_first_second_while_the_second_one_makes_the_minute() {
    model(|| {
        let window = window();
        add(&window, 2, 1);
        let reader = {
            let window = window.clone();
            thread::spawn(move || counted(&window, 3))
        };
        add(&window, 3, 10);
        let seen = reader.join().unwrap();
        let after = [(2, 1), (3, 10)];
        assert!(
            seen == [(2, 1)] || seen == [(2, 1), (3, 0)] || seen == after,
            "{seen:?}"
        );
        assert_eq!(counted(&window, 3), after);
    });
}
