//! Why a policy cannot be shared.

use std::fmt;

/// Why the scripts cannot decide by a policy exactly.
///
/// Redis tells the time in microseconds and its scripts count in doubles: what they could not represent exactly is refused
/// rather than rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The policy counts denials too, for which a denial would have to be written.
    CountsDenied,
    /// The window is no whole number of microseconds.
    Window,
    /// A slot (the window divided by their number, rounded up to a nanosecond) is no whole number of microseconds.
    Slot,
    /// Permits without a longest hold: those of a process that died would be lost for ever.
    NoHold,
    /// More than 4,096 permits.
    TooManyPermits,
    /// An algorithm that this version has no script for.
    Unknown,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CountsDenied => {
                "a shared limit cannot count denied requests: it writes nothing for them; leave count_denied out"
            }
            Self::Window => {
                "the window of a shared limit must be a whole number of microseconds, as Redis tells the time in them"
            }
            Self::Slot => {
                "the slots of a shared limit must be a whole number of microseconds, as Redis tells the time in them; choose a number of slots that divides the window"
            }
            Self::NoHold => {
                "shared permits need a longest hold, after which those of a process that died come back; set one"
            }
            Self::TooManyPermits => "a shared limit has at most 4096 permits; lower the limit, or use several keys",
            Self::Unknown => "this algorithm cannot be shared over Redis yet",
        })
    }
}

impl std::error::Error for PlanError {}
