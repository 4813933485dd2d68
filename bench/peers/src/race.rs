//! Measures several limiters on the same work in turns, so that the machine's good and bad moments
//! fall on all alike.
//!
//! Each round gives every limiter one turn: some time to warm up, then some time in stretches of a
//! millisecond or two, in which all threads of the turn start together. A stretch in which a thread
//! was preempted measures the machine's other work, and is left out (and counted). Waiting for a
//! lock is not preemption: it stays.

mod barrier;
mod turn;

use std::{fmt, ops::Range, time::Duration};

use crate::{figure::Speed, quantile};
use turn::Turn;

/// Runs the decisions of a stretch of the course, and says how many admitted.
pub type Pass<'a> = Box<dyn Fn(Range<usize>) -> usize + Sync + 'a>;

/// The answer that every decision of a work must have, or it would be another work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Admitted,
    Denied,
    Either,
}

/// One of those that are measured.
pub struct Racer<'a> {
    pub who: &'static str,
    pub how: &'static str,
    pub pass: Pass<'a>,
}

/// How a race goes.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub threads: usize,
    pub rounds: usize,
    /// Before each turn's stretches count.
    pub warm_up: Duration,
    /// How long they do.
    pub turn: Duration,
    /// The number of decisions from the course's start to its end, after which it starts again.
    pub course: usize,
    pub expect: Expect,
}

/// Somebody did another work than was asked.
#[derive(Debug)]
pub struct OffCourse {
    who: &'static str,
    expect: Expect,
    admitted: f64,
}

impl fmt::Display for OffCourse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (who, share) = (self.who, self.admitted);
        let expected = if self.expect == Expect::Admitted {
            "admitted"
        } else {
            "denied"
        };
        write!(
            f,
            "{who}: all decisions should have been {expected}, but the share admitted is {share}"
        )
    }
}

impl std::error::Error for OffCourse {}

/// Runs the race; `report` gets each turn's result.
pub fn race(
    racers: &[Racer<'_>],
    rules: &Rules,
    mut report: impl FnMut(usize, &Racer<'_>, f64),
) -> Result<Vec<Speed>, OffCourse> {
    let mut turns: Vec<Vec<Turn>> = racers.iter().map(|_| Vec::new()).collect();
    let mut starts: Vec<turn::Start> = racers.iter().map(|_| turn::Start::default()).collect();
    for round in 0..rules.rounds {
        for ((racer, turns), start) in racers.iter().zip(&mut turns).zip(&mut starts) {
            let turn = turn::run(&racer.pass, rules, start);
            report(round, racer, turn.ns_per_op);
            turns.push(turn);
        }
    }
    racers
        .iter()
        .zip(&turns)
        .map(|(racer, turns)| speed(racer.who, turns, rules.expect))
        .collect()
}

fn speed(who: &'static str, turns: &[Turn], expect: Expect) -> Result<Speed, OffCourse> {
    let sum = |what: fn(&Turn) -> usize| turns.iter().map(what).sum::<usize>() as f64;
    let times: Vec<f64> = turns.iter().map(|turn| turn.ns_per_op).collect();
    let at = |q| quantile::quantile(&times, q).unwrap_or(f64::NAN);
    let admitted = sum(|turn| turn.admitted) / sum(|turn| turn.decisions);
    let fits = match expect {
        Expect::Admitted => admitted >= 1.0,
        Expect::Denied => admitted <= 0.0,
        Expect::Either => true,
    };
    if !fits {
        return Err(OffCourse {
            who,
            expect,
            admitted,
        });
    }
    Ok(Speed {
        ns_per_op: quantile::median(&times).unwrap_or(f64::NAN),
        min: at(0.0),
        max: at(1.0),
        rounds: turns.len(),
        admitted,
        preempted: sum(|turn| turn.preempted) / sum(|turn| turn.stretches),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn rules(threads: usize) -> Rules {
        let (warm_up, turn) = (Duration::from_millis(2), Duration::from_millis(5));
        Rules {
            threads,
            rounds: 3,
            warm_up,
            turn,
            course: 1 << 20,
            expect: Expect::Admitted,
        }
    }

    fn counter(count: &AtomicUsize) -> Racer<'_> {
        let pass = |stretch: Range<usize>| {
            assert!(stretch.end <= 1 << 20, "{stretch:?} is beyond the course");
            stretch
                .map(|_| count.fetch_add(1, Ordering::Relaxed))
                .filter(|&n| n < usize::MAX)
                .count()
        };
        Racer {
            who: "counter",
            how: "",
            pass: Box::new(pass),
        }
    }

    #[test]
    fn everybody_has_a_turn_in_each_round() {
        let counts = [AtomicUsize::new(0), AtomicUsize::new(0)];
        let racers = counts.each_ref().map(counter);
        let mut turns = Vec::new();
        let speeds = race(&racers, &rules(1), |round, _, _| turns.push(round)).unwrap();
        assert_eq!(turns, [0, 0, 1, 1, 2, 2]);
        for speed in speeds {
            assert!(
                speed.min > 0.0 && speed.min <= speed.ns_per_op && speed.ns_per_op <= speed.max
            );
            assert_eq!((speed.rounds, speed.admitted), (3, 1.0));
        }
    }

    #[test]
    fn two_threads_run_to_the_end() {
        let count = AtomicUsize::new(0);
        assert!(race(&[counter(&count)], &rules(2), |_, _, _| ()).is_ok());
    }

    #[test]
    fn whoever_denies_what_should_be_admitted_is_called_off() {
        let racer = Racer {
            who: "miser",
            how: "",
            pass: Box::new(|stretch| stretch.len() - 1),
        };
        let error = race(&[racer], &rules(1), |_, _, _| ()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("miser: all decisions should have been admitted")
        );
    }
}
