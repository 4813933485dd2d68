//! The cost of reading the time: the floor of every decision.

use std::{hint::black_box, ops::Range, time::Instant};

use tidegate::{Clock as _, SystemClock};

use crate::race::Racer;

fn racer<T>(
    who: &'static str,
    how: &'static str,
    read: impl Fn() -> T + Sync + 'static,
) -> Racer<'static> {
    let pass = move |stretch: Range<usize>| {
        for _ in stretch.clone() {
            black_box(read());
        }
        stretch.len()
    };
    Racer {
        who,
        how,
        pass: Box::new(pass),
    }
}

pub fn racers() -> Vec<Racer<'static>> {
    let (tidegate, quanta) = (SystemClock::new(), quanta::Clock::new());
    vec![
        racer(
            "tidegate",
            "SystemClock: epoch time, by quanta",
            move || tidegate.now(),
        ),
        racer("quanta", "time stamp counter", move || quanta.now()),
        racer("std", "Instant::now", Instant::now),
    ]
}
