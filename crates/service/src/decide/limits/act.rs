//! The kinds of requests.

/// The effect of a request's cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Take it, if the limit admits. A cost of 0 takes nothing; it is denied while more is in use
    /// than the limit.
    Take,
    /// Take it, whether the limit admits or denies. The answer is a denial if more is in use then
    /// than the limit.
    TakeAnyway,
    /// Take it for work that was done already, so it counts as admitted.
    Charge,
    /// See whether the limit would admit it.
    Peek,
    /// Refund up to `cost` of the units taken.
    Refund,
}
