//! The bounds that the rules set to a node, and the view in which they hold.

use std::time::Duration;

use tidegate_core::stats::{Layout, View};

/// The last second of a gate's windows.
pub(crate) fn second(layout: Layout) -> View {
    // The layout was checked when the gate was built.
    layout
        .view(1, Duration::from_secs(1))
        .unwrap_or(layout.whole())
}

/// The whole units of a number that is not negative.
#[inline]
#[allow(clippy::cast_sign_loss, reason = "the cast saturates")]
pub(crate) const fn whole(number: f64) -> u64 {
    number as u64
}

/// [`Node::pass_far`](crate::stats::node::Node::pass_far) admits only calls of at most this
/// fraction of a bound. A call that it admits has to be withdrawn only if dozens of others come in
/// between.
const FAR: u64 = 64;

/// The units that may pass in a second, and that may be in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) passed: u64,
    pub(crate) in_flight: u64,
}

impl Bounds {
    pub(crate) const NONE: Self = Self {
        passed: u64::MAX,
        in_flight: u64::MAX,
    };

    /// Bounds that are at least as strict as both.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            passed: self.passed.min(other.passed),
            in_flight: self.in_flight.min(other.in_flight),
        }
    }

    /// Whether a call of `n` units is small compared with the bounds. An entry of zero units is not
    /// a call.
    #[inline]
    pub(crate) const fn are_far(self, n: u32) -> bool {
        n > 0 && n as u64 <= self.passed / FAR && n as u64 <= self.in_flight / FAR
    }
}
