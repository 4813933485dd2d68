//! The ledger: what each key of each limit has used in each hour, appended to files of JSON lines.
//!
//! Decisions add to counts in memory. Every [`INTERVAL`] a thread appends what was added since to
//! the file of the day. A line is a part of its hour: the sum of all lines is the use. A server
//! that is killed has lost what it did not append yet, at most that of one interval. The files have
//! a bound, for which the oldest are merged (`days`).

use std::{
    collections::{BTreeMap, HashMap},
    hash::BuildHasher as _,
    io, mem,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use rapidhash::fast::RandomState;
use serde::{Deserialize, Serialize};
use tidegate_core::Nanos;

use crate::{
    files::{LockError, json_line, key_text},
    shares::has_room,
};

mod days;

use days::Days;
pub use days::read_usage;

/// How often the thread appends.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Keys are spread over this number of locks.
const SHARDS: usize = 16;
/// The places of a shard for keys between two writes, which the limits share. Further keys count
/// together, for each limit.
const MOST: usize = 8_192;
const HOUR: u64 = 3_600;

/// A part of what a key has used in an hour, as a line of the ledger has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageLine {
    /// The hour's beginning in UTC, as in `2026-11-25T14:00:00Z`.
    pub at: String,
    /// The limit.
    pub limit: String,
    /// The key; empty for a global limit. None for the keys of one interval that were too many to
    /// count each.
    pub key: Option<String>,
    /// Units that were taken, without those that were returned.
    pub used: i64,
    /// Requests that were admitted, and charges.
    pub requests: u64,
    /// Requests that were denied.
    pub denied: u64,
}

/// An addition to a key's use.
#[derive(Clone, Copy, Debug, Default)]
pub struct Use {
    pub used: i64,
    pub requests: u64,
    pub denied: u64,
}

impl Use {
    const fn add(&mut self, more: Self) {
        self.used = self.used.saturating_add(more.used);
        self.requests = self.requests.saturating_add(more.requests);
        self.denied = self.denied.saturating_add(more.denied);
    }
}

/// The uses of one key by their hours, which are one or two.
type Hours = Vec<(u64, Use)>;

#[derive(Debug, Default)]
struct Shard {
    limits: HashMap<Box<str>, UsedKeys>,
    keys: usize,
}

#[derive(Debug, Default)]
struct UsedKeys {
    known: HashMap<Box<[u8]>, Hours>,
    others: Hours,
}

fn add(hours: &mut Hours, hour: u64, more: Use) {
    match hours.iter_mut().find(|(known, _)| *known == hour) {
        Some((_, used)) => used.add(more),
        None => hours.push((hour, more)),
    }
}

impl Shard {
    fn add(&mut self, limit: &str, key: Option<&[u8]>, hour: u64, more: Use) {
        if !self.limits.contains_key(limit) {
            self.limits.insert(limit.into(), UsedKeys::default());
        }
        let Some(keys) = self.limits.get_mut(limit) else {
            return;
        };
        let hours = match key {
            Some(key) if keys.known.contains_key(key) => keys.known.get_mut(key),
            Some(key) if has_room(keys.known.len(), self.keys, MOST) => {
                self.keys += 1;
                Some(keys.known.entry(key.into()).or_default())
            }
            _ => None,
        };
        add(hours.unwrap_or(&mut keys.others), hour, more);
    }
}

/// The use of a limit's key in an hour.
type HourOfKey = (Box<str>, Option<Box<[u8]>>, u64, Use);

/// The uses that are not written yet.
#[derive(Debug)]
struct UnwrittenUses {
    shards: [Mutex<Shard>; SHARDS],
    hash: RandomState,
    days: Mutex<Days>,
    /// The server stops, and waits for the last write: no time to make room.
    stops: AtomicBool,
}

