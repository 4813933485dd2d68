//! The files of the ledger: one for each day, with a bound on all of them.
//!
//! When the bound is reached, the oldest day is merged, then the next one, until an eighth is free:
//! first to one line for each key and limit, if that is not enough with fewer keys, and last with
//! none. The keys that used most keep their names; the others count together, so the sums of the
//! limits stay. Only if merged days alone reach the bound is the oldest removed.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    collections::{BTreeMap, HashMap},
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, BufWriter, Read as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::fs::OFlags;

use super::{UsageLine, Use};
use crate::files::{self, Lock, LockError, OWN_FILE, json_line, open_to_append};

/// The keys of a day that keep their names, in the order in which days are merged.
const LEVELS: [usize; 5] = [100_000, 10_000, 1_000, 100, 0];
/// A longer line is damaged: that of a key and a limit with the longest names, all escaped, is
/// shorter.
const MAX_LINE: u64 = 64 << 10;
/// The memory for names while a day is merged.
const MAX_NAMES: usize = 32 << 20;

/// The files of a ledger, and the right to write them.
#[derive(Debug)]
pub(super) struct Days {
    directory: PathBuf,
    max_bytes: u64,
    /// How far the days are merged: the next level.
    merged: BTreeMap<String, usize>,
    _lock: Lock,
}

impl Days {
    pub(super) fn open(directory: PathBuf, max_bytes: u64) -> Result<Self, LockError> {
        fs::create_dir_all(&directory)?;
        Ok(Self {
            _lock: Lock::take(directory.join(".lock"))?,
            directory,
            max_bytes,
            merged: BTreeMap::new(),
        })
    }

    /// Appends lines to the file of a day, as in `2026-11-25`. Makes room first, unless `stops`.
    pub(super) fn append(&mut self, day: &str, lines: &[u8], stops: &AtomicBool) -> io::Result<()> {
        let needed = lines.len() as u64;
        if !stops.load(Ordering::Relaxed) {
            self.make_room(needed, stops)?;
        }
        self.merged.remove(day);
        files::append(&open_to_append(&self.path(day), OWN_FILE)?, lines)
    }

    /// Whether this many bytes may be appended at once.
    pub(super) const fn has_room_for(&self, bytes: usize) -> bool {
        bytes as u64 <= self.max_bytes / 4
    }

    fn path(&self, day: &str) -> PathBuf {
        self.directory.join(format!("usage-{day}.jsonl"))
    }

    fn make_room(&mut self, needed: u64, stops: &AtomicBool) -> io::Result<()> {
        let mut days = days(&self.directory)?;
        let sum = |days: &BTreeMap<String, u64>| days.values().sum::<u64>().saturating_add(needed);
        if sum(&days) <= self.max_bytes {
            return Ok(());
        }
        let aim = self.max_bytes - self.max_bytes / 8;
        for (level, keys) in LEVELS.into_iter().enumerate() {
            for day in days.keys().cloned().collect::<Vec<_>>() {
                if sum(&days) <= aim {
                    return Ok(());
                }
                if self.merged.get(&day).is_some_and(|next| *next > level) {
                    continue;
                }
                let Some(bytes) = self.merge(&day, keys, stops)? else {
                    return Ok(());
                };
                tracing::info!(
                    day,
                    keys,
                    bytes,
                    "a day of the usage ledger is merged: --usage-max is reached"
                );
                self.merged.insert(day.clone(), level + 1);
                days.insert(day, bytes);
            }
        }
        while sum(&days) > self.max_bytes {
            let Some((day, _)) = days.pop_first() else {
                break;
            };
            fs::remove_file(self.path(&day))?;
            self.merged.remove(&day);
            tracing::warn!(
                day,
                "the oldest day of the usage ledger is removed: merged days alone reach --usage-max"
            );
        }
        Ok(())
    }

    /// Merges a day. Returns its new size, or `None` if the server stops first.
    fn merge(&self, day: &str, keys: usize, stops: &AtomicBool) -> io::Result<Option<u64>> {
        let path = self.path(day);
        let mut sums = DaySums::default();
        let mut stopped = false;
        let damaged = read_lines(&path, |line| {
            stopped = stops.load(Ordering::Relaxed);
            sums.add(line, keys);
            !stopped
        })?;
        if stopped {
            return Ok(None);
        }
        if damaged > 0 {
            tracing::warn!(
                day,
                damaged,
                "lines that are not whole are left out of the merged day"
            );
        }
        sums.keep(keys);
        let new = self.directory.join(".merged.new");
        let written = files::create_new(&new).and_then(|file| {
            let mut out = BufWriter::new(file);
            sums.write(&format!("{day}T00:00:00Z"), &mut out)?;
            let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            let bytes = file.metadata()?.len();
            files::replace(&path, &new)?;
            Ok(bytes)
        });
        if written.is_err() {
            // It may not be there.
            let _ = fs::remove_file(&new);
        }
        written.map(Some)
    }
}

