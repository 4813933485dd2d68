//! The targets of the table of figures, and how far they are met.

use crate::figure::{Figure, Flood, Measure};

/// A measured number and the most that it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    pub what: String,
    pub value: f64,
    pub most: f64,
}

impl Verdict {
    pub fn is_met(&self) -> bool {
        self.value <= self.most
    }
}

/// The clock read that the targets in nanoseconds were set for: on another machine they move with
/// it.
const CLOCK_READ: f64 = 9.0;

/// Nanoseconds by work, on one thread, where reading the clock takes [`CLOCK_READ`].
const NANOSECONDS: &[(&str, f64)] = &[
    ("direct-sliding-window", 20.0),
    ("entry-exit-no-rule", 45.0),
    ("entry-exit", 60.0),
    ("entry-exit-four-kinds", 120.0),
    ("window-add", CLOCK_READ + 10.0),
];

/// This one reads no clock.
const WINDOW_SUM: f64 = 10.0;

const BYTES_PER_KEY: f64 = 48.0;
const BYTES_PER_RESOURCE: f64 = 2_000.0;

const MIB: f64 = 1_048_576.0;

/// What "flat" is, in MiB: less growth than this is the measuring's own.
const FLAT: f64 = 1.0;

/// The work, its threads, how much of the fastest of whom.
const RATIOS: &[(&str, usize, f64, &[&str])] = &[
    ("direct-token-bucket", 1, 1.1, &["governor"]),
    ("direct-token-bucket", 2, 0.7, &["governor"]),
    ("keyed-zipf-1m", 1, 0.5, &["governor", "rate-net"]),
    ("keyed-zipf-1m", 2, 0.5, &["governor", "rate-net"]),
    ("keyed-batch", 1, 0.5, &["one-by-one"]),
    ("keyed-batch", 2, 0.5, &["one-by-one"]),
    ("keyed-zipf-1m-sliding-window", 1, 0.6, &["rate-net"]),
    ("keyed-zipf-1m-sliding-window", 2, 0.6, &["rate-net"]),
    ("keyed-zipf-1m-sliding-counter", 1, 0.6, &["rate-net"]),
    ("keyed-zipf-1m-sliding-counter", 2, 0.6, &["rate-net"]),
    ("shares-1m", 1, 2.5, &["keyed"]),
    ("shares-1m", 2, 2.5, &["keyed"]),
    ("entry-exit", 1, 1.0 / 12.0, &["sentinel-core"]),
    ("entry-exit", 2, 1.0 / 12.0, &["sentinel-core"]),
];

/// The targets for which there are figures.
pub fn verdicts(figures: &[Figure]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for &(work, threads, most, rivals) in RATIOS {
        let fastest = rivals
            .iter()
            .filter_map(|who| Some((speed(figures, work, who, threads)?, *who)))
            .min_by(|a, b| a.0.total_cmp(&b.0));
        if let (Some(mine), Some((theirs, who))) =
            (speed(figures, work, "tidegate", threads), fastest)
        {
            let what = format!("{work}, {threads} thread(s): tidegate / {who}");
            verdicts.push(Verdict {
                what,
                value: mine / theirs,
                most,
            });
        }
    }
    if let Some(clock) = speed(figures, "clock-read", "quanta", 1) {
        for &(work, most) in NANOSECONDS {
            let Some(value) = speed(figures, work, "tidegate", 1) else {
                continue;
            };
            let what = format!("{work}, 1 thread: ns where a clock read is {clock:.1}");
            verdicts.push(Verdict {
                what,
                value,
                most: most * clock / CLOCK_READ,
            });
        }
    }
    if let Some(value) = speed(figures, "window-sum", "tidegate", 1) {
        verdicts.push(Verdict {
            what: "window-sum, 1 thread: ns".to_owned(),
            value,
            most: WINDOW_SUM,
        });
    }
    for figure in figures.iter().filter(|figure| figure.who == "tidegate") {
        match figure.measure {
            Measure::Memory(memory) => {
                let (what, most) = match &*figure.work {
                    "resource-memory" => ("resource", BYTES_PER_RESOURCE),
                    _ => ("key", BYTES_PER_KEY),
                };
                let what = format!("{}, {} {what}s: bytes a {what}", figure.work, memory.keys);
                verdicts.push(Verdict {
                    what,
                    value: memory.bytes_per_key,
                    most,
                });
            }
            Measure::Flood(flood) => flood_verdicts(figures, &figure.work, &flood, &mut verdicts),
            Measure::Speed(_) => {}
        }
    }
    verdicts
}