impl UnwrittenUses {
    fn new(days: Days) -> Self {
        Self {
            shards: Default::default(),
            hash: RandomState::new(),
            days: Mutex::new(days),
            stops: AtomicBool::new(false),
        }
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Shard> {
        let at = self.hash.hash_one(key) as usize % SHARDS;
        self.shards[at].lock()
    }

    /// Appends everything to the files of its days. The uses of a file that cannot be written stay.
    fn write(&self) -> io::Result<()> {
        let mut files = self.days.lock();
        // By day, what was taken for its file.
        let mut days: BTreeMap<u64, Vec<HourOfKey>> = BTreeMap::new();
        for shard in &self.shards {
            let shard = mem::take(&mut *shard.lock());
            for (limit, UsedKeys { known, others }) in shard.limits {
                let keys = known.into_iter().map(|(key, hours)| (Some(key), hours));
                for (key, hours) in keys.chain([(None, others)]) {
                    for (hour, used) in hours {
                        days.entry(hour / 24).or_default().push((
                            limit.clone(),
                            key.clone(),
                            hour,
                            used,
                        ));
                    }
                }
            }
        }
        let mut written = Ok(());
        for (day, taken) in days {
            let name = &beginning(day * 24)[..10];
            let mut lines: Vec<u8> = taken.iter().flat_map(line).collect();
            // Made-up keys may be long.
            if !files.has_room_for(lines.len()) {
                lines = without_keys(&taken).iter().flat_map(line).collect();
            }
            if let Err(error) = files.append(name, &lines, &self.stops) {
                written = Err(error);
                for (limit, key, hour, used) in taken {
                    self.shard(key.as_deref().unwrap_or_default()).add(
                        &limit,
                        key.as_deref(),
                        hour,
                        used,
                    );
                }
            }
        }
        written
    }
}

/// The beginning of an hour since 1970.
fn beginning(hour: u64) -> String {
    let seconds = i64::try_from(hour * HOUR).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds)
        .unwrap_or_default()
        .to_string()
}

fn line((limit, key, hour, used): &HourOfKey) -> Vec<u8> {
    let Use {
        used,
        requests,
        denied,
    } = *used;
    json_line(&UsageLine {
        at: beginning(*hour),
        limit: limit.to_string(),
        key: key.as_deref().map(key_text),
        used,
        requests,
        denied,
    })
}

/// The same for each limit and hour, without the names of keys.
fn without_keys(taken: &[HourOfKey]) -> Vec<HourOfKey> {
    let mut sums: BTreeMap<(&str, u64), Use> = BTreeMap::new();
    for (limit, _, hour, used) in taken {
        sums.entry((limit, *hour)).or_default().add(*used);
    }
    let line = |((limit, hour), used): ((&str, u64), Use)| (limit.into(), None, hour, used);
    sums.into_iter().map(line).collect()
}

/// The ledger of a server.
#[derive(Debug)]
pub struct Ledger {
    counts: Arc<UnwrittenUses>,
    /// Its end ends the thread.
    _running: mpsc::Sender<()>,
}

impl Ledger {
    /// Appends to files in this directory, which is created if it does not exist. The files have at
    /// most `max_bytes`.
    ///
    /// # Errors
    /// If the directory cannot be created or written to, another server has it, or the thread
    /// cannot be started.
    pub fn open(directory: PathBuf, max_bytes: u64) -> Result<Self, LockError> {
        let ledger = Arc::new(UnwrittenUses::new(Days::open(directory, max_bytes)?));
        let (counts, (running, ended)) = (Arc::clone(&ledger), mpsc::channel());
        // A file system may hang, and a thread that serves must not.
        thread::Builder::new()
            .name("usage".to_owned())
            .spawn(move || {
                while ended.recv_timeout(INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                    write(&ledger);
                }
            })?;
        Ok(Self {
            counts,
            _running: running,
        })
    }

    /// Appends what is left, when the server stops.
    pub fn finish(&self) {
        self.counts.stops.store(true, Ordering::Relaxed);
        if let Err(error) = self.counts.write() {
            tracing::error!(%error, "the usage cannot be written; what was used since it was last written is lost");
        }
    }

