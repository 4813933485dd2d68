//! The notes of tenants that asked lately. Their number grows with the tenants, up to a bound.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use tidegate_core::fair::{FairState, TenantNote};

use crate::table::prefetch_line;

const FIRST: usize = 1 << 10;

/// Where the notes are, for those who do not hold their lock yet.
#[derive(Debug, Default)]
pub(super) struct NotesHint {
    start: AtomicUsize,
    places: AtomicUsize,
}

impl NotesHint {
    /// Starts fetching the places that a note with this name can have. Relaxed: who reads an old
    /// number fetches memory that it does not need.
    #[inline]
    pub fn prefetch(&self, name: u32) {
        let (start, places) = (self.start.load(Relaxed), self.places.load(Relaxed));
        let first = name as usize & places.wrapping_sub(2);
        let of_pair = start.wrapping_add(first * size_of::<TenantNote>());
        prefetch_line(of_pair);
        // Two notes may lie in two lines.
        prefetch_line(of_pair.wrapping_add(2 * size_of::<TenantNote>() - 1));
    }
}

#[derive(Debug)]
pub(super) struct Notes {
    hint: Arc<NotesHint>,
    /// A power of two; a note has one of two neighbouring places, which follow from its name.
    places: Vec<TenantNote>,
    most: usize,
    /// Tenants without a place since the last growth.
    crowded: usize,
}

impl Notes {
    pub fn new(most: usize) -> Self {
        let most = most.next_power_of_two();
        let notes = Self {
            hint: Arc::default(),
            places: vec![TenantNote::default(); FIRST.min(most)],
            most,
            crowded: 0,
        };
        notes.have_moved();
        notes
    }

    /// For those who do not hold the lock yet.
    pub fn hint(&self) -> Arc<NotesHint> {
        Arc::clone(&self.hint)
    }

    fn have_moved(&self) {
        self.hint.start.store(self.places.as_ptr().addr(), Relaxed);
        self.hint.places.store(self.places.len(), Relaxed);
    }

    /// Changes the bound. Notes that are there stay.
    pub fn set_most(&mut self, most: usize) {
        self.most = most.next_power_of_two();
    }

    pub fn clear(&mut self) {
        self.places.fill(TenantNote::default());
    }

    /// All places.
    pub fn places(&self) -> &[TenantNote] {
        &self.places
    }

    /// Forgets all notes, and makes room for as many as a snapshot had.
    pub fn restart(&mut self, places: u64) {
        let places = usize::try_from(places).unwrap_or(self.most).min(self.most);
        let places = places.next_power_of_two().max(FIRST.min(self.most));
        self.places.clear();
        self.places.resize(places, TenantNote::default());
        self.crowded = 0;
        self.have_moved();
    }

    /// Takes in a note of a snapshot, at its place there if that is possible.
    pub fn put(&mut self, place: u64, note: TenantNote, state: &FairState) {
        let pair = self.pair(note.name());
        let place = usize::try_from(place).ok();
        match place.filter(|place| pair.contains(place) && self.places[*place].name() == 0) {
            Some(place) => self.places[place] = note,
            None => *self.of(note.name(), state, &mut TenantNote::default()) = note,
        }
    }

    /// The bytes that the notes take when there are most of them.
    pub fn bytes(&self) -> usize {
        self.most.max(self.places.len()) * size_of::<TenantNote>()
    }

    /// A tenant's note, if it has one.
    pub fn find(&self, name: u32) -> Option<&TenantNote> {
        let mut notes = self.pair(name).map(|place| &self.places[place]).into_iter();
        notes.find(|note| note.name() == name.max(1))
    }

    /// The places that a note with this name can have.
    fn pair(&self, name: u32) -> [usize; 2] {
        let place = name as usize & (self.places.len() - 1);
        [place, (place ^ 1).min(self.places.len() - 1)]
    }

    /// A tenant's note. `beside` is used if other tenants, which asked lately, have its places.
    pub fn of<'a>(
        &'a mut self,
        name: u32,
        state: &FairState,
        beside: &'a mut TenantNote,
    ) -> &'a mut TenantNote {
        if self.crowded > self.places.len() / 8 && self.places.len() < self.most {
            self.grow();
        }
        let pair = self.pair(name);
        let is_own = |place: &&usize| self.places[**place].name() == name.max(1);
        let is_free = |place: &&usize| self.places[**place].is_free_for(name, state);
        let found = pair
            .iter()
            .find(is_own)
            .or_else(|| pair.iter().find(is_free));
        if let Some(&place) = found {
            return self.places[place].of(name);
        }
        self.crowded += 1;
        *beside = TenantNote::for_a_step(name, state);
        beside
    }

    fn grow(&mut self) {
        let before = self.places.len();
        self.places.resize(before * 2, TenantNote::default());
        for place in 0..before {
            if self.places[place].name() as usize & before != 0 {
                self.places.swap(place, place + before);
            }
        }
        self.crowded = 0;
        self.have_moved();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_tenants_with_one_place_have_a_note_each_and_keep_it_when_there_are_more() {
        let (mut notes, state) = (Notes::new(1 << 12), FairState::default());
        let mut beside = TenantNote::default();
        // All of these belong to the first place of 1,024.
        let names = [1 << 10, 1 << 11];
        for name in names {
            assert_eq!(notes.of(name, &state, &mut beside).name(), name);
        }
        // A third one has none while the others are recent.
        assert_eq!(notes.of(3 << 10, &state, &mut beside).name(), 3 << 10);
        assert!(notes.find(3 << 10).is_none() && notes.crowded == 1);
        let kept = names;
        notes.grow();
        assert!(kept.iter().all(|name| notes.find(*name).is_some()));
        assert_eq!(notes.places.len(), 1 << 11);
        notes.clear();
        assert!(kept.iter().all(|name| notes.find(*name).is_none()));
    }
}
