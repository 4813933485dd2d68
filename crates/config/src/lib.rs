//! Reads configuration files. Each mistake is reported with its line, what is wrong, and how to fix
//! it, and one pass reports all mistakes.
//!
//! [`parse`] turns a YAML text into a tree, [`Fields`] reads the fields of a mapping, and
//! [`Complaints`] collects each [`Problem`]. [`file::Watch`] detects when files change.
//!
//! ```
//! use tidegate_config::{Complaints, Fields, parse};
//!
//! let complaints = Complaints::default();
//! let root = parse("limit: 5\nbrust: 7\n").unwrap().unwrap();
//! let fields = Fields::open(&root, "the file", &["limit", "burst"], &complaints).unwrap();
//! assert_eq!(fields.number("limit", 1), Some(5));
//! assert_eq!(
//!     complaints.into_sorted()[0].to_string(),
//!     "line 2: the file has no option `brust`; did you mean `burst`?"
//! );
//! ```

#![allow(
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the reader of a configuration is the caller"
)]

mod fields;
pub mod file;
mod nearest;
mod problem;
mod tree;

pub use fields::{Complaints, Fields, read};
pub use nearest::{likest, nearest};
pub use problem::Problem;
pub use tree::{Kind, Node, abridged, parse, parse_nested};
