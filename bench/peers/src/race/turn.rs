//! One turn of one racer.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use super::{Pass, Rules, barrier::Barrier};
use crate::system;

/// The length of a stretch: long compared with its start, short, so that few are preempted.
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(3);

/// The number of stretches that should count. On a busy machine a turn goes on for them, up to
/// `PATIENCE` times its length.
const ENOUGH: usize = 10;
const PATIENCE: u32 = 5;

/// Where a racer's next turn begins, and how many decisions make a stretch.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    at: usize,
    stretch: usize,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            at: 0,
            stretch: 1_024,
        }
    }
}

/// The result of a turn.
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

/// The next step of the threads.
const WARM_UP: usize = 0;
const MEASURE: usize = 1;
const STOP: usize = 2;

/// The state that the threads of a turn share. The first of them decides.
struct Shared<'a> {
    rules: &'a Rules,
    barrier: Barrier,
    phase: AtomicUsize,
    /// Decisions in a stretch, for each thread.
    stretch: AtomicUsize,
    /// Stretches that count and in which a thread was not preempted, all threads together.
    clean: AtomicUsize,
}

pub fn run(pass: &Pass<'_>, rules: &Rules, start: &mut Start) -> Turn {
    let shared = &Shared {
        rules,
        barrier: Barrier::new(rules.threads),
        phase: AtomicUsize::new(WARM_UP),
        stretch: AtomicUsize::new(start.stretch),
        clean: AtomicUsize::new(0),
    };
    let first = start.at;
    let results: Vec<(usize, Vec<Part>)> = thread::scope(|scope| {
        let threads: Vec<_> = (0..rules.threads)
            .map(|number| scope.spawn(move || shared.run(pass, number, first)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a racer does not panic"))
            .collect()
    });
    let at = results.first().map_or(0, |(at, _)| *at);
    *start = Start {
        at,
        stretch: shared.stretch.load(Ordering::Relaxed),
    };
    let parts: Vec<Vec<Part>> = results.into_iter().map(|(_, parts)| parts).collect();
    sum_up(&parts)
}

impl Shared<'_> {
    /// One thread's turn: where it came to, and its parts in the stretches that count.
    fn run(&self, pass: &Pass<'_>, number: usize, first: usize) -> (usize, Vec<Part>) {
        let rules = self.rules;
        system::keep_apart(number, rules.threads);
        // The threads begin far from each other.
        let mut at = (first + rules.course / rules.threads * number) % rules.course;
        let (begun, mut parts, mut last) = (Instant::now(), Vec::new(), Duration::ZERO);
        loop {
            if number == 0 {
                self.decide(begun.elapsed(), last);
            }
            // Two lines: no thread reads the phase before it is decided, and it is not decided
            // before all have read the last one.
            self.barrier.wait();
            let phase = self.phase.load(Ordering::Relaxed);
            let decisions = self.stretch.load(Ordering::Relaxed);
            let before = system::preemptions().ok();
            self.barrier.wait();
            if phase == STOP {
                return (at, parts);
            }
            if at + decisions > rules.course {
                at = 0;
            }
            let since = Instant::now();
            let admitted = pass(at..at + decisions);
            last = since.elapsed();
            at += decisions;
            if phase == MEASURE {
                let preempted = system::preemptions().ok() != before;
                self.clean
                    .fetch_add(usize::from(!preempted), Ordering::Relaxed);
                parts.push(Part {
                    time: last,
                    decisions,
                    admitted,
                    preempted,
                });
            }
        }
    }

    /// Warm up until the time is over, measure until the time is over and enough of it counts,
    /// stop. `last` is how long the last stretch took; nothing at the very beginning.
    fn decide(&self, elapsed: Duration, last: Duration) {
        let Rules {
            warm_up,
            turn,
            threads,
            course,
            ..
        } = *self.rules;
        let stretch = self.stretch.load(Ordering::Relaxed);
        match self.phase.load(Ordering::Relaxed) {
            WARM_UP if elapsed >= warm_up => self.phase.store(MEASURE, Ordering::Relaxed),
            WARM_UP if !last.is_zero() && last < SHORTEST && stretch <= course / threads / 8 => {
                self.stretch.store(stretch * 2, Ordering::Relaxed);
            }
            WARM_UP if last > LONGEST => {
                self.stretch.store((stretch / 2).max(1), Ordering::Relaxed)
            }
            MEASURE if elapsed >= warm_up + turn => {
                let enough = self.clean.load(Ordering::Relaxed) >= ENOUGH * threads;
                if enough || elapsed >= warm_up + turn * PATIENCE {
                    self.phase.store(STOP, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }
}

/// Of the stretches without preemption; of all, if every stretch had one.
fn sum_up(threads: &[Vec<Part>]) -> Turn {
    let stretches = threads.first().map_or(0, Vec::len);
    let preempted: Vec<bool> = (0..stretches)
        .map(|at| threads.iter().any(|parts| parts[at].preempted))
        .collect();
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
        Part {
            time: Duration::from_micros(micros),
            decisions: 1_000,
            admitted: 900,
            preempted,
        }
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
