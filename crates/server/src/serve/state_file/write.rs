//! Writes the state file in such a way that a complete one always exists.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
};

use tidegate_core::Nanos;
use tidegate_limiter::{Algorithm, FairTenants, KeyedLimiter, SnapshotEntry, TenantEntry};
use tidegate_service::{
    decide::{
        limits::{Limit, SavedRules},
        service::Service,
    },
    rules::THROTTLE,
};

use super::{
    StateFile,
    format::{
        BLOCKED, CEILINGS, END, KEY, MAGIC, NODES, OVERRIDE, OWN, RECORD, RESERVATION, TENANTS,
        VERSION,
    },
};

/// Writes the states of all limits to a new file, which then replaces the state file. Returns its
/// length.
///
/// A crash at any moment leaves the old file or the new one. Decisions continue during the write: a
/// limit's states are copied to memory before they are written, because a state is locked while it
/// is read, and a disk may be slow.
///
/// # Errors
/// When the system refuses any step. The old file is then unchanged.
pub(crate) fn write(file: &StateFile, service: &Service) -> io::Result<u64> {
    let written = file.create_new().and_then(|new| {
        let length = write_to(new, service)?;
        file.replace()?;
        Ok(length)
    });
    if written.is_err() {
        file.discard_new();
    }
    written
}

fn write_to(file: File, service: &Service) -> io::Result<u64> {
    let mut out = Out::new(BufWriter::new(file));
    let now = service.now();
    let limits = service.limits();
    out.write(MAGIC)?;
    out.u32(VERSION)?;
    out.u64(now.get())?;
    if let Some(shared) = service.store() {
        out.u32(1)?;
        out.bare(NODES, shared.store().nodes().into())?;
    } else {
        let overrides: Vec<_> = limits
            .limits()
            .iter()
            .map(|limit| limit.runtime_overrides(usize::MAX).1)
            .collect();
        let more: usize = overrides.iter().map(Vec::len).sum();
        let reservations = service.reservations.seen();
        let shared = limits.limits().iter().filter_map(|limit| limit.tenants());
        let sections = limits.limits().len() + 2 * shared.count() + 1 + more + reservations.len();
        out.u32(sections as u32)?;
        // Before the limits: a key's own state is restored under its own policy.
        for (limit, overrides) in limits.limits().iter().zip(&overrides) {
            for (key, own) in overrides {
                let name = format!("{OVERRIDE}{} {} {key}", limit.spec().name, own.quota());
                out.bare(&name, own.until.get())?;
            }
        }
        let throttle = service.throttle().limiter();
        out.header(THROTTLE, "", false, throttle)?;
        out.u32(0)?;
        out.entries(|show| throttle.at(now).snapshot(show))?;
        for limit in limits.limits() {
            out.limit(limit, now)?;
        }
        // After the limits, whose states may already have the end of one that was open before.
        for (text, due) in service.reservation_texts(reservations) {
            out.bare(&format!("{RESERVATION}{text}"), due.get())?;
        }
    }
    let checksum = out.checksum.clone().finalize();
    out.u32(checksum)?;
    let length = out.length;
    out.to
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    Ok(length)
}

/// A file or a part of one, with a checksum of the bytes written so far.
struct Out<W> {
    to: W,
    checksum: crc32fast::Hasher,
    length: u64,
}

