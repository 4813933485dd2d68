//! Charts of admitted and denied requests: those of `tidegate-chart`, filled from the history.

use maud::{Markup, html};
use tidegate_chart::{Chart, Layer, Mark, rate, spark};
use tidegate_service::{
    observe::history::{OUTCOMES, Points, Step},
    rules::PolicySpec,
    shown,
};

/// The numbers of admitted and denied requests in one step.
pub(in crate::control) type Pair = [u64; 2];

const SECOND: u64 = 1_000_000_000;

/// The admitted and the denied requests of all steps together.
pub(in crate::control) fn sum(points: &[Pair]) -> Pair {
    let add = |[one, other]: Pair, [more, rest]: &Pair| {
        [one.saturating_add(*more), other.saturating_add(*rest)]
    };
    points.iter().fold([0; 2], add)
}

/// The most in one step.
pub(in crate::control) fn most(points: &[Pair]) -> u64 {
    points
        .iter()
        .map(|[admitted, denied]| admitted.saturating_add(*denied))
        .max()
        .unwrap_or(0)
}

fn layer(class: &'static str, name: &str, counts: Vec<u64>) -> Layer {
    let all = counts
        .iter()
        .fold(0_u64, |sum, count| sum.saturating_add(*count));
    Layer {
        class,
        name: format!("{name} {}", shown::grouped(all)),
        counts,
    }
}

/// Both kinds of requests, by what they are called.
fn of_pairs(points: &[Pair], [admitted, denied]: [&str; 2]) -> [Layer; 2] {
    let (admissions, denials) = points.iter().map(|[one, other]| (*one, *other)).unzip();
    [
        layer("admitted", admitted, admissions),
        layer("denied", denied, denials),
    ]
}

/// A minute of seconds, for the cell of a table.
pub(in crate::control) fn minute(points: &[Pair], words: &str) -> Markup {
    spark(&of_pairs(points, ["", ""]), 60, 28, words)
}

/// The report of a program, in steps of equal length, the last of which has just ended.
pub(in crate::control) fn reported(
    points: &[Pair],
    (steps, seconds): (usize, u64),
    now: u64,
    words: &str,
) -> Markup {
    let step = seconds * SECOND;
    let end = now - now % step;
    let mut padded = vec![[0; 2]; steps.saturating_sub(points.len())];
    padded.extend_from_slice(points);
    Chart {
        words,
        start: end.saturating_sub(step.saturating_mul(steps as u64)),
        step,
        steps,
        layers: &of_pairs(&padded, ["passed", "blocked"]),
        scale: 0,
        limit: None,
        marks: &[],
        lists_marks: false,
        time: &utc,
        hover: false,
    }
    .figure()
}

/// How a history is drawn.
#[derive(Clone, Copy, Debug)]
pub(in crate::control) struct Bars {
    /// How many bars the chart has room for.
    bars: usize,
    /// How many points each of them adds up.
    each: usize,
}

/// 15 minutes of seconds: a bar is 5 s.
const MINUTES: Bars = Bars { bars: 180, each: 5 };
/// 3 minutes, for as long as there are no more of them: a bar is 1 s.
const FIRST_MINUTES: Bars = Bars { bars: 180, each: 1 };
/// 6 hours of 10 seconds: a bar is 2 minutes.
const HOURS: Bars = Bars {
    bars: 180,
    each: 12,
};
type Outcomes = Points<{ OUTCOMES.len() }>;

/// The chart of the last minutes, whose points are what `read` finds, and with `hours` that of the last hours once they
/// show more. `None` without a history.
pub(in crate::control) fn recent(
    read: impl Fn(Step, usize) -> Option<Outcomes>,
    (title, hours): (&str, bool),
    limit: &Line,
    marks: &[Mark],
) -> Option<Markup> {
    let minutes = read(Step::Second, MINUTES.most())?;
    let is_young = minutes.points.len() <= FIRST_MINUTES.bars;
    let (bars, span) = if is_young {
        (FIRST_MINUTES, "last 3 minutes")
    } else {
        (MINUTES, "last 15 minutes")
    };
    let earlier = hours
        .then(|| read(Step::TenSeconds, HOURS.most()))
        .flatten()
        .filter(|hours| hours.points.len() > MINUTES.most() / 10);
    let named = |span: &str| format!("{title}, {span}");
    Some(html! {
        (bars.of(&minutes, &named(span), limit.clone(), marks))
        @if let Some(earlier) = earlier { (HOURS.of(&earlier, &named("last 6 hours"), limit.clone(), marks)) }
    })
}

/// A limit as a line: its rate in requests per second, and its words.
pub(in crate::control) type Line = Option<(f64, String)>;

impl Bars {
    /// The most points that a chart shows.
    const fn most(self) -> usize {
        // The bar that is not complete is left out.
        self.bars * self.each + self.each
    }

