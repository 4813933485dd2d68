//! A call, from the gate that it asks to the end of its guard.
//!
//! ```text
//! Gate ─► Resource ─ State ─► Compiled (the rules of the resource)
//!            │
//! Entry ─ enter ─► admit ─► Pass ─► Guard ─ leave ─► statistics and breakers
//! ```

mod admit;
pub(crate) mod breaker;
mod compile;
mod compiled;
mod enter;
pub(crate) mod entry;
pub(crate) mod failure;
pub(crate) mod gate;
mod gate_state;
pub(crate) mod guard;
mod leave;
mod pass;
pub(crate) mod resource;
mod signals;
mod state;
pub(crate) mod table;
mod timer;
