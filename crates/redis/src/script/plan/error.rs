//! Why a policy cannot be shared.

/// Why the scripts cannot decide by a policy exactly.
///
/// Redis tells the time in microseconds and its scripts count in doubles: what they could not represent exactly is refused
/// rather than rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The policy counts denials too, for which a denial would have to be written.
    #[error(
        "a shared limit cannot count denied requests: it writes nothing for them; leave count_denied out"
    )]
    CountsDenied,
    /// The window is no whole number of microseconds.
    #[error(
        "the window of a shared limit must be a whole number of microseconds, as Redis tells the time in them"
    )]
    Window,
    /// A slot (the window divided by their number, rounded up to a nanosecond) is no whole number of microseconds.
    #[error(
        "the slots of a shared limit must be a whole number of microseconds, as Redis tells the time in them; choose a number of slots that divides the window"
    )]
    Slot,
    /// Permits without a longest hold: those of a process that died would be lost for ever.
    #[error(
        "shared permits need a longest hold, after which those of a process that died come back; set one"
    )]
    NoHold,
    /// More than 4,096 permits.
    #[error("a shared limit has at most 4096 permits; lower the limit, or use several keys")]
    TooManyPermits,
    /// An algorithm that this version has no script for.
    #[error("this algorithm cannot be shared over Redis yet")]
    Unknown,
}
