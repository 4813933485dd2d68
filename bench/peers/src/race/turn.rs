//! One turn of one racer.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{Pass, Rules, barrier::Barrier};
use crate::system;

/// How long a stretch should be at least. Short, so that few are preempted; long beside the start.
const STRETCH: Duration = Duration::from_micros(1_500);

/// Where a racer's next turn begins, and how many decisions make a stretch.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    at: usize,
    stretch: usize,
}

impl Default for Start {
    fn default() -> Self {
        Self { at: 0, stretch: 1_024 }
    }
}

/// What came of a turn.
#[derive(Clone, Copy, Debug)]
pub struct Turn {
    pub ns_per_op: f64,
    pub decisions: usize,
    pub admitted: usize,
    pub stretches: usize,
    pub preempted: usize,
}

/// A thread's part in a stretch.
#[derive(Clone, Copy, Debug)]
struct Part {
    time: Duration,
    decisions: usize,
    admitted: usize,
    preempted: bool,
}

/// What the threads do next; the first of them says so.
const WARM_UP: usize = 0;
const MEASURE: usize = 1;
const STOP: usize = 2;

pub fn run(pass: &Pass<'_>, rules: &Rules, start: &mut Start) -> Turn {
    let (barrier, phase, stretch) =
        (Barrier::new(rules.threads), AtomicUsize::new(WARM_UP), AtomicUsize::new(start.stretch));
    let first = *start;
    let thread = |number: usize| {
        // The threads begin far from each other.
        let mut at = (first.at + rules.course / rules.threads * number) % rules.course;
        let (begun, mut parts, mut last) = (Instant::now(), Vec::new(), Duration::ZERO);
        loop {
            if number == 0 {
                decide_phase(&phase, &stretch, rules, begun.elapsed(), last);
            }
            // Two lines: nobody reads the phase before it is decided, and nobody decides before all have read it.
            barrier.wait();
            let (now, decisions) = (phase.load(Ordering::Relaxed), stretch.load(Ordering::Relaxed));
            let before = system::preemptions().ok();
            barrier.wait();
            if now == STOP {
                return (at, parts);
            }
            if at + decisions > rules.course {
                at = 0;
            }
            let since = Instant::now();
            let admitted = pass(at..at + decisions);
            last = since.elapsed();
            at += decisions;
            if now == MEASURE {
                let preempted = system::preemptions().ok() != before;
                parts.push(Part { time: last, decisions, admitted, preempted });
            }
        }
    };
    let results: Vec<(usize, Vec<Part>)> = thread::scope(|scope| {
        let thread = &thread;
        let threads: Vec<_> = (0..rules.threads).map(|number| scope.spawn(move || thread(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a racer does not panic")).collect()
    });
    *start = Start { at: results.first().map_or(0, |(at, _)| *at), stretch: stretch.into_inner() };
    let parts: Vec<Vec<Part>> = results.into_iter().map(|(_, parts)| parts).collect();
    sum_up(&parts)
}

/// Warm up until the time is over and a stretch is long enough, measure, stop.
fn decide_phase(
    phase: &AtomicUsize,
    stretch: &AtomicUsize,
    rules: &Rules,
    elapsed: Duration,
    last: Duration,
) {
    let now = phase.load(Ordering::Relaxed);
    let decisions = stretch.load(Ordering::Relaxed);
    if now == WARM_UP && last < STRETCH && decisions <= rules.course / rules.threads / 8 {
        // At the very beginning there was no last one yet.
        if !last.is_zero() {
            stretch.store(decisions * 2, Ordering::Relaxed);
        }
    } else if now == WARM_UP && elapsed >= rules.warm_up {
        phase.store(MEASURE, Ordering::Relaxed);
    } else if now == MEASURE && elapsed >= rules.warm_up + rules.turn {
        phase.store(STOP, Ordering::Relaxed);
    }
}

/// Of the stretches in which nobody was preempted; of all, where there are none.
fn sum_up(threads: &[Vec<Part>]) -> Turn {
    let stretches = threads.first().map_or(0, Vec::len);
    let preempted: Vec<bool> =
        (0..stretches).map(|at| threads.iter().any(|parts| parts[at].preempted)).collect();
    let none_left = preempted.iter().all(|&preempted| preempted);
    let (mut time, mut timed) = (Duration::ZERO, 0);
    for parts in threads {
        for (part, &preempted) in parts.iter().zip(&preempted) {
            if none_left || !preempted {
                time += part.time;
                timed += part.decisions;
            }
        }
    }
    let all = threads.iter().flatten();
    Turn {
        ns_per_op: time.as_nanos() as f64 / timed as f64,
        decisions: all.clone().map(|part| part.decisions).sum(),
        admitted: all.map(|part| part.admitted).sum(),
        stretches,
        preempted: preempted.iter().filter(|&&preempted| preempted).count(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(micros: u64, preempted: bool) -> Part {
        Part { time: Duration::from_micros(micros), decisions: 1_000, admitted: 900, preempted }
    }

    #[test]
    fn a_stretch_counts_only_if_no_thread_was_preempted_in_it() {
        let one = vec![part(10, false), part(500, true), part(10, false)];
        let two = vec![part(20, false), part(20, false), part(900, true)];
        let turn = sum_up(&[one, two]);
        assert!((turn.ns_per_op - 15.0).abs() < 1e-9);
        assert_eq!((turn.stretches, turn.preempted), (3, 2));
        assert_eq!((turn.decisions, turn.admitted), (6_000, 5_400));
    }

    #[test]
    fn where_all_were_preempted_all_count() {
        let turn = sum_up(&[vec![part(10, true), part(30, true)]]);
        assert!((turn.ns_per_op - 20.0).abs() < 1e-9);
    }
}
