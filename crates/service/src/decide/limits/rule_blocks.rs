//! The names of keys that a rule's `block_for` blocks. The blocks are in the states, which know keys
//! by their hashes alone, or in the store, which has no list of them: there a server knows those
//! that it has seen.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::Nanos;

/// How many names of one limit are kept.
const MOST: usize = 20_000;
/// How often those whose blocks have ended are looked for while there is no room.
const LOOKS_EVERY: Nanos = Nanos::from_secs(1);

/// Keys that a rule has blocked, with the times of their first denials and the ends of their blocks.
#[derive(Debug, Default)]
pub struct RuleBlocks(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    keys: BTreeMap<Box<[u8]>, (Nanos, Nanos)>,
    looked: Nanos,
}

impl RuleBlocks {
    /// Notes a denial of a key that the rule blocks until a time.
    pub fn note(&self, key: &[u8], until: Nanos, now: Nanos) {
        let mut known = self.known();
        if let Some((since, end)) = known.keys.get_mut(key) {
            if *end <= now {
                *since = now;
            }
            *end = until;
            return;
        }
        if known.keys.len() >= MOST && now.saturating_since(known.looked) >= LOOKS_EVERY {
            known.looked = now;
            known.keys.retain(|_, (_, end)| *end > now);
        }
        if known.keys.len() < MOST {
            known.keys.insert(key.into(), (now, until));
        }
    }

    /// Forgets a key whose block was ended.
    pub fn forget(&self, key: &[u8]) {
        self.known().keys.remove(key);
    }

    /// The end of a key's block, if it is known.
    pub fn until(&self, key: &[u8]) -> Option<Nanos> {
        self.known().keys.get(key).map(|(_, until)| *until)
    }

    /// The keys. Their blocks may have ended since.
    pub fn keys(&self) -> Vec<Box<[u8]>> {
        self.known().keys.keys().cloned().collect()
    }

    /// When a key's block was first seen.
    pub fn since(&self, key: &[u8]) -> Option<Nanos> {
        self.known().keys.get(key).map(|(since, _)| *since)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // A panic cannot leave the map half changed.
        self.0.lock()
    }
}
