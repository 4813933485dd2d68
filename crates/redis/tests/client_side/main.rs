//! What a limit does when its store is away, slow or has other rules: the client's own side, which is the same with each version of the
//! store.
#![cfg(feature = "servers")]

mod addresses;
mod back;
mod deadlines;
mod health;
mod leased_in_turn;
mod rule_changes;
mod told;
#[path = "../integration/waiting/mod.rs"]
mod waiting;
