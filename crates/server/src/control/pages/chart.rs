//! Charts of admitted and denied requests over time, as SVG, with the denied ones stacked on top.

use std::fmt::Write;

use maud::{Markup, html};

/// The numbers of admitted and denied requests in one step.
pub(super) type Pair = [u64; 2];

/// The dimensions of a chart.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub width: usize,
    pub height: usize,
    /// The maximum number of bars. If there are more steps, several are added up.
    pub steps: usize,
}

/// A chart with an equivalent text. Its whole width stands for `full` points, so a short history is at the right.
pub(super) fn chart(points: &[Pair], full: usize, size: Size, words: &str) -> Markup {
    let Size { width, height, steps } = size;
    let each = full.div_ceil(steps).max(1);
    let sum = |chunk: &[Pair]| chunk.iter().fold([0; 2], |sum, pair| [sum[0] + pair[0], sum[1] + pair[1]]);
    let sums: Vec<Pair> = points.rchunks(each).rev().map(sum).collect();
    let most = sums.iter().map(|sum| sum[0] + sum[1]).max().unwrap_or(0).max(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(points: &[Pair], full: usize, steps: usize) -> String {
        chart(points, full, Size { width: 100, height: 10, steps }, "a < b").into_string()
    }

    #[test]
    fn denied_is_stacked_on_admitted_and_the_newest_is_at_the_right() {
        let svg = drawn(&[[5, 5]], 4, 4);
        assert!(svg.contains(r#"class="admitted" d="M75.0 10.0V5.0H100.0V10.0Z""#), "{svg}");
        assert!(svg.contains(r#"class="denied" d="M75.0 5.0V0.0H100.0V5.0Z""#), "{svg}");
        assert!(svg.contains("a &lt; b"), "{svg}");
    }

    #[test]
    fn more_points_than_steps_are_added_up() {
        let svg = drawn(&[[1, 0], [1, 0], [1, 0], [1, 0]], 4, 2);
        assert!(svg.contains(r#"d="M0.0 10.0V0.0H50.0V10.0ZM50.0 10.0V0.0H100.0V10.0Z""#), "{svg}");
        // Zeros draw nothing.
        assert!(drawn(&[[0, 0]; 10], 10, 5).contains(r#"class="denied" d="""#));
        drawn(&[], 0, 1);
    }
}
