//! Lists of keys that can change while they are in use.

use std::{collections::HashSet, fmt, sync::Arc};

use arc_swap::ArcSwap;

/// A list of keys, such as keys that are exempt from a limit. It can change while services use it.
/// Clones share the list.
///
/// ```
/// use tidegate_tower::key::KeyList;
///
/// let probes = KeyList::from_iter(["192.0.2.7"]);
/// assert!(probes.contains(b"192.0.2.7"));
/// probes.set(["192.0.2.8"]);
/// assert!(!probes.contains(b"192.0.2.7"));
/// ```
#[derive(Clone, Default)]
pub struct KeyList(Arc<ArcSwap<HashSet<Vec<u8>>>>);

impl KeyList {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the list contains a key.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.0.load().contains(key)
    }

    /// Replaces the whole list at once.
    pub fn set<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) {
        self.0
            .store(Arc::new(keys.into_iter().map(Into::into).collect()));
    }

    /// Adds a key. This copies the list; use [`set`](Self::set) to add many keys.
    pub fn add(&self, key: impl Into<Vec<u8>>) {
        let key = key.into();
        self.0.rcu(|keys| {
            let mut keys = HashSet::clone(keys);
            keys.insert(key.clone());
            keys
        });
    }

    /// Removes a key. This copies the list.
    pub fn remove(&self, key: &[u8]) {
        self.0.rcu(|keys| {
            let mut keys = HashSet::clone(keys);
            keys.remove(key);
            keys
        });
    }
}

impl<K: Into<Vec<u8>>> FromIterator<K> for KeyList {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(
            keys.into_iter().map(Into::into).collect(),
        )))
    }
}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList")
            .field("keys", &self.0.load().len())
            .finish()
    }
}
