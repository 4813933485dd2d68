//! One picture for each algorithm: each request of the same four seconds, and how many were
//! admitted in the last second.

use std::fmt::Write as _;

use tidegate_core::{Algorithm as _, Nanos, Policy, Quota};
use tidegate_sim::AlgorithmSpec;

/// So many requests may be admitted in a second.
pub const LIMIT: usize = 10;
const SECOND: u64 = 1_000;
/// The traffic's length in milliseconds.
const SPAN: u64 = 4 * SECOND;

/// A sentence about one algorithm's panel.
type Sentence = fn(&Panel) -> String;

/// The algorithms, and what the traffic shows of each.
const ALGORITHMS: [(&str, Sentence); 6] = [
    ("fixed-window", |panel| {
        format!(
            "Two windows meet: {} requests within one second, twice the limit.",
            panel.most
        )
    }),
    ("sliding-log", |panel| {
        format!("Exact: never more than {} in any second.", panel.most)
    }),
    ("sliding-window", |panel| {
        format!(
            "Ten slots: never more than {}. The price: {} denied that the limit has room for.",
            panel.most, panel.denied_early
        )
    }),
    ("sliding-counter", |panel| {
        format!(
            "Takes the last window's requests for evenly spread: up to {} in one second.",
            panel.most
        )
    }),
    ("token-bucket", |panel| {
        format!(
            "A full bucket lets a burst through, and goes on refilling: up to {} in one second.",
            panel.most
        )
    }),
    ("leaky-bucket:max-wait=1s", |panel| {
        format!(
            "One starts every 100 ms; the others wait in line, up to {} ms.",
            panel.longest_wait
        )
    }),
];

/// The requests' times in milliseconds: a burst on both sides of a window's end, then more than the
/// limit for a while.
fn traffic() -> Vec<u64> {
    let mut times = vec![150, 500];
    times.extend((0..12).map(|at| 900 + at * 7));
    times.extend((0..12).map(|at| 1_005 + at * 7));
    times.extend((0..30).map(|at| 1_400 + at * 53));
    times.extend([3_300, 3_600, 3_900]);
    times
}

/// A request: when it came, and when it started if it was admitted.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    at: u64,
    starts: Option<u64>,
}

/// The decisions of one algorithm on the traffic.
#[derive(Debug)]
pub struct Panel {
    pub name: &'static str,
    pub asked: Vec<Asked>,
    /// The most that started within any second.
    pub most: usize,
    /// Denied, though fewer than the limit had started in the second before.
    pub denied_early: usize,
    pub longest_wait: u64,
    caption: String,
}

/// All algorithms, each on the same traffic.
pub fn panels() -> Vec<Panel> {
    ALGORITHMS
        .iter()
        .map(|&(spec, caption)| Panel::new(spec, caption))
        .collect()
}

impl Panel {
    fn new(spec: &'static str, caption: fn(&Self) -> String) -> Self {
        let quota = Quota::per_second(LIMIT as u64);
        let policy: Policy = spec
            .parse::<AlgorithmSpec>()
            .map(|spec| spec.policy(quota).expect("the quota suits the algorithm"))
            .expect("a known algorithm");
        let mut state = vec![0; policy.words()];
        let mut decide = |at: u64| {
            let decision = policy.decide(&mut state, Nanos::from_millis(at), 1);
            let delay = decision.delay().as_millis() as u64;
            Asked {
                at,
                starts: (!decision.is_denied()).then_some(at + delay),
            }
        };
        let asked: Vec<Asked> = traffic().into_iter().map(&mut decide).collect();
        let mut starts: Vec<u64> = asked.iter().filter_map(|asked| asked.starts).collect();
        starts.sort_unstable();
        let name = spec.split(':').next().unwrap_or(spec);
        let most = starts
            .iter()
            .map(|&at| in_last_second(&starts, at))
            .max()
            .unwrap_or(0);
        let has_room = |asked: &&Asked| in_last_second(&starts, asked.at) < LIMIT;
        let denied_early = asked
            .iter()
            .filter(|asked| asked.starts.is_none())
            .filter(has_room)
            .count();
        let wait = |asked: &Asked| asked.starts.map(|starts| starts - asked.at);
        let longest_wait = asked.iter().filter_map(wait).max().unwrap_or(0);
        let mut panel = Self {
            name,
            asked,
            most,
            denied_early,
            longest_wait,
            caption: String::new(),
        };
        panel.caption = caption(&panel);
        panel
    }

    pub fn file_name(&self) -> String {
        format!("{}.svg", self.name)
    }

