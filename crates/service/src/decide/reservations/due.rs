//! When the records of a shard are due: lists that are linked through the records' first cells, so
//! that they take no further memory.
//!
//! A list has the records whose tick differs from the current one in the same highest bit. When
//! time has come to that bit, the records of the list go to lists of lower bits or are due (a radix
//! heap). A record moves once for each bit of its time to live at most. Its due time may become
//! later meanwhile: then it goes to its new list when it leaves the old one.

use tidegate_core::Nanos;

use super::records::Records;

const LISTS: usize = u32::BITS as usize + 1;

pub(super) struct Due {
    /// The latest that was asked for.
    tick: u32,
    lists: [Option<u32>; LISTS],
}

impl Default for Due {
    fn default() -> Self {
        Self {
            tick: 0,
            lists: [None; LISTS],
        }
    }
}

impl Due {
    /// Adds a record, by its first cell.
    pub fn add(&mut self, head: u32, records: &mut Records) {
        let list = self.list(tick(records.due(head)));
        records.set_link(head, self.lists[list]);
        self.lists[list] = Some(head);
    }

    /// Takes the lists that may have records which are due. The caller adds all that stay again.
    pub fn take(&mut self, now: Nanos) -> [Option<u32>; LISTS] {
        let last = self.list(tick(now));
        self.tick = self.tick.max(tick(now));
        let mut taken = [None; LISTS];
        taken[..=last].swap_with_slice(&mut self.lists[..=last]);
        taken
    }

    /// The list of a tick. Anything due before the current one is due now.
    fn list(&self, tick: u32) -> usize {
        (u32::BITS - (tick.max(self.tick) ^ self.tick).leading_zeros()) as usize
    }
}

/// About a second, rounded down.
fn tick(time: Nanos) -> u32 {
    u32::try_from(time.get() >> 30).unwrap_or(u32::MAX)
}
