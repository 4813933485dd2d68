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
    let mut out = Out {
        file: BufWriter::new(file),
        checksum: crc32fast::Hasher::new(),
        length: 0,
    };
    let now = service.now();
    let limits = service.limits();
    out.write(MAGIC)?;
    out.write(&VERSION.to_le_bytes())?;
    out.write(&now.get().to_le_bytes())?;
    if let Some(shared) = service.store() {
        out.write(&1_u32.to_le_bytes())?;
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
        out.write(&(sections as u32).to_le_bytes())?;
        // Before the limits: a key's own state is restored under its own policy.
        for (limit, overrides) in limits.limits().iter().zip(&overrides) {
            for (key, own) in overrides {
                let name = format!("{OVERRIDE}{} {} {key}", limit.spec().name, own.quota());
                out.bare(&name, own.until.get())?;
            }
        }
        let throttle = service.throttle().limiter();
        let mut sections = Sections::default();
        sections.header(THROTTLE, "", false, throttle)?;
        sections.u32(0);
        sections.entries(|show| throttle.at(now).snapshot(show));
        out.write(&sections.0)?;
        for limit in limits.limits() {
            out.write(&Sections::of(limit, now)?.0)?;
        }
        // After the limits, whose states may already have the end of one that was open before.
        for (text, due) in service.reservation_texts(reservations) {
            out.bare(&format!("{RESERVATION}{text}"), due.get())?;
        }
    }
    let checksum = out.checksum.clone().finalize();
    out.write(&checksum.to_le_bytes())?;
    let length = out.length;
    out.file
        .into_inner()
        .map_err(io::IntoInnerError::into_error)?
        .sync_all()?;
    Ok(length)
}

/// A file, with a checksum of the bytes written so far.
struct Out {
    file: BufWriter<File>,
    checksum: crc32fast::Hasher,
    length: u64,
}

impl Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.checksum.update(bytes);
        self.length += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// A section with a name and a number: no policy, no seeds, no states (of one word), no
    /// overrides.
    fn bare(&mut self, name: &str, number: u64) -> io::Result<()> {
        let mut sections = Sections::default();
        sections.text(name)?;
        sections.text("")?;
        sections.0.push(0);
        sections.u64(number);
        sections.u64(0);
        sections.u64(0);
        sections.u32(1);
        sections.u32(0);
        sections.0.push(END);
        self.write(&sections.0)
    }
}

/// Sections in memory, before they are written.
#[derive(Default)]
struct Sections(Vec<u8>);

impl Sections {
    /// The sections of a limit and of its tenants. They are copied in one step with the policies of
    /// the states, because the rules may change.
    fn of(limit: &Limit, now: Nanos) -> io::Result<Self> {
        limit.while_unchanged(|rules| {
            let mut sections = Self::default();
            sections.states(limit, rules, now)?;
            if let Some(tenants) = limit.tenants() {
                sections.tenants(limit, tenants, rules, now)?;
            }
            Ok(sections)
        })
    }

    fn u32(&mut self, number: u32) {
        self.0.extend(number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    /// Names and policies have at most a few hundred bytes.
    fn text(&mut self, text: &str) -> io::Result<()> {
        let length = u16::try_from(text.len())
            .map_err(|_| io::Error::other("a text of more than 64 KiB"))?;
        self.0.extend(length.to_le_bytes());
        self.0.extend(text.as_bytes());
        Ok(())
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
        self.0.push(u8::from(global));
        self.u64(limiter.stats().max_keys);
        let (one, two) = limiter.hash_keys().seeds();
        self.u64(one);
        self.u64(two);
        self.u32(limiter.policy().words() as u32);
        Ok(())
    }

    fn states(&mut self, limit: &Limit, rules: &SavedRules<'_>, now: Nanos) -> io::Result<()> {
        let spec = limit.spec();
        self.header(
            &spec.name,
            &rules.policy.to_string(),
            spec.has_one_state(),
            limit.limiter(),
        )?;
        self.u32(rules.own.len() as u32);
        let hash = limit.limiter().hash_keys();
        for (key, policy) in &rules.own {
            self.u64(hash.tag(key.as_bytes()));
            self.text(&policy.to_string())?;
        }
        self.entries(|show| limit.snapshot(rules, now, show));
        Ok(())
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
        for (kind, entries) in [(TENANTS, shares), (CEILINGS, ceilings)] {
            self.text(&format!("{kind}{}", spec.name))?;
            self.text(&rules.policy.to_string())?;
            self.0.push(0);
            self.u64(stats.max_keys);
            self.u64(one);
            self.u64(two);
            self.u32(tenants.words() as u32);
            self.u32(0);
            self.0.extend(entries);
            self.0.push(END);
        }
        Ok(())
    }

    fn entries(&mut self, snapshot: impl FnOnce(&mut dyn FnMut(SnapshotEntry))) {
        snapshot(&mut |entry| put(&mut self.0, &entry));
        self.0.push(END);
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
