//! Why a policy cannot be shared.

/// Why the scripts cannot implement a policy exactly.
///
/// Redis has a time in microseconds, and its scripts compute with doubles. A policy that they
/// cannot represent exactly is refused instead of rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The policy counts denials, so each denial would cause a write.
    #[error(
        "a shared limit cannot count denied requests, because it writes nothing for them; remove count_denied"
    )]
    CountsDenied,
    /// The window is not a whole number of microseconds.
    #[error(
        "the window of a shared limit must be a whole number of microseconds, the unit of Redis's clock"
    )]
    Window,
    /// A slot (the window divided by the number of slots, rounded up to a nanosecond) is not a
    /// whole number of microseconds.
    #[error(
        "the slots of a shared limit must be a whole number of microseconds, the unit of Redis's clock; choose a number of slots that divides the window"
    )]
    Slot,
    /// The permits have no longest hold, so those of a process that dies would be lost for ever.
    #[error(
        "shared permits need a longest hold, after which the permits of a process that died expire; set one"
    )]
    NoHold,
    /// The limit has more than 4,096 permits.
    #[error("a shared limit has at most 4096 permits; lower the limit, or use several keys")]
    TooManyPermits,
    /// The limit is above 4,294,967,295, and the algorithm is not the fixed window.
    #[error(
        "a shared limit above 4294967295 must be a fixed-window, whose script counts so far; choose it, or a lower limit"
    )]
    LimitTooHigh,
    /// This version has no script for the algorithm.
    #[error("this algorithm cannot be shared over Redis yet")]
    Unknown,
}