    /// The picture, for light and dark.
    pub fn svg(&self) -> String {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\" aria-label=\"{}: {}\">\n<style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\"/>\n",
            self.name, self.caption
        );
        text(&mut svg, (LEFT, 24.0), "title", self.name);
        // Two lines, broken between words.
        for (at, line) in broken(&self.caption, 58).iter().enumerate() {
            text(&mut svg, (LEFT, 42.0 + 15.0 * at as f64), "dim", line);
        }
        self.requests(&mut svg);
        self.admitted(&mut svg);
        for second in 0..=SPAN / SECOND {
            let at = x(second * SECOND);
            line(&mut svg, "grid", (at, TICKS), (at, BOTTOM + 4.0));
            text(
                &mut svg,
                (at, BOTTOM + 18.0),
                "dim middle",
                &format!("{second} s"),
            );
        }
        svg + "</svg>\n"
    }

    /// A tick for each request, and one for the start of a request that waits.
    fn requests(&self, svg: &mut String) {
        for asked in &self.asked {
            let at = x(asked.at);
            let class = if asked.starts.is_some() {
                "ok"
            } else {
                "denied"
            };
            // Denied ones are below, so that both are seen where they are close.
            let top = if asked.starts.is_some() {
                TICKS
            } else {
                TICKS + 16.0
            };
            line(svg, class, (at, top), (at, top + 13.0));
            if let Some(starts) = asked
                .starts
                .filter(|starts| (asked.at + 1..SPAN).contains(starts))
            {
                line(
                    svg,
                    "waits",
                    (x(starts), TICKS + 16.0),
                    (x(starts), TICKS + 29.0),
                );
            }
        }
        text(svg, (LEFT - 8.0, TICKS + 11.0), "dim end", "admitted");
        text(
            svg,
            (LEFT - 8.0, TICKS + 27.0),
            "dim end",
            if self.longest_wait > 0 {
                "start, denied"
            } else {
                "denied"
            },
        );
    }

    /// How many started in the last second, at each moment.
    fn admitted(&self, svg: &mut String) {
        let mut starts: Vec<u64> = self.asked.iter().filter_map(|asked| asked.starts).collect();
        starts.sort_unstable();
        let mut changes: Vec<u64> = starts.iter().flat_map(|&at| [at, at + SECOND]).collect();
        changes.retain(|at| *at < SPAN);
        changes.sort_unstable();
        changes.dedup();
        let mut area = format!("M{:.1} {:.1}", x(0), y(0));
        let mut over = String::new();
        for (at, &from) in changes.iter().enumerate() {
            let (count, to) = (
                in_last_second(&starts, from),
                changes.get(at + 1).copied().unwrap_or(SPAN),
            );
            let _ = write!(area, "H{:.1}V{:.1}", x(from), y(count));
            if count > LIMIT {
                let (left, right) = (x(from), x(to));
                let _ = write!(
                    over,
                    "M{left:.1} {0:.1}V{1:.1}H{right:.1}V{0:.1}Z",
                    y(LIMIT),
                    y(count)
                );
            }
        }
        let _ = writeln!(
            svg,
            "<path class=\"area\" d=\"{area}H{:.1}V{:.1}Z\"/>\n<path class=\"over\" d=\"{over}\"/>",
            x(SPAN),
            y(0)
        );
        for count in [0, LIMIT, 2 * LIMIT] {
            let class = if count == LIMIT { "limit" } else { "grid" };
            line(svg, class, (LEFT, y(count)), (RIGHT, y(count)));
            let label = if count == LIMIT {
                format!("limit {LIMIT}")
            } else {
                count.to_string()
            };
            text(svg, (LEFT - 8.0, y(count) + 4.0), "dim end", &label);
        }
        text(
            svg,
            (RIGHT, TOP - 4.0),
            "dim end",
            "admitted in the last second",
        );
    }
}

/// How many of these, in order, were in the second that ends at `at`.
fn in_last_second(starts: &[u64], at: u64) -> usize {
    let from = (at + 1).saturating_sub(SECOND);
    starts.partition_point(|start| *start <= at) - starts.partition_point(|start| *start < from)
}

const WIDTH: f64 = 480.0;
const HEIGHT: f64 = 272.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = WIDTH - 20.0;
/// The band of requests.
const TICKS: f64 = 72.0;
/// The chart.
const TOP: f64 = 126.0;
const BOTTOM: f64 = 240.0;

const STYLE: &str = "
.page{fill:#fff;stroke:#e3e6eb}text{fill:#1b2130;font:12px system-ui,sans-serif}.title{font-size:15px;font-weight:600}
.dim{fill:#596273}.end{text-anchor:end}.middle{text-anchor:middle}line{stroke-width:1.6}.grid{stroke:#e3e6eb;stroke-width:1}
.limit{stroke:#596273;stroke-dasharray:4 3;stroke-width:1}.ok{stroke:#2f6db3}.denied{stroke:#c8402a}
.waits{stroke:#d98a1f}.area{fill:#a9c1de}.over{fill:#c8402a}
@media (prefers-color-scheme:dark){.page{fill:#181c23;stroke:#2b313b}text{fill:#e7eaf0}.dim{fill:#a3adbd}
.grid{stroke:#2b313b}.limit{stroke:#a3adbd}.ok{stroke:#7db0ea}.denied{stroke:#ee6d55}.waits{stroke:#f3b266}
.area{fill:#3c5a82}.over{fill:#ee6d55}}";

fn x(at: u64) -> f64 {
    LEFT + (RIGHT - LEFT) * at as f64 / SPAN as f64
}

fn y(count: usize) -> f64 {
    BOTTOM - (BOTTOM - TOP) * count as f64 / (2 * LIMIT) as f64
}

/// Lines of at most `most` letters.
fn broken(text: &str, most: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one");
        if !last.is_empty() && last.len() + 1 + word.len() > most {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

// Writing into a string cannot fail.

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"
    );
}

fn line(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    let ((x1, y1), (x2, y2)) = (from, to);
    let _ = writeln!(
        svg,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}