    pub fn add(&self, limit: &str, key: &[u8], more: Use, now: Nanos) {
        let hour = now.get() / 1_000_000_000 / HOUR;
        self.counts.shard(key).add(limit, Some(key), hour, more);
    }
}

fn write(counts: &UnwrittenUses) {
    if let Err(error) = counts.write() {
        tracing::error!(%error, "the usage cannot be written and is kept in memory");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("tidegate-usage-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    const fn one(used: i64) -> Use {
        Use {
            used,
            requests: 1,
            denied: 0,
        }
    }

    #[test]
    fn every_unit_is_in_its_hour_also_of_keys_beyond_the_bound() {
        let directory = scratch("bound");
        let ledger = Ledger::open(directory.clone(), u64::MAX).unwrap();
        let keys = (SHARDS * MOST) as u32 * 2;
        let hour = Nanos::from_secs(HOUR);
        for key in 0..keys {
            ledger.add("a", &key.to_le_bytes(), one(2), Nanos::ZERO);
        }
        ledger.add("a", b"x", one(5), hour);
        ledger.add(
            "a",
            b"x",
            Use {
                used: -3,
                ..Use::default()
            },
            hour,
        );
        let in_memory: usize = ledger
            .counts
            .shards
            .iter()
            .map(|shard| shard.lock().keys)
            .sum();
        assert!(in_memory <= SHARDS * MOST, "{in_memory}");
        ledger.finish();
        let mut sums: BTreeMap<String, (i64, u64)> = BTreeMap::new();
        let mut others = 0;
        let damaged = read_usage(&directory, (None, None), |line| {
            let sum = sums.entry(line.at).or_default();
            *sum = (sum.0 + line.used, sum.1 + line.requests);
            others += u64::from(line.key.is_none());
        });
        assert_eq!(damaged.unwrap(), 0);
        assert!(others >= 1);
        let expected = [
            (
                "1970-01-01T00:00:00Z",
                (2 * i64::from(keys), u64::from(keys)),
            ),
            ("1970-01-01T01:00:00Z", (2, 1)),
        ];
        assert_eq!(sums, expected.map(|(at, sum)| (at.to_owned(), sum)).into());
    }

    #[test]
    fn long_keys_that_fill_the_bound_in_one_interval_count_together() {
        let directory = scratch("long");
        let counts = UnwrittenUses::new(Days::open(directory.clone(), 64 << 10).unwrap());
        for key in 0..100_u8 {
            let key = [&[key][..], &[1; 1_000]].concat();
            counts.shard(&key).add("a", Some(&key), 24, one(1));
        }
        counts.write().unwrap();
        let mut used = Vec::new();
        read_usage(&directory, (None, None), |line| {
            used.push((line.key, line.used));
        })
        .unwrap();
        assert_eq!(used, [(None, 100)]);
    }

    #[test]
    fn what_cannot_be_written_stays() {
        let directory = scratch("torn");
        let counts = UnwrittenUses::new(Days::open(directory.clone(), u64::MAX).unwrap());
        counts.shard(b"k").add("a", Some(b"k"), 24, one(7));
        // A directory in place of the file.
        let file = directory.join("usage-1970-01-02.jsonl");
        fs::create_dir_all(&file).unwrap();
        // The next day's file is written once, although this one fails.
        counts.shard(b"k").add("a", Some(b"k"), 48, one(1));
        counts.write().unwrap_err();
        counts.write().unwrap_err();
        fs::remove_dir(&file).unwrap();
        counts.write().unwrap();
        let mut used = Vec::new();
        read_usage(&directory, (None, None), |line| {
            used.push((line.key, line.used));
        })
        .unwrap();
        assert_eq!(used, [7, 1].map(|used| (Some("k".to_owned()), used)));
    }
}
