//! The statistics of resources, which rules read and callers may see.

pub(crate) mod borrowed;
pub(crate) mod bounds;
pub(crate) mod named_nodes;
pub(crate) mod node;
