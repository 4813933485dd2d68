//! Reading a configuration file so that a mistake in it is told with its line, what is wrong, and what to do; and all
//! mistakes in one go.
//!
//! [`parse`] makes a tree of a YAML text; [`Fields`] takes a mapping apart; [`Complaints`] collects each [`Problem`].
//! [`file::Watch`] notices that files have changed.
//!
//! ```
//! use tidegate_config::{Complaints, Fields, parse};
//!
//! let mut complaints = Complaints::default();
//! let root = parse("limit: 5\nbrust: 7\n").unwrap().unwrap();
//! let fields = Fields::open(&root, "the file", &["limit", "burst"], &mut complaints).unwrap();
//! assert_eq!(fields.number("limit", 1, &mut complaints), Some(5));
//! assert_eq!(
//!     complaints.into_sorted()[0].to_string(),
//!     "line 2: the file has no option `brust`; did you mean `burst`?"
//! );
//! ```

mod fields;
pub mod file;
mod nearest;
mod problem;
mod tree;

pub use fields::{Complaints, Fields};
pub use nearest::{likest, nearest};
pub use problem::Problem;
pub use tree::{Kind, Node, abridged, parse, parse_nested};
