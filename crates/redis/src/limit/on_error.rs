//! What happens without the store.

/// The substitute for the store's decision while the store makes none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// Admit everything, without any limit.
    Open,
    /// Deny everything.
    Closed,
    /// Decide in memory, starting from zero, with the limit divided by the last known number of
    /// nodes (at least 1 for each). The limit holds approximately.
    #[default]
    Local,
}
