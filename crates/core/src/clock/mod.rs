//! The clocks: the only code that reads the time or waits for it.
//!
//! Everything else in Tidegate takes the time as an argument, or a [`Clock`](crate::Clock).
//! [`SystemClock`] and [`CoarseClock`] read the real time. A [`Timer`] can also be awaited, on any
//! async runtime. [`ManualTimer`] is for tests; it moves only when it is advanced or set.

mod system;
mod timer;

pub use system::{CoarseClock, SystemClock};
pub use timer::{ManualTimer, Timer, block_on};
