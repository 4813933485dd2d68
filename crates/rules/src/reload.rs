//! Requests to reload the rules, and their results.

use tokio::sync::oneshot;

/// A request to reload the rules now, and the receiver of the result.
pub type ReloadOrder = Option<oneshot::Sender<Reloaded>>;

/// The result of reloading the rules.
#[derive(Debug)]
pub enum Reloaded {
    /// The rules are in force.
    Loaded { limits: usize },
    /// The rules were rejected for these reasons; the previous ones stay active.
    Rejected { problems: Vec<String> },
    /// The server runs with the built-in rules, without a file.
    BuiltIn,
}
