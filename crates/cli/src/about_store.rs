//! The help text of `serve` and `check` about a shared store.

/// The requirements of a store for shared limits.
pub const STORE: &str = include_str!("about_store.txt").trim_ascii_end();
