//! The names that a key in the store is made of.

/// Whether a name may be a part of a key: it then ends where the next part begins, and the hash tag
/// is left to the key.
pub fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains([':', '{', '}'])
}
