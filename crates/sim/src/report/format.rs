//! Numbers and times in readable form.

use std::time::Duration;

use tidegate_core::Nanos;

pub(crate) use crate::numbers::{counted, grouped};
use crate::{input::write_utc, replay::Timeline};

/// A share as a percentage with three significant digits, `0.00312%`; zero is `0%`, and less than
/// all is never `100%`.
pub(crate) fn percent(part: u64, all: u64) -> String {
    if part == 0 || all == 0 {
        return "0%".to_owned();
    }
    percentage(part as f64 / all as f64, part < all)
}

/// The same for a share between 0 and 1 (or above).
pub(super) fn percentage(share: f64, below_one: bool) -> String {
    let percent = share * 100.0;
    let text = match percent {
        0.0 => "0".to_owned(),
        100.0.. => format!("{percent:.0}"),
        10.0.. => format!("{percent:.1}"),
        1.0.. => format!("{percent:.2}"),
        0.1.. => format!("{percent:.3}"),
        0.01.. => format!("{percent:.4}"),
        0.000_01.. => format!("{percent:.5}"),
        _ => return "<0.00001%".to_owned(),
    };
    if below_one && text == "100.0" {
        ">99.9%".to_owned()
    } else {
        format!("{text}%")
    }
}

/// A span with two units at most: `3d4h`, `25s`, `312ms`.
pub(super) fn span(span: Duration) -> String {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    let units = [
        (10_000, 1_000),
        (10_000_000, 1_000_000),
        (10_000_000_000, 10_000_000),
        (60_000_000_000, 1_000_000_000),
        (86_400_000_000_000, 60_000_000_000),
        (10 * 86_400_000_000_000, 3_600_000_000_000),
    ];
    let unit = units
        .into_iter()
        .rfind(|(from, _)| nanos >= *from)
        .map_or(1, |(_, unit)| unit);
    Nanos::new(nanos - nanos % unit).to_string()
}

/// A moment on a timeline: its date, or how long after the start it is.
pub(super) fn moment(timeline: &Timeline, time: u64) -> String {
    if timeline.has_dates {
        write_utc(time)
    } else {
        span(Duration::from_nanos(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        let texts = [
            0,
            12,
            312_456_789,
            25_000_000_000,
            3 * 86_400_000_000_000 + 5_000_000_000,
        ]
        .map(|nanos| span(Duration::from_nanos(nanos)));
        assert_eq!(texts, ["0s", "12ns", "312ms", "25s", "3d"]);
    }
}
