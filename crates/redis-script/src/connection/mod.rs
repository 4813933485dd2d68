//! The connection to a store: one server, a master behind sentinels, or a cluster.

mod address;
mod connector;
mod fault;
mod slot;

pub use address::Address;
pub use connector::Connector;
pub use slot::{SLOTS, beside, slot};
