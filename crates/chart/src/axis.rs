//! The ticks of the axes.

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * SECOND;
/// The most ticks of the time axis.
const MOMENTS: u64 = 5;

/// The time for which a rate is given: the shortest in which there is a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Unit {
    seconds: f64,
    name: &'static str,
}

const UNITS: [Unit; 4] = [
    Unit {
        seconds: 1.0,
        name: "s",
    },
    Unit {
        seconds: 60.0,
        name: "min",
    },
    Unit {
        seconds: 3_600.0,
        name: "h",
    },
    Unit {
        seconds: 86_400.0,
        name: "d",
    },
];

impl Unit {
    pub fn fitting(highest: f64) -> Self {
        let fits = |unit: &&Self| highest * unit.seconds >= 1.0;
        *UNITS.iter().find(fits).unwrap_or(&UNITS[UNITS.len() - 1])
    }

    /// Up to five round rates from 0 to the highest, in requests per second, with their words.
    pub fn ticks(self, highest: f64) -> Vec<(f64, String)> {
        let rough = highest * self.seconds / 4.0;
        let power = 10_f64.powf(rough.log10().floor());
        let rounds = [1.0, 2.0, 2.5, 5.0, 10.0].map(|factor| factor * power);
        let step = rounds
            .into_iter()
            .find(|step| *step >= rough * 0.999)
            .unwrap_or(10.0 * power);
        let ticks = (0..5).map(|at| f64::from(at) * step);
        ticks
            .map(|tick| (tick / self.seconds, self.words(tick)))
            .filter(|(rate, _)| *rate <= highest * 1.001)
            .collect()
    }

    fn words(self, tick: f64) -> String {
        if tick == 0.0 {
            "0".to_owned()
        } else {
            format!("{}/{}", short(tick), self.name)
        }
    }
}

/// A rate in requests per second, in the unit that fits: `30/min`.
#[must_use]
pub fn rate(per_second: f64) -> String {
    let unit = Unit::fitting(per_second);
    unit.words(per_second * unit.seconds)
}

/// At most three digits, and what they stand for: `1.5k`.
fn short(number: f64) -> String {
    let powers = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let (of, name) = powers
        .into_iter()
        .find(|(of, _)| number >= *of)
        .unwrap_or((1.0, ""));
    let digits = format!("{:.2}", number / of);
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}{name}")
}

/// Up to five round times, and how far they are apart.
pub(crate) fn moments(start: u64, end: u64) -> Vec<(u64, u64)> {
    let fractions = (0..9).flat_map(|power| [1, 2, 5].map(|factor| factor * 10_u64.pow(power)));
    let seconds = [
        1, 2, 5, 10, 15, 30, 60, 120, 180, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600,
        43_200, 86_400,
    ];
    let days = [2, 7, 14, 30, 90, 180, 365, 730, 3_650];
    let spacings = fractions
        .chain(seconds.map(|seconds| seconds * SECOND))
        .chain(days.map(|days| days * DAY));
    let fits = |spacing: &u64| end / spacing - start / spacing <= MOMENTS;
    let mut spacings = spacings.skip_while(|spacing| !fits(spacing));
    let Some(spacing) = spacings.next() else {
        return Vec::new();
    };
    let first = start.div_ceil(spacing);
    let times = (first..=end / spacing).map(|at| at.saturating_mul(spacing));
    times.map(|time| (time, spacing)).collect()
}
