//! Redis servers that a test starts on free ports, hurts, and stops.
//!
//! Every process is killed when its handle is dropped. Nothing here waits a fixed time: what has to come about is asked
//! for again and again, up to [`PATIENCE`], so that a busy machine makes a test slow and not wrong.

mod cluster;
mod proxy;
mod resp;
mod sentinel;
mod server;

use std::time::Duration;

pub use cluster::Cluster;
pub use proxy::Proxy;
pub use resp::{Reply, ask};
pub use sentinel::Sentinel;
pub use server::{Server, free_port};

/// How long something may take to come about before the test fails.
pub const PATIENCE: Duration = Duration::from_mins(1);

/// Asks until the answer is yes.
///
/// # Panics
/// When it is still no after [`PATIENCE`].
pub fn eventually(what: &str, mut yes: impl FnMut() -> bool) {
    // Counted in pauses, so that a process that was frozen for a while does not find its patience gone.
    let pause = Duration::from_millis(10);
    for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
        if yes() {
            return;
        }
        std::thread::park_timeout(pause);
    }
    panic!("still not so after {PATIENCE:?}: {what}");
}
