//! From a key of any length to its tag.

use std::hash::{BuildHasher, Hasher, RandomState};

use siphasher::sip::SipHasher13;

use crate::Tag;

/// The secret keys of a table's hash. Whoever knows them can make keys that meet in one bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKeys(pub u64, pub u64);

impl HashKeys {
    /// From the operating system's randomness, by way of the standard library.
    #[must_use]
    pub fn random() -> Self {
        let draw = || RandomState::new().build_hasher().finish();
        Self(draw(), draw())
    }

    /// The tag of a key. SipHash-1-3, as the standard library's maps.
    #[must_use]
    #[inline]
    pub fn tag(self, key: &[u8]) -> Tag {
        Tag::new(SipHasher13::new_with_keys(self.0, self.1).hash(key))
    }
}

impl std::fmt::Debug for HashKeys {
    /// Secret, so not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKeys(secret)")
    }
}
