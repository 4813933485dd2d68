//! A bounded number of values, each with its state: what hot-parameter rules keep.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use hashbrown::HashTable;

use crate::arg::Arg;

const SHARDS: usize = 16;
/// How many places are looked at for one whose value has recovered.
const TRIED: usize = 8;

/// States by value, at most a given number. When all places of a shard are taken and none of those looked at has
/// recovered, the value shares the shard's spare state with all others in the same case. A value that gets a place of
/// its own later may have used or may hold some of the spare, so its own state begins with the spare's.
pub(crate) struct Values<S> {
    shards: Box<[Mutex<Shard<S>>]>,
    /// Keyed by chance, so that nobody can choose values that meet.
    hasher: RandomState,
    crowded: AtomicU64,
}

struct Shard<S> {
    /// Indices into `places`, by the hash of the value there.
    index: HashTable<u32>,
    places: Vec<Own<S>>,
    most: usize,
    /// Where the search for a recovered value goes on.
    hand: usize,
    spare: S,
}

/// The state of one value.
struct Own<S> {
    hash: u64,
    value: Arg<'static>,
    state: S,
    /// How many values had the place before.
    earlier: u32,
}

/// Where a value's state is; stays there while the state is not recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    shard: usize,
    /// `None` for the shared state. And how many values had the place before, so that it is not taken for another's.
    at: Option<(u32, u32)>,
}

impl Place {
    pub(crate) const fn is_shared(&self) -> bool {
        self.at.is_none()
    }
}

impl<S: Copy + Default> Values<S> {
    pub(crate) fn new(most: usize) -> Self {
        let shards = if most < SHARDS * 8 { 1 } else { SHARDS };
        let shard = |_| {
            let (index, places, most) = (HashTable::new(), Vec::new(), most.div_ceil(shards));
            Mutex::new(Shard { index, places, most, hand: 0, spare: S::default() })
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            hasher: RandomState::new(),
            crowded: AtomicU64::new(0),
        }
    }