impl<W: Write> Out<W> {
    fn new(to: W) -> Self {
        Self {
            to,
            checksum: crc32fast::Hasher::new(),
            length: 0,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.update(bytes);
        self.length += bytes.len() as u64;
        self.to.write_all(bytes)
    }

    fn u32(&mut self, number: u32) -> io::Result<()> {
        self.write(&number.to_le_bytes())
    }

    fn u64(&mut self, number: u64) -> io::Result<()> {
        self.write(&number.to_le_bytes())
    }

    /// Names and policies have at most a few hundred bytes.
    fn text(&mut self, text: &str) -> io::Result<()> {
        let length = u16::try_from(text.len())
            .map_err(|_| io::Error::other("a text of more than 64 KiB"))?;
        self.write(&length.to_le_bytes())?;
        self.write(text.as_bytes())
    }

    fn header(
        &mut self,
        name: &str,
        policy: &str,
        global: bool,
        limiter: &KeyedLimiter<()>,
    ) -> io::Result<()> {
        self.text(name)?;
        self.text(policy)?;
        self.write(&[u8::from(global)])?;
        self.u64(limiter.stats().max_keys)?;
        let (one, two) = limiter.hash_keys().seeds();
        self.u64(one)?;
        self.u64(two)?;
        self.u32(limiter.policy().words() as u32)
    }

    /// The sections of a limit and of its tenants. They are copied in one step with the policies of
    /// the states, because the rules may change.
    fn limit(&mut self, limit: &Limit, now: Nanos) -> io::Result<()> {
        let copied = limit.while_unchanged(|rules| {
            let mut copy = Out::new(Vec::new());
            copy.states(limit, rules, now)?;
            if let Some(tenants) = limit.tenants() {
                copy.tenants(limit, tenants, rules, now)?;
            }
            Ok::<_, io::Error>(copy.to)
        });
        self.write(&copied?)
    }

    fn states(&mut self, limit: &Limit, rules: &SavedRules<'_>, now: Nanos) -> io::Result<()> {
        let spec = limit.spec();
        self.header(
            &spec.name,
            &rules.policy.to_string(),
            spec.has_one_state(),
            limit.limiter(),
        )?;
        self.u32(rules.own.len() as u32)?;
        let hash = limit.limiter().hash_keys();
        for (key, policy) in &rules.own {
            self.u64(hash.tag(key.as_bytes()))?;
            self.text(&policy.to_string())?;
        }
        self.entries(|show| limit.snapshot(rules, now, show))
    }

    /// The two sections of a limit's tenants.
    fn tenants(
        &mut self,
        limit: &Limit,
        tenants: &FairTenants,
        rules: &SavedRules<'_>,
        now: Nanos,
    ) -> io::Result<()> {
        let spec = limit.spec();
        let stats = tenants.stats();
        let (one, two) = tenants.hash_keys().seeds();
        let [mut shares, mut ceilings] = [Vec::new(), Vec::new()];
        tenants.at(now).snapshot(|entry| match entry {
            TenantEntry::Common { state, notes } => put(&mut shares, &own(notes, &state)),
            TenantEntry::Guarantee { tag, state } => put(&mut shares, &own(tag, &state)),
            TenantEntry::Note { place, words } => put(&mut shares, &own(place, &words)),
            TenantEntry::Share(entry) => put(&mut shares, &entry),
            TenantEntry::Ceiling(entry) => put(&mut ceilings, &entry),
            // The total is a section of its own.
            _ => {}
        });
        for (kind, mut entries) in [(TENANTS, shares), (CEILINGS, ceilings)] {
            self.text(&format!("{kind}{}", spec.name))?;
            self.text(&rules.policy.to_string())?;
            self.write(&[0])?;
            self.u64(stats.max_keys)?;
            self.u64(one)?;
            self.u64(two)?;
            self.u32(tenants.words() as u32)?;
            self.u32(0)?;
            entries.push(END);
            self.write(&entries)?;
        }
        Ok(())
    }

    /// A section with a name and a number: no policy, no seeds, no states (of one word), no
    /// overrides.
    fn bare(&mut self, name: &str, number: u64) -> io::Result<()> {
        self.text(name)?;
        self.text("")?;
        self.write(&[0])?;
        self.u64(number)?;
        self.u64(0)?;
        self.u64(0)?;
        self.u32(1)?;
        self.u32(0)?;
        self.write(&[END])
    }

    fn entries(&mut self, snapshot: impl FnOnce(&mut dyn FnMut(SnapshotEntry))) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot(&mut |entry| put(&mut bytes, &entry));
        bytes.push(END);
        self.write(&bytes)
    }
}

fn own(tag: u64, state: &[u64]) -> SnapshotEntry {
    SnapshotEntry::Own {
        tag,
        state: state.to_vec(),
    }
}

fn put(bytes: &mut Vec<u8>, entry: &SnapshotEntry) {
    let mut numbers = |kind: u8, head: &[u64], rest: &[u64]| {
        bytes.push(kind);
        bytes.extend(head.iter().chain(rest).flat_map(|word| word.to_le_bytes()));
    };
    match entry {
        SnapshotEntry::Key { tag, state } => numbers(KEY, &[*tag], state),
        SnapshotEntry::Record { place, debt } => {
            numbers(RECORD, &place.to_words(), &debt.to_words());
        }
        SnapshotEntry::Own { tag, state } => numbers(OWN, &[*tag, state.len() as u64], state),
        SnapshotEntry::Blocked { tag, until } => numbers(BLOCKED, &[*tag, *until], &[]),
        // A kind that a later library adds, which this format cannot represent.
        _ => {}
    }
}
