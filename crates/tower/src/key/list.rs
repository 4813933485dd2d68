//! Lists of keys that change while they are in use.

use std::{collections::HashSet, fmt, sync::Arc};

use arc_swap::ArcSwap;

/// A list of keys, such as those that no limit holds for. It changes while services use it; a clone is the same list.
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

    /// Whether a key is on the list.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.0.load().contains(key)
    }

    /// Replaces the whole list at once.
    pub fn set<K: Into<Vec<u8>>>(&self, keys: impl IntoIterator<Item = K>) {
        self.0.store(Arc::new(keys.into_iter().map(Into::into).collect()));
    }

    /// Adds a key. It copies the list: to add many, [`set`](Self::set) them together.
    pub fn add(&self, key: impl Into<Vec<u8>>) {
        let key = key.into();
        self.0.rcu(|keys| {
            let mut keys = HashSet::clone(keys);
            keys.insert(key.clone());
            keys
        });
    }

    /// Removes a key. It copies the list.
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
        Self(Arc::new(ArcSwap::from_pointee(keys.into_iter().map(Into::into).collect())))
    }
}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyList").field("keys", &self.0.load().len()).finish()
    }
}
