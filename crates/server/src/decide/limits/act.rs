//! What a request does with its cost.

/// What to do with a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Take it, if the limit admits. A cost of 0 takes nothing and is not counted.
    Take,
    /// See whether the limit would admit it.
    Peek,
    /// Refund up to this much of what was taken.
    Refund,
}
