//! A discrete-event simulation of a service behind a gate. Calls arrive at random, queue for a
//! worker, and take a random time from a distribution. The simulation uses the gate's manual clock
//! and a seeded random generator, so a run gives the same figures everywhere.
#![allow(dead_code, reason = "the test and the example each use a part")]
#![allow(clippy::cast_sign_loss, reason = "times are positive")]

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    sync::Arc,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    Gate, ManualTimer, OwnedGuard,
    rules::{AdaptiveAlgorithm, AdaptiveRule, Aimd, Gradient2, IsolationRule, Rules, Vegas},
};

/// The distribution of service times, with a mean of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    Exponential,
    /// The standard deviation of the logarithm is 1.
    LogNormal,
    /// Uniform from 0.8 to 1.2.
    Even,
    /// As `Even`, but one call in a hundred takes ten times as long.
    OneInAHundred,
    /// Pareto with the exponent 1.5, cut off at 1,000 times the shortest call: its variance is
    /// practically infinite.
    Pareto,
}

impl Service {
    pub const ALL: [Self; 4] = [
        Self::Exponential,
        Self::LogNormal,
        Self::Even,
        Self::OneInAHundred,
    ];

    /// Returns the percentiles to compare, in tenths. With one slow call in a hundred, the 99th
    /// percentile lies on the edge between the slow calls and the others and jumps between them at
    /// random. The comparison then uses a percentile on each side of the edge.
    pub const fn permilles(self) -> &'static [usize] {
        if matches!(self, Self::OneInAHundred) {
            &[980, 995]
        } else {
            &[990]
        }
    }

    fn mean(self) -> f64 {
        match self {
            Self::OneInAHundred => 1.09,
            // The mean of the draws below, which are cut off at the top.
            Self::Pareto => PARETO_SHORTEST * (3.0 - 2.0 / PARETO_LONGEST.sqrt()),
            Self::Exponential | Self::LogNormal | Self::Even => 1.0,
        }
    }

    fn draw(self, chance: &mut Chance) -> f64 {
        match self {
            Self::Exponential => -chance.unit().ln(),
            Self::LogNormal => {
                let normal = (-2.0 * chance.unit().ln()).sqrt()
                    * (std::f64::consts::TAU * chance.unit()).cos();
                (normal - 0.5).exp()
            }
            Self::Even => 0.8 + 0.4 * chance.unit(),
            Self::OneInAHundred if chance.unit() < 0.01 => 10.0 * Self::Even.draw(chance),
            Self::OneInAHundred => Self::Even.draw(chance),
            Self::Pareto => PARETO_SHORTEST * chance.unit().powf(-2.0 / 3.0).min(PARETO_LONGEST),
        }
    }
}

/// The shortest call of [`Service::Pareto`], and the longest as a multiple of it.
const PARETO_SHORTEST: f64 = 1.0 / 3.0;
const PARETO_LONGEST: f64 = 1_000.0;

/// A service and its load.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    pub workers: u32,
    /// The mean service time in seconds, but for the tail of [`Service::OneInAHundred`].
    pub mean: f64,
    pub service: Service,
    /// The rate of arriving calls divided by the capacity of the workers.
    pub load: f64,
    pub seconds: u32,
    /// The seed of the random generator. Different seeds give different runs of the same scenario.
    pub seed: u64,
    /// From this second up to that one all calls take `slower` times as long.
    pub slow: Option<(u32, u32)>,
    pub slower: f64,
    /// From this second up to that one half of the calls fail. They take as long as the others.
    pub failing: Option<(u32, u32)>,
    /// No call comes from this second up to that one.
    pub idle: Option<(u32, u32)>,
}

impl Scenario {
    pub fn new(workers: u32, service: Service, load: f64) -> Self {
        let mean = if workers >= 100 { 0.05 } else { 0.01 };
        Self {
            workers,
            mean,
            service,
            load,
            seconds: 120,
            seed: 0,
            slow: None,
            slower: 3.0,
            failing: None,
            idle: None,
        }
    }

