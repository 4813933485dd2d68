//! Window statistics: counts of events in the newest slots of time.
//!
//! A [`Layout`] divides time into slots. A [`Ring`] counts in them without locks (its documentation
//! explains how it turns and what it promises). A [`Window`] is the ring of one resource, with the
//! events that flow control counts and the last 60 seconds one by one.
//!
//! ```
//! use tidegate_core::{Nanos, stats::{Event, Layout, Window}};
//!
//! let window = Window::with_minute(Layout::second())?;
//! window.pass(Nanos::from_millis(100), 1);
//! window.complete(Nanos::from_millis(130), 1, Nanos::from_millis(30), false);
//! let whole = Layout::second().whole();
//! assert_eq!(window.sum(Nanos::from_millis(1_000), Event::Pass, whole), 1);
//! assert_eq!(window.sum(Nanos::from_millis(1_100), Event::Pass, whole), 0);
//! assert_eq!(window.seconds(Nanos::from_millis(1_100))[0].counts.pass, 1);
//! # Ok::<(), tidegate_core::stats::LayoutError>(())
//! ```

mod counts;
mod headroom;
mod layout;
mod minute;
mod ring;
mod trailing;
mod window;

pub use counts::{Counts, Event, Slot};
pub use headroom::Headroom;
pub use layout::{Layout, LayoutError, MAX_SLOTS, MIN_SLOT, View};
pub use ring::{Head, Ring, Tally};
pub use trailing::Trailing;
pub use window::{Look, Passed, Window};
