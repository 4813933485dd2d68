//! All streams' buckets, and which of them share a key of a limit.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    ops::{Index, IndexMut},
    sync::Arc,
};

use slab::Slab;
use tidegate_core::Nanos;
use tidegate_service::decide::service::InForce;

use super::{
    super::{
        part::Part,
        wire::{self, Bucket},
    },
    place::{Charged, Place, place},
};

/// One bucket of one Envoy.
pub(super) struct Held {
    pub stream: u64,
    pub bucket: Arc<Bucket>,
    pub domain: Arc<str>,
    pub part: Part,
    place: Place,
}

impl Held {
    pub fn new(stream: u64, bucket: Arc<Bucket>, domain: Arc<str>, now: Nanos) -> Self {
        Self {
            stream,
            bucket,
            domain,
            part: Part::new(now),
            place: Place::Free { rule: None },
        }
    }

    pub fn place(&self) -> &Place {
        &self.place
    }
}

/// The buckets with one key of a limit, in numbers.
#[derive(Clone, Copy, Default)]
pub(super) struct KeySums {
    /// The buckets of open streams.
    pub open: u64,
    /// The units that all of them, including lost ones, may spend in later seconds.
    pub reserve: u64,
}

impl KeySums {
    fn add(&mut self, part: &Part, now: Nanos) {
        self.open += u64::from(!part.is_lost);
        self.reserve = self.reserve.saturating_add(part.reserve(now));
    }
}

/// The sums of the keys that new buckets of one report have, so that each key is summed up once.
#[derive(Default)]
pub(super) struct Sums {
    by_key: HashMap<Arc<Charged>, KeySums>,
}

impl Sums {
    /// The sums of this key, with this new bucket, which has no share yet.
    pub fn with(
        &mut self,
        buckets: &Buckets,
        at: usize,
        charged: &Arc<Charged>,
        now: Nanos,
    ) -> &mut KeySums {
        match self.by_key.entry(Arc::clone(charged)) {
            Entry::Occupied(known) => {
                let sums = known.into_mut();
                sums.add(&buckets[at].part, now);
                sums
            }
            Entry::Vacant(unknown) => unknown.insert(buckets.sums(charged, now)),
        }
    }

    /// A bucket was removed.
    pub fn without(&mut self, removed: &Held, now: Nanos) {
        if let Place::Limited(charged) = &removed.place
            && let Some(sums) = self.by_key.get_mut(charged)
        {
            sums.open = sums.open.saturating_sub(1);
            sums.reserve = sums.reserve.saturating_sub(removed.part.reserve(now));
        }
    }
}

#[derive(Default)]
pub(super) struct Buckets {
    held: Slab<Held>,
    /// The buckets of each key. A key has at least one.
    same: HashMap<Arc<Charged>, BTreeSet<usize>>,
    /// The length of all names and values.
    text: usize,
}

impl Buckets {
    pub fn insert(&mut self, held: Held, in_force: &InForce) -> usize {
        self.text += wire::text_of(&held.bucket);
        let at = self.held.insert(held);
        self.find_place(at, in_force);
        at
    }

    /// # Panics
    ///
    /// If no bucket has this number.
    pub fn remove(&mut self, at: usize) -> Held {
        let held = self.held.remove(at);
        self.text -= wire::text_of(&held.bucket);
        if let Place::Limited(charged) = &held.place
            && let Some(same) = self.same.get_mut(charged)
        {
            same.remove(&at);
            if same.is_empty() {
                self.same.remove(charged);
            }
        }
        held
    }

    /// Matches all buckets again after a change of the configuration.
    pub fn find_places(&mut self, in_force: &InForce) {
        self.same.clear();
        let all: Vec<usize> = self.held.iter().map(|(at, _)| at).collect();
        for at in all {
            self.find_place(at, in_force);
            self.held[at].part.keep_all();
        }
    }

    fn find_place(&mut self, at: usize, in_force: &InForce) {
        let held = &mut self.held[at];
        held.place = place(in_force, &held.domain, &held.bucket);
        if let Place::Limited(charged) = &held.place {
            self.same.entry(Arc::clone(charged)).or_default().insert(at);
        }
    }

    pub fn get(&self, at: usize) -> Option<&Held> {
        self.held.get(at)
    }

    pub fn iter(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.held.iter()
    }

    /// Each key of a limit, with its buckets.
    pub fn by_key(&self) -> impl Iterator<Item = (&Arc<Charged>, &BTreeSet<usize>)> {
        self.same.iter()
    }

    fn sums(&self, charged: &Charged, now: Nanos) -> KeySums {
        let mut sums = KeySums::default();
        for at in self.same.get(charged).into_iter().flatten() {
            sums.add(&self.held[*at].part, now);
        }
        sums
    }

    pub fn len(&self) -> usize {
        self.held.len()
    }

    pub fn text(&self) -> usize {
        self.text
    }
}

impl Index<usize> for Buckets {
    type Output = Held;

    fn index(&self, at: usize) -> &Held {
        &self.held[at]
    }
}

impl IndexMut<usize> for Buckets {
    fn index_mut(&mut self, at: usize) -> &mut Held {
        &mut self.held[at]
    }
}