    /// Returns the capacity of the workers in calls a second.
    pub fn capacity(&self) -> f64 {
        f64::from(self.workers) / (self.mean * self.service.mean())
    }
}

/// The limit on the calls in flight.
#[derive(Clone, Debug)]
pub enum Bound {
    Fixed(u32),
    Adaptive(AdaptiveAlgorithm),
    /// An adaptive limit that ignores failed calls.
    IgnoringErrors(AdaptiveAlgorithm),
}

pub fn algorithms() -> [(&'static str, AdaptiveAlgorithm); 3] {
    [
        ("vegas", AdaptiveAlgorithm::Vegas(Vegas::default())),
        (
            "gradient2",
            AdaptiveAlgorithm::Gradient2(Gradient2::default()),
        ),
        ("aimd", AdaptiveAlgorithm::Aimd(Aimd::default())),
    ]
}

/// The result of a run.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// For each call that ended: its end, and how long it took, in nanoseconds.
    pub calls: Vec<(u64, u64)>,
    /// The limit at the end of each second.
    pub limits: Vec<u64>,
}

impl Run {
    /// Returns the calls a second that ended from one second up to another.
    pub fn goodput(&self, from: u32, to: u32) -> f64 {
        self.between(from, to).count() as f64 / f64::from(to - from)
    }

    /// Returns the 99th percentile of the response times in milliseconds.
    pub fn p99(&self, from: u32, to: u32) -> f64 {
        self.percentile(990, from, to)
    }

    /// Returns a percentile, given in tenths, of the response times in milliseconds.
    pub fn percentile(&self, permille: usize, from: u32, to: u32) -> f64 {
        let mut times: Vec<u64> = self.between(from, to).map(|(_, rt)| rt).collect();
        if times.is_empty() {
            return 0.0;
        }
        let at = (times.len() * permille / 1_000).min(times.len() - 1);
        let (_, time, _) = times.select_nth_unstable(at);
        *time as f64 / 1e6
    }

    fn between(&self, from: u32, to: u32) -> impl Iterator<Item = (u64, u64)> + '_ {
        let range = u64::from(from) * SECOND..u64::from(to) * SECOND;
        self.calls
            .iter()
            .copied()
            .filter(move |(at, _)| range.contains(at))
    }
}

const SECOND: u64 = 1_000_000_000;

/// The generator Splitmix64, which is small and good enough for waiting times.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }
}

/// A call at its worker, ordered by its end.
struct Served {
    ends: u64,
    number: u64,
    came: u64,
    guard: OwnedGuard,
}

impl PartialEq for Served {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}
impl Eq for Served {}
impl PartialOrd for Served {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Served {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.ends, self.number).cmp(&(other.ends, other.number))
    }
}

