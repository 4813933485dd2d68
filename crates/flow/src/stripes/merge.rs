//! The slots of several windows as the slots of one.

use std::collections::BTreeMap;

use tidegate_core::stats::{Counts, Slot};

/// Merges the slots of windows, each oldest first and with the units in flight now. Each window's maximum in flight counts in
/// full, as if all had been reached at the same time.
pub(crate) fn merged(windows: &[(Vec<Slot>, u64)]) -> Vec<Slot> {
    let mut all: BTreeMap<_, Counts> = BTreeMap::new();
    for Slot { start, counts } in windows.iter().flat_map(|(slots, _)| slots) {
        let sum = all.entry(*start).or_default();
        let max_in_flight = sum.max_in_flight + counts.max_in_flight;
        *sum = Counts { max_in_flight, ..sum.and(*counts) };
    }
    for (slots, in_flight) in windows {
        // The units in flight at the end of a slot, from the newest slot backwards.
        let (mut inside, mut slots) = (*in_flight, slots.iter().rev().peekable());
        for (start, sum) in all.iter_mut().rev() {
            match slots.next_if(|slot| slot.start == *start) {
                Some(Slot { counts, .. }) => inside = (inside + counts.success).saturating_sub(counts.pass),
                // No call entered or left in this slot, but some were in flight.
                None => sum.max_in_flight += inside,
            }
        }
    }
    all.into_iter().map(|(start, counts)| Slot { start, counts }).collect()
}
