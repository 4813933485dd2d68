//! The leap array by itself: adding to it, and summing ten slots.

use std::{hint::black_box, ops::Range};

use sentinel_core::base::{MetricEvent, ResourceType, StatNode as _, WriteStat as _};
use tidegate::{
    Clock as _, Nanos, SystemClock,
    flow::{Event, Layout},
};
use tidegate_core::stats::Window;

use crate::{
    entry::{SENTINEL, start_sentinel},
    race::Racer,
};

pub const ADDING: [(&str, &str); 2] = [
    ("tidegate", "10 slots of 100 ms; the time read for each"),
    (
        SENTINEL,
        "20 slots of 500 ms; a cached clock, in milliseconds",
    ),
];

pub const SUMMING: [(&str, &str); 2] = [
    ("tidegate", "10 slots of 100 ms; the time given"),
    (
        SENTINEL,
        "10 slots of 500 ms; a cached clock, in milliseconds",
    ),
];

fn racer(
    (who, how): (&'static str, &'static str),
    work: impl Fn() + Sync + 'static,
) -> Racer<'static> {
    let pass = move |stretch: Range<usize>| {
        for _ in stretch.clone() {
            work();
        }
        stretch.len()
    };
    Racer {
        who,
        how,
        pass: Box::new(pass),
    }
}

pub fn adding() -> Vec<Racer<'static>> {
    let (clock, window) = (SystemClock::new(), Window::new(Layout::second()));
    start_sentinel();
    let node = sentinel_core::stat::get_or_create_resource_node(
        &"window-add".to_owned(),
        &ResourceType::Common,
    );
    let [first, second] = ADDING;
    vec![
        racer(first, move || window.add(clock.now(), Event::Pass, 1)),
        racer(second, move || node.add_count(MetricEvent::Pass, 1)),
    ]
}

pub fn summing() -> Vec<Racer<'static>> {
    let (window, whole) = (Window::new(Layout::second()), Layout::second().whole());
    let begin = SystemClock::new().now();
    for slot in 0..10 {
        window.add(
            begin.saturating_add(Nanos::from_millis(slot * 100)),
            Event::Pass,
            1,
        );
    }
    let now = begin.saturating_add(Nanos::from_millis(900));
    start_sentinel();
    let node = sentinel_core::stat::get_or_create_resource_node(
        &"window-sum".to_owned(),
        &ResourceType::Common,
    );
    node.add_count(MetricEvent::Pass, 1);
    let view = node
        .generate_read_stat(10, 5_000)
        .expect("a view of half the array");
    let [first, second] = SUMMING;
    vec![
        racer(first, move || {
            black_box(window.sum(black_box(now), Event::Pass, whole));
        }),
        racer(second, move || {
            black_box(view.sum(MetricEvent::Pass));
        }),
    ]
}