/// The uses of a day by limit and key.
#[derive(Default)]
struct DaySums {
    limits: HashMap<String, (HashMap<String, Use>, Use)>,
    keys: usize,
    names: usize,
}

impl DaySums {
    fn add(&mut self, line: UsageLine, keys: usize) {
        let more = Use {
            used: line.used,
            requests: line.requests,
            denied: line.denied,
        };
        let (known, others) = self.limits.entry(line.limit).or_default();
        match line.key {
            Some(key) if keys > 0 => {
                let bytes = key.len();
                let used = known.entry(key).or_insert_with(|| {
                    self.keys += 1;
                    self.names += bytes;
                    Use::default()
                });
                used.add(more);
                // A multiple of what stays, so that each key is looked at a few times.
                if self.keys > 2 * keys || self.names > MAX_NAMES {
                    self.keep(keys.min(self.keys / 2));
                }
            }
            _ => others.add(more),
        }
    }

    /// Keeps the names of the keys that used most. The others count together.
    fn keep(&mut self, keys: usize) {
        if self.keys <= keys {
            return;
        }
        let weight = |used: &Use| (used.used, used.requests.saturating_add(used.denied));
        let mut weights: Vec<_> = self
            .limits
            .values()
            .flat_map(|(known, _)| known.values().map(weight))
            .collect();
        let bound =
            (keys > 0).then(|| *weights.select_nth_unstable_by(keys - 1, |a, b| b.cmp(a)).1);
        // Of the keys that used as much as the last that stays, only so many stay.
        let above = |bound| weights.iter().filter(|weight| **weight > bound).count();
        let mut equal = bound.map_or(0, |bound| keys - above(bound));
        (self.keys, self.names) = (0, 0);
        for (known, others) in self.limits.values_mut() {
            known.retain(|key, used| {
                let stays = bound.is_some_and(|bound| match weight(used).cmp(&bound) {
                    Greater => true,
                    Equal if equal > 0 => {
                        equal -= 1;
                        true
                    }
                    Equal | Less => false,
                });
                if stays {
                    self.keys += 1;
                    self.names += key.len();
                } else {
                    others.add(*used);
                }
                stays
            });
            known.shrink_to_fit();
        }
    }

    fn write(self, at: &str, out: &mut impl io::Write) -> io::Result<()> {
        for (limit, (known, others)) in self.limits {
            let known = known.into_iter().map(|(key, used)| (Some(key), used));
            for (key, used) in known.chain([(None, others)]) {
                let Use {
                    used,
                    requests,
                    denied,
                } = used;
                if (used, requests, denied) != (0, 0, 0) {
                    let (at, limit) = (at.to_owned(), limit.clone());
                    out.write_all(&json_line(&UsageLine {
                        at,
                        limit,
                        key,
                        used,
                        requests,
                        denied,
                    }))?;
                }
            }
        }
        Ok(())
    }
}

/// The days of a ledger in their order, with the sizes of their files. Other files, and symlinks,
/// are not part of the ledger.
fn days(directory: &Path) -> io::Result<BTreeMap<String, u64>> {
    let mut days = BTreeMap::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let day = name
            .to_str()
            .and_then(|name| name.strip_prefix("usage-")?.strip_suffix(".jsonl"));
        // The metadata of an entry are not those behind a symlink.
        if let Some(day) = day
            && let Ok(metadata) = entry.metadata()
            && metadata.is_file()
        {
            days.insert(day.to_owned(), metadata.len());
        }
    }
    Ok(days)
}

/// The lines of a file, until `each` returns false. Returns the number of those that are not whole.
fn read_lines(path: &Path, mut each: impl FnMut(UsageLine) -> bool) -> io::Result<u64> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file: File = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let (mut reader, mut line, mut damaged) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        if reader
            .by_ref()
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)?
            == 0
        {
            return Ok(damaged);
        }
        match serde_json::from_slice(&line) {
            Ok(line) => {
                if !each(line) {
                    return Ok(damaged);
                }
            }
            Err(_) => damaged += 1,
        }
    }
}

