//! Keys in a rules file.

use tidegate_config::{Complaints, Node};

use crate::MAX_KEY_BYTES;

/// A key in this list, or a complaint.
pub(super) fn read_key<'a>(node: &'a Node, list: &str, complaints: &Complaints) -> Option<&'a str> {
    let (what, mend) = match node.text() {
        Some(key) if key.len() <= MAX_KEY_BYTES => return Some(key),
        Some(_) => (
            format!("a key in `{list}` is longer than {MAX_KEY_BYTES} bytes"),
            "requests with such a key are refused anyway",
        ),
        None => (
            format!("a key in `{list}` is {}", node.describe()),
            "write the key as text, in quotes if need be",
        ),
    };
    complaints.at(node.line, what, mend);
    None
}