fn flood_verdicts(figures: &[Figure], work: &str, mine: &Flood, verdicts: &mut Vec<Verdict>) {
    let rate_net = figures.iter().find_map(|figure| match figure.measure {
        Measure::Flood(flood) if figure.work == work && figure.who == "rate-net" => Some(flood),
        _ => None,
    });
    let mut say = |what: &str, value: f64, most: f64| {
        verdicts.push(Verdict {
            what: format!("{work}: {what}"),
            value,
            most,
        });
    };
    if let Some(theirs) = rate_net {
        say(
            "p99.9 of a real key, tidegate / rate-net",
            mine.p999 as f64 / theirs.p999 as f64,
            2.0,
        );
    }
    say("limited real keys that were reset", mine.resets as f64, 0.0);
    let grown = (mine.rss_end as f64 - mine.rss_full as f64) / MIB;
    say("resident MiB more at the end than when full", grown, FLAT);
}

fn speed(figures: &[Figure], work: &str, who: &str, threads: usize) -> Option<f64> {
    figures.iter().find_map(|figure| match figure.measure {
        Measure::Speed(speed)
            if figure.work == work && figure.who == who && figure.threads == threads =>
        {
            Some(speed.ns_per_op)
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        figure::{Memory, Speed},
        work::Work,
    };

    fn figure(work: &str, who: &str, ns_per_op: f64) -> Figure {
        let speed = Speed {
            ns_per_op,
            min: 0.0,
            max: 0.0,
            rounds: 1,
            admitted: 1.0,
            preempted: 0.0,
        };
        let (work, who, how) = (work.into(), who.into(), String::new());
        Figure {
            work,
            who,
            how,
            threads: 1,
            measure: Measure::Speed(speed),
        }
    }

    #[test]
    fn the_fastest_of_the_rivals_is_the_measure() {
        let works = "keyed-zipf-1m";
        let figures = [
            figure(works, "tidegate", 90.0),
            figure(works, "governor", 200.0),
            figure(works, "rate-net", 300.0),
        ];
        let verdicts = verdicts(&figures);
        assert_eq!(verdicts.len(), 1);
        assert!((verdicts[0].value - 0.45).abs() < 1e-9 && verdicts[0].is_met());
        assert!(verdicts[0].what.ends_with("tidegate / governor"));
    }

    #[test]
    fn targets_in_nanoseconds_move_with_the_clock() {
        let figures = [
            figure("direct-sliding-window", "tidegate", 30.0),
            figure("clock-read", "quanta", 18.0),
        ];
        assert!((verdicts(&figures)[0].most - 40.0).abs() < 1e-9);
    }

    #[test]
    fn forty_eight_bytes_a_key_are_the_most() {
        let memory = Memory {
            bytes_per_key: 48.5,
            keys: 10,
            max_keys: 16,
            held: Some(10),
            resident_bytes: 485,
        };
        let figure = Figure {
            measure: Measure::Memory(memory),
            ..figure("keyed-memory", "tidegate", 0.0)
        };
        assert!(!verdicts(&[figure])[0].is_met());
    }

    #[test]
    fn targets_are_set_for_works_that_exist() {
        let works = RATIOS
            .iter()
            .map(|(work, ..)| work)
            .chain(NANOSECONDS.iter().map(|(work, _)| work));
        for work in works.chain(&["window-sum", "resource-memory"]) {
            assert!(
                Work::ALL.iter().any(|known| known.name() == *work),
                "{work}"
            );
        }
    }
}