/// The lines of the ledger in a directory whose hour begins with `from` or later and before `to`;
/// both are beginnings of [`at`](UsageLine::at). Lines that are not whole are left out, and their
/// number is returned.
///
/// # Errors
/// If the directory or a file cannot be read.
pub fn read_usage(
    directory: &Path,
    (from, to): (Option<&str>, Option<&str>),
    mut each: impl FnMut(UsageLine),
) -> io::Result<u64> {
    let mut damaged = 0;
    for day in days(directory)?.into_keys() {
        let path = directory.join(format!("usage-{day}.jsonl"));
        damaged += read_lines(&path, |line| {
            let at = line.at.as_str();
            if from.is_none_or(|from| at >= from) && to.is_none_or(|to| at < to) {
                each(line);
            }
            true
        })?;
    }
    Ok(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("tidegate-days-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn line(at: &str, key: Option<&str>, used: i64) -> Vec<u8> {
        json_line(&UsageLine {
            at: at.to_owned(),
            limit: "l".to_owned(),
            key: key.map(ToOwned::to_owned),
            used,
            requests: 1,
            denied: 0,
        })
    }

    fn size(directory: &Path) -> u64 {
        days(directory).unwrap().values().sum()
    }

    /// The days of a key, or of the keys without a name.
    fn used(directory: &Path, wanted: Option<&str>) -> Vec<(String, i64)> {
        let mut sums = BTreeMap::new();
        read_usage(directory, (None, None), |line| {
            if line.key.as_deref() == wanted {
                *sums.entry(line.at[..10].to_owned()).or_insert(0) += line.used;
            }
        })
        .unwrap();
        sums.into_iter().collect()
    }

    #[test]
    fn a_flood_of_keys_keeps_the_bound_the_sums_and_the_keys_that_use_most() {
        const MAX: u64 = 1 << 20;
        let directory = scratch("flood");
        let going = AtomicBool::new(false);
        let mut files = Days::open(directory.clone(), MAX).unwrap();
        let mut total = 0;
        for day in ["2026-11-01", "2026-11-02", "2026-11-03"] {
            for part in 0..100 {
                let at = format!("{day}T{:02}:00:00Z", part / 5);
                let mut lines = line(&at, Some("customer"), 50);
                for key in 0..300 {
                    lines.extend(line(&at, Some(&format!("made-up-{part}-{key}")), 1));
                }
                total += 50 + 300;
                files.append(day, &lines, &going).unwrap();
                assert!(
                    size(&directory) <= MAX,
                    "{day} {part}: {}",
                    size(&directory)
                );
            }
        }
        let mut sum = 0;
        let damaged = read_usage(&directory, (None, None), |line| sum += line.used).unwrap();
        assert_eq!((sum, damaged), (total, 0));
        // Days lose their names one after another, the oldest first.
        let days = used(&directory, Some("customer"));
        assert_eq!(
            days.last(),
            Some(&("2026-11-03".to_owned(), 5_000)),
            "{days:?}"
        );
        assert!(!used(&directory, None).is_empty());
    }

    #[test]
    fn the_keys_that_used_most_keep_their_names() {
        let mut sums = DaySums::default();
        for round in 0..3 {
            for key in 0..5_000 {
                // Each round has other keys, but for one in a hundred.
                let (name, used) = match key % 100 {
                    0 => (format!("user-{key}"), 7),
                    _ => (format!("{round}-{key}"), 1),
                };
                let text = line("2026-11-01T00:00:00Z", Some(&name), used);
                sums.add(serde_json::from_slice(&text).unwrap(), 100);
                assert!(sums.keys <= 200);
            }
        }
        sums.keep(100);
        let (known, others) = &sums.limits["l"];
        assert_eq!(known.len(), 100);
        let users = known
            .iter()
            .filter(|(key, used)| key.starts_with("user-") && used.used == 21);
        assert_eq!(users.count(), 50);
        let named: i64 = known.values().map(|used| used.used).sum();
        assert_eq!(named + others.used, 3 * (4_950 + 50 * 7));
    }

    #[test]
    fn only_one_ledger_has_a_directory_and_it_follows_no_symlink() {
        let directory = scratch("lock");
        let first = Days::open(directory.clone(), 1 << 20).unwrap();
        let refused = Days::open(directory.clone(), 1 << 20).unwrap_err();
        assert!(
            refused
                .to_string()
                .contains(&std::process::id().to_string()),
            "{refused}"
        );
        drop(first);
        let mut second = Days::open(directory.clone(), 1 << 20).unwrap();
        let outside = directory.join("outside");
        fs::write(&outside, "kept").unwrap();
        std::os::unix::fs::symlink(&outside, directory.join("usage-2026-11-01.jsonl")).unwrap();
        let refused = second.append("2026-11-01", b"{}\n", &AtomicBool::new(false));
        assert!(refused.unwrap_err().to_string().contains("a symlink"));
        assert_eq!(fs::read(&outside).unwrap(), b"kept");
        // A reader leaves it out, too.
        assert_eq!(read_usage(&directory, (None, None), |_| ()).unwrap(), 0);
    }

    #[test]
    fn a_server_that_stops_does_not_wait_for_a_merge() {
        let directory = scratch("stop");
        let mut files = Days::open(directory.clone(), 1_000).unwrap();
        let lines = line("2026-11-01T00:00:00Z", Some("a"), 1).repeat(20);
        files
            .append("2026-11-01", &lines, &AtomicBool::new(true))
            .unwrap();
        assert!(size(&directory) > 1_000);
        assert_eq!(used(&directory, Some("a")), [("2026-11-01".to_owned(), 20)]);
        files
            .append("2026-11-02", &lines[..100], &AtomicBool::new(false))
            .unwrap();
        assert!(size(&directory) <= 1_000);
    }
}
