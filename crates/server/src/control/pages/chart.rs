//! Charts of admitted and denied requests over time, as SVG, with the denied ones stacked on top.

use std::fmt::Write;

use maud::{Markup, html};

/// The numbers of admitted and denied requests in one step.
pub(super) type Pair = [u64; 2];

/// What was admitted, and what was denied, in all steps together.
pub(super) fn sum(points: &[Pair]) -> Pair {
    points.iter().fold([0; 2], |sum, pair| {
        [0, 1].map(|at| pair[at].saturating_add(sum[at]))
    })
}

/// The most in one step.
pub(super) fn most(points: &[Pair]) -> u64 {
    points
        .iter()
        .map(|pair| pair[0].saturating_add(pair[1]))
        .max()
        .unwrap_or(0)
}

/// A minute of seconds, for the cell of a table.
pub(super) fn minute(points: &[Pair], words: &str) -> Markup {
    chart(points, 60, 60, [120, 28], words)
}

/// A large chart with its text above it.
pub(super) fn figure(points: &[Pair], full: usize, steps: usize, words: &str) -> Markup {
    html! { figure { figcaption { (words) } (chart(points, full, steps, [720, 120], words)) } }
}

/// A chart with an equivalent text. Its whole width stands for `full` points, so a short history is
/// at the right. If there are more of them than `steps`, several are added up for a bar.
fn chart(
    points: &[Pair],
    full: usize,
    steps: usize,
    [width, height]: [usize; 2],
    words: &str,
) -> Markup {
    let each = full.div_ceil(steps).max(1);
    let sums: Vec<Pair> = points.rchunks(each).rev().map(sum).collect();
    let most = most(&sums).max(1);
    let columns = full.div_ceil(each).max(1);
    let first = columns.saturating_sub(sums.len());
    let x = |column: usize| column as f64 * width as f64 / columns as f64;
    let y = |count: u64| height as f64 - count as f64 / most as f64 * height as f64;
    let area = |bottom: fn(&Pair) -> u64, top: fn(&Pair) -> u64| {
        let mut path = String::new();
        for (at, sum) in sums.iter().enumerate() {
            if top(sum) > bottom(sum) {
                let (left, right) = (x(first + at), x(first + at + 1));
                // Writing to a `String` does not fail.
                let _ = write!(
                    path,
                    "M{left:.1} {:.1}V{:.1}H{right:.1}V{:.1}Z",
                    y(bottom(sum)),
                    y(top(sum)),
                    y(bottom(sum))
                );
            }
        }
        path
    };
    html! {
        svg role="img" aria-label=(words) viewBox={ "0 0 " (width) " " (height) } preserveAspectRatio="none" {
            path class="admitted" d=(area(|_| 0, |sum| sum[0])) {}
            path class="denied" d=(area(|sum| sum[0], |sum| sum[0] + sum[1])) {}
        }
    }
}
