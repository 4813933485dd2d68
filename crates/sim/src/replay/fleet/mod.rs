//! A replay through servers that share a limit: they, the store and the messages between them, in
//! virtual time.

mod messages;
mod node;
mod run;

pub(super) use run::FleetRun;
