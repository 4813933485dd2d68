//! How long answers or decisions took, in words and as a chart.

use std::fmt::Write;

use maud::{Markup, html};
use tidegate_service::observe::history::latency_bounds;

/// The counts of all these points together.
pub(super) fn sums<const N: usize>(points: &[[u32; N]]) -> Vec<u64> {
    let mut sums = vec![0_u64; N];
    for point in points {
        sums.iter_mut()
            .zip(point)
            .for_each(|(sum, count)| *sum += u64::from(*count));
    }
    sums
}

/// `half within 50 µs, 99 % within 1 ms`; `None` where nothing was counted.
pub(super) fn within(sums: &[u64]) -> Option<String> {
    let all: u64 = sums.iter().sum();
    let bound = |thousandths: u64| {
        let mut seen = 0;
        let bucket = sums.iter().position(|count| {
            seen += count;
            seen * 1_000 >= all * thousandths
        })?;
        Some(
            latency_bounds()
                .nth(bucket)
                .map_or("over 1 s".to_owned(), span),
        )
    };
    (all > 0).then_some(())?;
    Some(format!(
        "half within {}, 99 % within {}",
        bound(500)?,
        bound(990)?
    ))
}

fn span(bound: f64) -> String {
    match bound {
        _ if bound >= 1.0 => format!("{bound:.0} s"),
        _ if bound >= 0.001 => format!("{} ms", bound * 1e3),
        _ => format!("{:.0} µs", bound * 1e6),
    }
}

/// A column for each bucket, with the bound of each below it.
pub(super) fn histogram(title: &str, sums: &[u64]) -> Option<Markup> {
    const WIDTH: usize = 720;
    const HEIGHT: f64 = 96.0;
    let words = format!("{title}: {}", within(sums)?);
    let most = sums.iter().copied().max()?.max(1);
    let each = WIDTH as f64 / sums.len() as f64;
    let mut path = String::new();
    for (at, count) in sums.iter().enumerate().filter(|(_, count)| **count > 0) {
        // A bucket that is not empty has a visible column.
        let height = (*count as f64 / most as f64 * HEIGHT).max(1.0);
        let (left, right) = (at as f64 * each + 2.0, (at + 1) as f64 * each - 2.0);
        // Writing to a `String` does not fail.
        let _ = write!(
            path,
            "M{left:.1} {HEIGHT}V{:.1}H{right:.1}V{HEIGHT}Z",
            HEIGHT - height
        );
    }
    let names = latency_bounds().map(span).chain(["more".to_owned()]);
    Some(html! {
        figure class="latency" {
            figcaption { (words) }
            svg role="img" aria-label=(words) viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" {
                path class="admitted" d=(path) {}
            }
            ol aria-hidden="true" { @for name in names { li { (name) } } }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_columns_tell_the_same() {
        let mut counts = vec![0; latency_bounds().count() + 1];
        assert!(within(&counts).is_none() && histogram("a", &counts).is_none());
        (counts[0], counts[3]) = (98, 2);
        assert_eq!(
            within(&counts).unwrap(),
            "half within 10 µs, 99 % within 100 µs"
        );
        let drawn = histogram("a < b", &counts).unwrap().into_string();
        assert!(
            drawn.contains("a &lt; b: half within 10 µs") && drawn.contains("250 ms"),
            "{drawn}"
        );
        assert_eq!(drawn.matches('Z').count(), 2, "{drawn}");
        *counts.last_mut().unwrap() = 1_000;
        assert!(within(&counts).unwrap().ends_with("99 % within over 1 s"));
    }
}