    /// The bars end at round times, so that a bar keeps its requests while the chart moves. The
    /// last one, which is not complete, is left out.
    fn of(self, points: &Outcomes, title: &str, limit: Line, marks: &[Mark]) -> Markup {
        let seconds = points.step.max(1) * self.each.max(1) as u64;
        let end = points.end - points.end % seconds;
        let incomplete = ((points.end - end) / points.step.max(1)) as usize;
        let complete = points.points.len().saturating_sub(incomplete);
        let complete = points.points.get(..complete).unwrap_or_default();
        let newest = complete.rchunks(self.each.max(1)).take(self.bars);
        let mut bars: Vec<[u64; OUTCOMES.len()]> = newest.map(total).collect();
        bars.resize(self.bars, [0; OUTCOMES.len()]);
        bars.reverse();
        drawn(&bars, (end, seconds), title, limit, marks)
    }
}

/// Bars of this length, the last of which ends at `end`, both in seconds.
pub(in crate::control) fn drawn(
    bars: &[[u64; OUTCOMES.len()]],
    (end, seconds): (u64, u64),
    title: &str,
    limit: Line,
    marks: &[Mark],
) -> Markup {
    let (end, step) = (end.saturating_mul(SECOND), seconds.saturating_mul(SECOND));
    let whole = total_of(bars);
    let [allowed, delayed, denied, shadow, ..] = whole;
    let [admitted, denied] = [allowed + delayed, denied + shadow].map(shown::grouped);
    let words = format!("{title} (UTC): {admitted} admitted, {denied} denied");
    Chart {
        words: &words,
        start: end.saturating_sub(step.saturating_mul(bars.len() as u64)),
        step,
        steps: bars.len(),
        layers: &of_outcomes(bars),
        scale: 0,
        limit,
        marks,
        lists_marks: true,
        time: &utc,
        hover: false,
    }
    .figure()
}

fn total(points: &[[u32; OUTCOMES.len()]]) -> [u64; OUTCOMES.len()] {
    let mut sums = [0; OUTCOMES.len()];
    for point in points {
        sums.iter_mut()
            .zip(point)
            .for_each(|(sum, count)| *sum += u64::from(*count));
    }
    sums
}

fn total_of(bars: &[[u64; OUTCOMES.len()]]) -> [u64; OUTCOMES.len()] {
    let mut sums = [0_u64; OUTCOMES.len()];
    for bar in bars {
        sums.iter_mut()
            .zip(bar)
            .for_each(|(sum, count)| *sum = sum.saturating_add(*count));
    }
    sums
}

/// The decisions of a limit on a trace, and those of other rules, on one scale. Each step
/// has its requests, those that were denied, and those that would be.
pub(in crate::control) fn compared(
    steps: &[[u64; 3]],
    (start, step): (u64, u64),
    marks: &[Mark],
) -> Markup {
    let scale = steps
        .iter()
        .map(|[requests, ..]| *requests)
        .max()
        .unwrap_or(0);
    let of = |denied: fn(&[u64; 3]) -> u64, words: &str, lists_marks| {
        let pairs: Vec<Pair> = steps
            .iter()
            .map(|counts @ [requests, ..]| {
                let denied = denied(counts);
                [requests.saturating_sub(denied), denied]
            })
            .collect();
        let [_, all] = sum(&pairs);
        Chart {
            words: &format!("{words} (UTC): {} denied", shown::grouped(all)),
            start,
            step,
            steps: steps.len(),
            layers: &of_pairs(&pairs, ["admitted", "denied"]),
            scale,
            limit: None,
            marks,
            lists_marks,
            time: &utc,
            hover: true,
        }
        .figure()
    };
    html! {
        (of(|[_, denied, _]| *denied, "As it was", true))
        (of(|[.., would]| *would, "With this change", false))
    }
}

/// The layers of these outcomes: the reasons of denials have a colour each.
fn of_outcomes(bars: &[[u64; OUTCOMES.len()]]) -> Vec<Layer> {
    let of = |count: fn(&[u64; OUTCOMES.len()]) -> u64| bars.iter().map(count).collect();
    vec![
        layer(
            "admitted",
            "admitted",
            of(|[allowed, delayed, ..]| allowed + delayed),
        ),
        layer(
            "shadow",
            "would be denied, if it were no shadow limit:",
            of(|[.., shadow, _, _, _, _]| *shadow),
        ),
        layer(
            "store-down",
            "denied, store down:",
            of(|[.., store]| *store),
        ),
        layer(
            "table-full",
            "denied, table full:",
            of(|[.., full, _]| *full),
        ),
        layer(
            "blocked",
            "denied, blocked:",
            of(|[.., blocked, _, _]| *blocked),
        ),
        layer(
            "denied",
            "denied, above the limit:",
            of(|[_, _, denied, _, _, blocked, full, store]| {
                denied.saturating_sub(blocked + full + store)
            }),
        ),
    ]
}

/// The rate that a policy permits, with its words; `None` for what limits no rate.
pub(in crate::control) fn rate_of(policy: &PolicySpec) -> Line {
    let window = policy.window?.as_secs_f64();
    let per_second = policy.limit as f64 / window;
    (per_second.is_finite() && policy.algorithm.limits_rate()).then(|| {
        (
            per_second,
            format!("limit {} ({})", policy.quota(), rate(per_second)),
        )
    })
}

/// A time of the day.
fn utc(nanos: u64, spacing: u64) -> String {
    let seconds = nanos / SECOND % 86_400;
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if spacing < 60 * SECOND {
        format!("{hour:02}:{minute:02}:{second:02}")
    } else {
        format!("{hour:02}:{minute:02}")
    }
}