    /// Keeps at most this many values from now on (and up to a shard's worth more, as from the start); those that are too
    /// many then go when they have recovered and another value comes.
    pub(crate) fn keep_at_most(&self, most: usize) {
        for shard in 0..self.shards.len() {
            self.lock(shard).most = most.div_ceil(self.shards.len());
        }
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard<S>> {
        // States are changed in single steps: one that a panic left behind is whole.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn crowded(&self) -> u64 {
        self.crowded.load(Ordering::Relaxed)
    }

    /// Runs `change` on the state of `value` and the spare one. A value that has no state gets a place, perhaps from one
    /// that `recovered` finds to be as good as fresh, and there what `begun` makes of the spare state; or the spare.
    pub(crate) fn with<T>(
        &self,
        value: &Arg<'_>,
        recovered: impl Fn(&Arg<'static>, &S) -> bool,
        begun: impl FnOnce(&S) -> S,
        change: impl FnOnce(&mut S, &S, Place) -> T,
    ) -> T {
        let hash = self.hasher.hash_one(value);
        let at_shard = (hash >> 32) as usize % self.shards.len();
        let mut shard = self.lock(at_shard);
        let at = shard.find_or_place(hash, value, recovered, begun);
        if at.is_none() {
            // Relaxed: a count for people.
            self.crowded.fetch_add(1, Ordering::Relaxed);
        }
        let at = at.map(|at| (at, shard.places[at as usize].earlier));
        let (spare, place) = (shard.spare, Place { shard: at_shard, at });
        shard.state(&place).map_or_else(|| unreachable!("just found"), |state| change(state, &spare, place))
    }

    /// Runs `change` on the state at a place, unless the place has gone to another value.
    pub(crate) fn at(&self, place: &Place, change: impl FnOnce(&mut S)) {
        self.lock(place.shard).state(place).map(change);
    }
}

impl<S: Copy + Default> Shard<S> {
    fn state(&mut self, place: &Place) -> Option<&mut S> {
        let Some((at, earlier)) = place.at else { return Some(&mut self.spare) };
        let own = self.places.get_mut(at as usize)?;
        (own.earlier == earlier).then_some(&mut own.state)
    }

    fn find_or_place(
        &mut self,
        hash: u64,
        value: &Arg<'_>,
        recovered: impl Fn(&Arg<'static>, &S) -> bool,
        begun: impl FnOnce(&S) -> S,
    ) -> Option<u32> {
        let known = self.index.find(hash, |&at| &self.places[at as usize].value == value);
        if let Some(&at) = known {
            return Some(at);
        }
        self.shrink(&recovered);
        let new = |state, earlier| Own { hash, value: value.clone().into_owned(), state, earlier };
        let at = if self.places.len() < self.most {
            self.places.push(new(begun(&self.spare), 0));
            self.places.len() - 1
        } else {
            let at = self.free_place(recovered)?;
            let Own { hash: gone, earlier, .. } = self.places[at];
            self.forget(gone, at);
            self.places[at] = new(begun(&self.spare), earlier.wrapping_add(1));
            at
        };
        let places = &self.places;
        self.index.insert_unique(hash, at as u32, |&at| places[at as usize].hash);
        Some(at as u32)
    }

    /// Gives up places beyond the most, from the last on, as far as they have recovered: the others stay where they are.
    fn shrink(&mut self, recovered: impl Fn(&Arg<'static>, &S) -> bool) {
        while self.places.len() > self.most
            && let Some(gone) = self.places.pop_if(|own| recovered(&own.value, &own.state))
        {
            self.forget(gone.hash, self.places.len());
        }
    }

    fn forget(&mut self, hash: u64, at: usize) {
        if let Ok(entry) = self.index.find_entry(hash, |&other| other as usize == at) {
            entry.remove();
        }
    }

    fn free_place(&mut self, recovered: impl Fn(&Arg<'static>, &S) -> bool) -> Option<usize> {
        let places = self.places.len().min(self.most);
        for _ in 0..TRIED.min(places) {
            let at = self.hand % places;
            self.hand = at + 1;
            let Own { value, state, .. } = &self.places[at];
            if recovered(value, state) {
                return Some(at);
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_values_resets_nobody_and_grows_no_memory() {
        let values: Values<u64> = Values::new(100);
        let used = |_: &Arg<'_>, state: &u64| *state == 0;
        values.with(&"limited".into(), used, |_| 0, |state, _, _| *state = 7);
        for value in 0..100_000_i64 {
            values.with(&Arg::from(value), used, |_| 0, |state, _, _| *state += 1);
        }
        values.with(
            &"limited".into(),
            used,
            |_| 0,
            |state, _, place| {
                assert_eq!(*state, 7);
                assert!(place.at.is_some());
            },
        );
        let kept: usize = values.shards.iter().map(|shard| shard.lock().unwrap().places.len()).sum();
        assert_eq!(kept, 100);
        assert_eq!(values.crowded(), 100_000 - 99);
    }

    #[test]
    fn a_recovered_value_makes_room() {
        let values: Values<u64> = Values::new(2);
        let recovered = |_: &Arg<'_>, state: &u64| *state == 0;
        for (value, state) in [("a", 1), ("b", 0), ("c", 2)] {
            values.with(&Arg::from(value), recovered, |_| 0, |s, _, _| *s = state);
        }
        let mut seen = Vec::new();
        for value in ["a", "c"] {
            values.with(&Arg::from(value), recovered, |_| 0, |s, _, _| seen.push(*s));
        }
        assert_eq!((seen, values.crowded()), (vec![1, 2], 0));
    }

    #[test]
    fn fewer_values_are_kept_once_those_too_many_have_recovered() {
        let values: Values<u64> = Values::new(4);
        let recovered = |_: &Arg<'_>, state: &u64| *state == 0;
        let set = |value: &'static str, to: u64| {
            values.with(
                &value.into(),
                recovered,
                |_| 0,
                |state, _, place| {
                    let before = std::mem::replace(state, to);
                    (before, place)
                },
            )
        };
        let places = || values.shards[0].lock().unwrap().places.len();
        for value in ["a", "b", "c", "d"] {
            set(value, 1);
        }
        values.keep_at_most(1);
        set("d", 0);
        assert!(set("e", 1).1.is_shared());
        assert_eq!((places(), set("b", 0).0, set("c", 0).0), (3, 1, 1), "those in use stay where they are");
        set("a", 0);
        assert!(!set("f", 1).1.is_shared());
        assert_eq!(places(), 1);
        values.keep_at_most(2);
        assert_eq!((set("f", 1).0, set("b", 5).0, places()), (1, 0, 2));
    }

    #[test]
    fn a_value_that_leaves_the_shared_state_takes_it_along_and_a_lost_place_is_nobodys() {
        let values: Values<u64> = Values::new(1);
        let recovered = |_: &Arg<'_>, state: &u64| *state == 0;
        let add = |value: &'static str, n| {
            values.with(
                &value.into(),
                recovered,
                |spare| *spare,
                |state, _, place| {
                    *state += n;
                    (*state, place)
                },
            )
        };
        let (_, first) = add("a", 1);
        assert_eq!(add("b", 5).0, 5);
        values.at(&first, |state| *state = 0);
        let (state, own) = add("b", 1);
        assert_eq!((state, own.is_shared()), (6, false));
        values.at(&first, |state| *state = 99);
        assert_eq!(add("b", 0).0, 6, "the place is no longer that of a");
    }
}
