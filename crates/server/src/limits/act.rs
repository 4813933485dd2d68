//! What a request does with its cost.

/// What is to be done with a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Take it, if that is admitted. A cost of 0 takes nothing and is not counted.
    Take,
    /// See whether it would be admitted.
    Peek,
    /// Give back up to so much of what was taken.
    Refund,
}
