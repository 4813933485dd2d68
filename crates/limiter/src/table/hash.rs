//! Computes the tag of a key of any length.

use std::hash::{BuildHasher, Hasher, RandomState};

use rapidhash::v3::{RapidSecrets, rapidhash_v3_micro_inline};

use super::Tag;

/// The secret keys of a table's hash.
///
/// The hash (rapidhash v3, its protected form) is keyed, not cryptographic: clients cannot choose
/// keys that collide because of these 128 random bits, which no answer reveals. It has a third of
/// the instructions of SipHash-1-3. That matters more than its own nanoseconds, because the
/// processor hashes the next key while it fetches this key's bucket.
#[derive(Clone, Copy)]
pub struct HashKeys {
    seeds: (u64, u64),
    secrets: RapidSecrets,
}

impl HashKeys {
    /// Random keys from the operating system, through the standard library.
    #[must_use]
    pub fn random() -> Self {
        let draw = || RandomState::new().build_hasher().finish();
        Self::from_seeds(draw(), draw())
    }

    /// The same keys as another table's, which give the same tags: a snapshot contains tags. Stable
    /// across versions and platforms.
    #[must_use]
    pub const fn from_seeds(one: u64, two: u64) -> Self {
        let mut secrets = RapidSecrets::seed(one);
        secrets.seed ^= two;
        Self {
            seeds: (one, two),
            secrets,
        }
    }

    /// The seeds from which [`from_seeds`](Self::from_seeds) makes the same keys. With them, a
    /// client can choose keys that collide.
    #[must_use]
    pub const fn seeds(&self) -> (u64, u64) {
        self.seeds
    }

    /// The tag of a key, by which a [snapshot](crate::KeyedAt::snapshot) names it.
    #[must_use]
    #[inline]
    pub fn tag(&self, key: &[u8]) -> u64 {
        self.tag_of(key).get()
    }

    #[inline]
    pub(crate) fn tag_of(&self, key: &[u8]) -> Tag {
        Tag::new(rapidhash_v3_micro_inline::<true, true>(key, &self.secrets))
    }
}

impl std::fmt::Debug for HashKeys {
    /// Secret, so not shown.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKeys(secret)")
    }
}
