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
    chart(points, 60, 60, 28, words)
}

/// A large chart with its text above it.
pub(super) fn figure(points: &[Pair], full: usize, steps: usize, words: &str) -> Markup {
    html! { figure { figcaption { (words) } (chart(points, full, steps, 120, words)) } }
}

/// A chart with an equivalent text. Its whole width stands for `full` points, so a short history is
/// at the right. If there are more of them than `steps`, several are added up for a bar.
///
/// Bars are written one after another, each by how much it is higher than the one before it: a
/// chart that moves on by a bar has the same text but for its ends, which compresses well.
fn chart(points: &[Pair], full: usize, steps: usize, height: u64, words: &str) -> Markup {
    let each = full.div_ceil(steps).max(1);
    let sums: Vec<Pair> = points.rchunks(each).rev().map(sum).collect();
    let most = most(&sums).max(1);
    let columns = full.div_ceil(each).max(1);
    let first = columns.saturating_sub(sums.len());
    // A bar that is not empty is visible.
    let high =
        |count: u64| (u128::from(count) * u128::from(height)).div_ceil(u128::from(most)) as i64;
    let area = |top: fn(&Pair) -> u64| {
        let mut path = format!("M{first} {height}");
        let mut before = 0;
        for sum in &sums {
            let now = high(top(sum));
            // Writing to a `String` does not fail.
            let _ = match before - now {
                0 => write!(path, "h1"),
                down => write!(path, "v{down}h1"),
            };
            before = now;
        }
        path + &format!("V{height}z")
    };
    let has_denied = sums.iter().any(|sum| sum[1] > 0);
    html! {
        svg role="img" aria-label=(words) viewBox={ "0 0 " (columns) " " (height) } preserveAspectRatio="none" {
            // The admitted ones are drawn over all.
            @if has_denied { path class="denied" d=(area(|sum| sum[0].saturating_add(sum[1]))) {} }
            path class="admitted" d=(area(|sum| sum[0])) {}
        }
    }
}