/// Runs a scenario.
pub fn run(scenario: &Scenario, bound: &Bound) -> Run {
    // The clock's origin is far enough from 0 for windows that look back.
    const ORIGIN: u64 = 1_000 * SECOND;
    let timer = Arc::new(ManualTimer::new(Nanos::new(ORIGIN)));
    let gate = Gate::builder().timer(timer.clone()).build();
    let rules = match bound {
        Bound::Fixed(limit) => Rules::from(vec![IsolationRule::new("r", *limit)]),
        Bound::Adaptive(algorithm) => Rules::from(vec![AdaptiveRule::new("r", algorithm.clone())]),
        Bound::IgnoringErrors(algorithm) => {
            let rule = AdaptiveRule::new("r", algorithm.clone()).ignore_errors();
            Rules::from(vec![rule])
        }
    };
    gate.load(rules).expect("valid rules");
    let r = gate.resource("r");
    let mut chance = Chance(u64::from(scenario.workers) << 32 | scenario.load.to_bits() >> 32);
    chance.0 = chance
        .0
        .wrapping_add(scenario.seed.wrapping_mul(0xD1B5_4A32_D192_ED03));
    let mut served: BinaryHeap<Reverse<Served>> = BinaryHeap::new();
    let mut line: VecDeque<(u64, OwnedGuard)> = VecDeque::new();
    let (mut run, mut number) = (Run::default(), 0);
    let gap = SECOND as f64 / (scenario.capacity() * scenario.load);
    let end = u64::from(scenario.seconds) * SECOND;
    let within = |at: u64, span: Option<(u32, u32)>| {
        span.is_some_and(|(from, to)| {
            (u64::from(from) * SECOND..u64::from(to) * SECOND).contains(&at)
        })
    };
    let mut arrival = 0.0_f64;
    loop {
        let next_end = served.peek().map_or(u64::MAX, |Reverse(call)| call.ends);
        let now = next_end.min(arrival as u64);
        if now >= end {
            break;
        }
        while run.limits.len() as u64 <= now / SECOND {
            run.limits
                .push(r.adaptive_limits().first().map_or(0, |(_, limit)| *limit));
        }
        timer.set(Nanos::new(ORIGIN + now));
        if next_end <= arrival as u64 {
            let Some(Reverse(call)) = served.pop() else {
                continue;
            };
            run.calls.push((now, now - call.came));
            let mut guard = call.guard;
            if within(now, scenario.failing) && chance.unit() < 0.5 {
                guard.mark_failed();
            }
        } else {
            arrival += -chance.unit().ln() * gap;
            if within(arrival as u64, scenario.idle) {
                arrival = scenario
                    .idle
                    .map_or(arrival, |(_, to)| f64::from(to) * SECOND as f64);
            }
            if let Ok(guard) = r.enter_owned() {
                line.push_back((now, guard));
            }
        }
        while served.len() < scenario.workers as usize
            && let Some((came, guard)) = line.pop_front()
        {
            let slower = if within(now, scenario.slow) {
                scenario.slower
            } else {
                1.0
            };
            let takes = scenario.service.draw(&mut chance) * scenario.mean * slower;
            let ends = now + (takes * SECOND as f64) as u64;
            number += 1;
            served.push(Reverse(Served {
                ends,
                number,
                came,
                guard,
            }));
        }
    }
    run
}

/// Figures are taken after this time: one minute.
pub const SETTLED: u32 = 60;

/// Compares the settled part of a run with that of another. Returns the ratio of the goodputs and
/// the ratio of the slowest calls' times, or the worse ratio if two percentiles are compared.
pub fn beside(scenario: &Scenario, best: &Run, run: &Run) -> (f64, f64) {
    beside_between(scenario.service, (SETTLED, scenario.seconds), best, run)
}

/// Compares the seconds of a segment in the same way.
pub fn beside_between(
    service: Service,
    (from, to): (u32, u32),
    best: &Run,
    run: &Run,
) -> (f64, f64) {
    let ratios = service
        .permilles()
        .iter()
        .map(|&at| run.percentile(at, from, to) / best.percentile(at, from, to));
    let goodput = run.goodput(from, to) / best.goodput(from, to);
    (goodput, ratios.fold(0.0, f64::max))
}

/// Returns the best fixed limit and its run: the smallest limit that reaches 0.98 of the highest
/// goodput of any limit.
pub fn best_fixed(scenario: &Scenario) -> (u32, Run) {
    best_fixed_between(scenario, (SETTLED, scenario.seconds))
}

/// Returns the best fixed limit of a segment and its run.
pub fn best_fixed_between(scenario: &Scenario, (from, to): (u32, u32)) -> (u32, Run) {
    let of = |limit| run(scenario, &Bound::Fixed(limit));
    let goodput = |run: &Run| run.goodput(from, to);
    let (mut low, mut high) = (0, scenario.workers * 8);
    let mut best = of(high);
    let enough = goodput(&best) * 0.98;
    while high - low > 1 {
        let middle = low.midpoint(high);
        let run = of(middle);
        if goodput(&run) >= enough {
            (high, best) = (middle, run);
        } else {
            low = middle;
        }
    }
    (high, best)
}
