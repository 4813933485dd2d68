//! The notes of tenants that asked lately. Their number grows with the tenants, up to a bound.

use tidegate_core::fair::{FairState, TenantNote};

const FIRST: usize = 1 << 10;

#[derive(Debug)]
pub(super) struct Notes {
    /// A power of two; a note's place follows from its name.
    places: Vec<TenantNote>,
    most: usize,
    /// Tenants without a place since the last growth.
    crowded: usize,
}

impl Notes {
    pub fn new(most: usize) -> Self {
        let most = most.next_power_of_two();
        Self {
            places: vec![TenantNote::default(); FIRST.min(most)],
            most,
            crowded: 0,
        }
    }

    /// Changes the bound. Notes that are there stay.
    pub fn set_most(&mut self, most: usize) {
        self.most = most.next_power_of_two();
    }

    pub fn clear(&mut self) {
        self.places.fill(TenantNote::default());
    }

    /// The bytes that the notes take when there are most of them.
    pub fn bytes(&self) -> usize {
        self.most.max(self.places.len()) * size_of::<TenantNote>()
    }

    /// A tenant's note, if it has one.
    pub fn find(&self, name: u32) -> Option<&TenantNote> {
        let note = &self.places[name as usize & (self.places.len() - 1)];
        (note.name() == name.max(1)).then_some(note)
    }

    /// A tenant's note. `beside` is used if another tenant, which asked lately, has the place.
    pub fn of<'a>(
        &'a mut self,
        name: u32,
        state: &FairState,
        beside: &'a mut TenantNote,
    ) -> &'a mut TenantNote {
        if self.crowded > self.places.len() / 8 && self.places.len() < self.most {
            self.grow();
        }
        let place = name as usize & (self.places.len() - 1);
        if !self.places[place].is_free_for(name, state) {
            self.crowded += 1;
            *beside = TenantNote::for_a_step(name, state);
            return beside;
        }
        self.places[place].of(name)
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
    }
}
