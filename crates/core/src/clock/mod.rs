//! Where the time is read, and waited for.
//!
//! All else in Tidegate takes the time as an argument, or a [`Clock`](crate::Clock): [`SystemClock`] and [`CoarseClock`] are the real
//! ones. A [`Timer`] can also be awaited, on any async runtime; [`ManualTimer`] is the one for tests, which moves when
//! told to.

mod system;
mod timer;

pub use system::{CoarseClock, SystemClock};
pub use timer::{ManualTimer, Timer};
