//! Walking through a table, one page's worth of buckets (a stretch) at a time: keys, and records of
//! evicted keys.
//!
//! A walk visits the stretches that hold keys, and those in which records were ever stored. It
//! costs what is in the table, and touches no memory that was not used before.

use tidegate_core::{Debt, Nanos};

use super::{
    Table, Tag,
    record::Spot,
    records::{Put, Records},
};

/// The position of a walk; the default is the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor(usize);

impl Cursor {
    /// The beginning.
    pub const BEGIN: Self = Self(0);
}

/// The place of an evicted key's record. It contains the key's fingerprint, not its tag. In a table
/// with the same maximum number of keys it is exact; in another table it stands for every place
/// that the key could have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSpot {
    /// The fingerprint in 28 bits, and above them the bucket's number.
    bits: u64,
    /// The number of buckets in each half of the records.
    of: u64,
}

impl RecordSpot {
    fn new(spot: Spot, records: &Records) -> Self {
        Self {
            bits: (spot.first as u64) << 28 | u64::from(spot.print),
            of: records.half() as u64,
        }
    }

    fn spot(self) -> Spot {
        Spot {
            first: (self.bits >> 28) as usize,
            print: (self.bits & ((1 << 28) - 1)) as u32,
        }
    }

    /// As two words, for a snapshot.
    #[must_use]
    pub const fn to_words(self) -> [u64; 2] {
        [self.bits, self.of]
    }

    /// Parses the two words of [`to_words`](Self::to_words); `None` if they are not such a place.
    #[must_use]
    pub const fn from_words([bits, of]: [u64; 2]) -> Option<Self> {
        if bits >> 28 < of && of < 1 << 36 {
            Some(Self { bits, of })
        } else {
            None
        }
    }
}

impl Table {
    /// One stretch of [`close`](Self::close). Returns the next position, or `None` at the end.
    pub fn close_next(&self, from: Cursor) -> Option<Cursor> {
        if from == Cursor::BEGIN {
            self.refuse_keys();
        }
        let (buckets, next) = self.stretches.next_touched(from.0)?;
        for index in buckets {
            drop(self.memory.lock(index));
        }
        Some(Cursor(next))
    }

    /// Passes the keys of the next stretch to `visit`, locking one bucket at a time. Returns the
    /// next position, or `None` at the end. A key that is added, removed or moved during a walk may
    /// be seen twice or not at all; in a [closed](Self::close) table no key is.
    pub fn walk(&self, from: Cursor, mut visit: impl FnMut(Tag, &mut [u64])) -> Option<Cursor> {
        let (buckets, next) = self.stretches.next_occupied(from.0)?;
        for index in buckets {
            let mut bucket = self.memory.lock(index);
            for cell in 0..self.memory.layout.cells {
                let tag = bucket.tag(cell);
                if tag != 0 {
                    visit(Tag::new(tag), bucket.state(cell));
                }
            }
        }
        Some(Cursor(next))
    }

    /// Visits every state, in one [`walk`](Self::walk).
    pub fn for_each(&self, mut visit: impl FnMut(Tag, &mut [u64])) {
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            cursor = self.walk(from, &mut visit);
        }
    }

    /// Visits the debts of the next stretch's evicted keys. Returns the next position, or `None` at
    /// the end.
    pub fn walk_records(
        &self,
        from: Cursor,
        mut visit: impl FnMut(RecordSpot, Debt),
    ) -> Option<Cursor> {
        let show = |spot, debt| {
            visit(RecordSpot::new(spot, &self.records), debt);
            true
        };
        self.records.walk(from.0, show).map(Cursor)
    }

    /// Visits the debt of every evicted key.
    pub fn for_each_record(&self, mut visit: impl FnMut(RecordSpot, Debt)) {
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            cursor = self.walk_records(from, &mut visit);
        }
    }

    /// Moves the records of the next stretch to another table of the same keys, each as `convert`
    /// returns it (`None` drops it). Returns the next position, or `None` at the end.
    ///
    /// A record is removed here only after it is there. A thread that looks for a key in both, here
    /// first, finds every record.
    pub fn move_records(
        &self,
        from: Cursor,
        to: &Self,
        now: Nanos,
        mut convert: impl FnMut(Debt) -> Option<Debt>,
    ) -> Option<Cursor> {
        let next = self.records.walk(from.0, |spot, debt| {
            if !debt.is_over(now)
                && let Some(debt) = convert(debt)
            {
                to.put_record(RecordSpot::new(spot, &self.records), debt, now);
            }
            false
        });
        next.map(Cursor)
    }

    /// Stores the debt of an evicted key from a table with the same hash keys. If that table had
    /// another maximum number of keys, the debt is stored in every place that the key could have
    /// here; all but one are never used, and end with the debt.
    pub fn put_record(&self, place: RecordSpot, debt: Debt, now: Nanos) {
        for spot in self.records.spots_of(place.spot(), place.of as usize) {
            if let Put::Forgot(debt) = self.records.put(spot, debt, now, None, false) {
                self.counters.forget(debt.share);
            }
        }
    }

    /// Forgets every key and record, each in a separate step.
    pub fn clear(&self) {
        let mut cursor = Some(0);
        while let Some((buckets, next)) = cursor.and_then(|from| self.stretches.next_occupied(from))
        {
            for index in buckets {
                let mut bucket = self.memory.lock(index);
                for cell in 0..self.memory.layout.cells {
                    if bucket.tag(cell) != 0 {
                        bucket.set_tag(cell, 0);
                        self.stretches.sub(index);
                        self.counters.keys.sub(1);
                    }
                }
            }
            cursor = Some(next);
        }
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            cursor = self.records.walk(from, |_, _| false);
        }
    }
}
