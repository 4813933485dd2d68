//! The names of rules' limits, and their keys.

use rapidhash::v3::{RapidSecrets, rapidhash_v3_seeded};
use tidegate_service::digest::{digest_of, hex};

/// The maximum length of a limit's name.
const MAX_NAME: usize = 64;
/// Fixed, so that a rule has the same name on every server and after every restart.
const SEED: u64 = 0x7469_6465_6761_7465;

/// The name of the limit of a descriptor: `domain.key--value.key`. If the name is ambiguous, too
/// long, or has characters that a limit's name must not contain, a digest of the full path is
/// appended.
///
/// ```text
/// (shop, [(user, -)])                  shop.user
/// (shop, [(path, /cart), (user, -)])   shop.path---cart.user-8c3fd1a26be94f07
/// ```
pub fn limit_name(domain: &str, path: &[(&str, Option<&str>)]) -> String {
    let mut name = String::new();
    let mut exact = push(&mut name, domain);
    for (key, value) in path {
        name.push('.');
        exact &= push(&mut name, key);
        if let Some(value) = value {
            name.push_str("--");
            exact &= push(&mut name, value);
        }
    }
    if exact && name.len() <= MAX_NAME {
        return name;
    }
    let mut place = Vec::new();
    push_value(&mut place, domain, false);
    for (key, value) in path {
        push_value(&mut place, key, false);
        // A value is never empty, so an empty text stands for no value.
        push_value(&mut place, value.unwrap_or_default(), false);
    }
    name.truncate(MAX_NAME - 17);
    format!(
        "{name}-{:016x}",
        rapidhash_v3_seeded(&place, &RapidSecrets::seed(SEED))
    )
}

/// Appends text as a part of a name. Returns whether no other text would look the same.
fn push(name: &mut String, text: &str) -> bool {
    let before = name.len();
    name.extend(text.chars().map(|c| {
        if c.is_ascii_alphanumeric() || c == '_' || c == '-' {
            c
        } else {
            '-'
        }
    }));
    let odd =
        text.is_empty() || text.starts_with('-') || text.ends_with('-') || text.contains("--");
    !odd && name[before..] == *text
}

/// Longer values are in keys as their SHA-256, so that the size of a key in memory, in the store
/// and in reports is bounded.
const MAX_VALUE: usize = 256;

/// Appends to a key of several values: each except the last has its length in front, so that
/// different lists of values make different keys. Instead of a long value, its length, a `#` and
/// its SHA-256 are appended.
pub fn push_value(key: &mut Vec<u8>, value: &str, last: bool) {
    // A value that could be mistaken for such a digest is replaced, too.
    let is_long = value.len() > MAX_VALUE || (value.len() > 64 && value.contains('#'));
    if is_long || !last {
        key.extend_from_slice(itoa::Buffer::new().format(value.len()).as_bytes());
        key.push(if is_long { b'#' } else { b':' });
    }
    if is_long {
        return key.extend_from_slice(hex(&digest_of(value.as_bytes())).as_bytes());
    }
    key.extend_from_slice(value.as_bytes());
}
