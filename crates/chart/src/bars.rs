//! The bars: one area for each layer.

use std::fmt::Write;

use maud::{Markup, html};

use crate::Layer;

/// The requests of all layers in each step.
pub(crate) fn sums(layers: &[Layer]) -> Vec<u64> {
    stacked(layers).pop().unwrap_or_default()
}

/// For each layer, the requests up to it in each step.
fn stacked(layers: &[Layer]) -> Vec<Vec<u64>> {
    let steps = layers.iter().map(|layer| layer.counts.len()).max();
    let mut sums = vec![0_u64; steps.unwrap_or(0)];
    let each = layers.iter().map(|layer| {
        for (sum, count) in sums.iter_mut().zip(&layer.counts) {
            *sum = sum.saturating_add(*count);
        }
        sums.clone()
    });
    each.collect()
}

/// The areas of the layers, for a height that stands for `full` requests in a step.
///
/// Bars are written one after another, each by how much it is higher than the one before it: a
/// chart that moves on by a step has the same text but for its ends, which compresses well.
pub(crate) fn areas(layers: &[Layer], height: u64, full: f64) -> Markup {
    // A bar that is not empty is visible. Float to integer saturates.
    let high = |count: u64| (count as f64 * height as f64 / full).ceil() as i64;
    let path = |sums: &[u64]| {
        let (mut path, mut before) = (format!("M0 {height}"), 0);
        let most = i64::try_from(height).unwrap_or(i64::MAX);
        for same in sums.chunk_by(|one, other| high(*one) == high(*other)) {
            let now = same.first().map_or(0, |sum| high(*sum)).min(most);
            if now != before {
                // Writing to a `String` does not fail.
                let _ = write!(path, "v{}", before - now);
            }
            let _ = write!(path, "h{}", same.len());
            before = now;
        }
        path + &format!("V{height}z")
    };
    let stacked = stacked(layers);
    let mut drawn: Vec<_> = layers.iter().zip(&stacked).collect();
    // A lower layer is drawn over those above it.
    drawn.reverse();
    html! {
        @for (layer, sums) in drawn {
            @if layer.counts.iter().any(|count| *count > 0) { path class=(layer.class) d=(path(sums)) {} }
        }
    }
}

/// Bars alone, for the cell of a table: the width stands for `steps`, and what is missing of them
/// was before the first.
#[must_use]
pub fn spark(layers: &[Layer], steps: usize, height: u64, words: &str) -> Markup {
    let sums = sums(layers);
    let most = sums.iter().copied().max().unwrap_or(0).max(1);
    let begin = i64::try_from(sums.len()).unwrap_or(0) - i64::try_from(steps).unwrap_or(0);
    html! {
        svg class="spark" role="img" aria-label=(words) viewBox={ (begin) " 0 " (steps) " " (height) } preserveAspectRatio="none" {
            (areas(layers, height, most as f64))
        }
    }
}
