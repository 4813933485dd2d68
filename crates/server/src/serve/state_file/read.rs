//! Reads the state file: first completely, to check it, and then again to restore from it.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufReader, Read},
    path::Path,
};

use tidegate_core::{Algorithm as _, Nanos, Policy, StoredState as _};
use tidegate_limiter::{
    Debt, FairTenants, HashKeys, KeyedLimiter, RecordSpot, SnapshotEntry, TenantEntry,
};
use tidegate_service::{
    decide::{
        limits::{Limit, Limits, Operation},
        service::{Service, resolve_operated},
    },
    rules::{THROTTLE, parse_policy},
};

use super::{
    StateError,
    format::{
        BLOCKED, CEILINGS, END, KEY, MAGIC, MOST_WORDS, NODES, OVERRIDE, OWN, RECORD, RESERVATION,
        SHARED_DEBT, TENANTS, VERSION,
    },
    too_far_ahead,
};

/// The limits' headers in a checked file.
pub(crate) struct Headers {
    /// When it was written, by the clock of that server.
    pub written_at: Nanos,
    sections: HashMap<String, LimitHeader>,
}

#[derive(Clone)]
struct LimitHeader {
    /// `None` for `CL.THROTTLE`, whose quotas come with the requests.
    policy: Option<Policy>,
    global: bool,
    max_keys: u64,
    hash: HashKeys,
    words: usize,
    own: HashMap<u64, Policy>,
}

impl Headers {
    /// The hash keys of a limit's tags.
    pub fn hash_keys(&self, name: &str) -> Option<HashKeys> {
        self.sections.get(name).map(|header| header.hash)
    }

    /// How many servers shared the store, if the server that wrote the file had one.
    pub fn nodes(&self) -> Option<u32> {
        self.sections
            .get(NODES)
            .map(|header| u32::try_from(header.max_keys).unwrap_or(u32::MAX))
    }
}

/// The result of restoring a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    pub states: u64,
    /// States of limits that no longer exist or are of another kind now.
    pub dropped: u64,
}

/// Checks a whole file: its form and its checksum.
pub(super) fn headers(file: impl Read) -> Result<Headers, StateError> {
    let mut input = Input::new(file);
    let (written_at, count) = beginning(&mut input)?;
    let mut sections = HashMap::new();
    for _ in 0..count {
        let (name, header) = header(&mut input)?;
        each_entry(&mut input, header.words, |_| ())?;
        sections.insert(name, header);
    }
    input.end()?;
    Ok(Headers {
        written_at,
        sections,
    })
}

/// Restores the states of a checked file into the limits of the same names.
///
/// # Errors
/// When the file has changed since it was checked.
pub(crate) fn restore(path: &Path, service: &Service, now: Nanos) -> Result<Restored, StateError> {
    restore_from(File::open(path)?, service, now)
}

pub(super) fn restore_from(
    file: impl Read,
    service: &Service,
    now: Nanos,
) -> Result<Restored, StateError> {
    let mut input = Input::new(file);
    let (written_at, count) = beginning(&mut input)?;
    let ahead = too_far_ahead(written_at, now);
    let mut restored = Restored::default();
    let limits = service.limits();
    for _ in 0..count {
        let (name, header) = header(&mut input)?;
        let time = sooner(header.max_keys, ahead);
        let an_override = name
            .strip_prefix(OVERRIDE)
            .map(|text| restore_override(&limits, text, time, now));
        let reservation = name.strip_prefix(RESERVATION);
        let reservation = reservation.map(|text| service.reservations.restore(text, time));
        if let Some(is_restored) = an_override.or(reservation) {
            restored.dropped += u64::from(!is_restored);
            each_entry(&mut input, header.words, |_| ())?;
            continue;
        }
        let of_tenants = [TENANTS, CEILINGS]
            .iter()
            .find_map(|kind| Some((*kind, name.strip_prefix(kind)?)));
        if let Some((kind, limit)) = of_tenants {
            let tenants = limits
                .limit(limit.as_bytes())
                .and_then(|limit| limit.tenants());
            each_entry(&mut input, header.words, |entry| {
                let done = tenants.is_some_and(|tenants| {
                    give_tenant_back(tenants, &header, kind, entry, ahead, now)
                });
                restored.states += u64::from(done);
                restored.dropped += u64::from(!done);
            })?;
            continue;
        }
        let owner = if name == THROTTLE {
            Some(Owner::Throttle(service.throttle().limiter()))
        } else {
            let limit = limits.limit(name.as_bytes());
            limit
                .filter(|limit| limit.spec().has_one_state() == header.global)
                .map(|limit| Owner::Limit(limit))
        };
        each_entry(&mut input, header.words, |entry| {
            let done = owner
                .as_ref()
                .is_some_and(|owner| give_back(owner, &header, entry, ahead, now));
            restored.states += u64::from(done);
            restored.dropped += u64::from(!done);
        })?;
    }
    input.end()?;
    Ok(restored)
}

/// Whether it is in force, or over.
fn restore_override(limits: &Limits, text: &str, until: Nanos, now: Nanos) -> bool {
    let mut parts = text.splitn(3, ' ');
    let (Some(limit), Some(quota), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let left = until.saturating_since(now).into();
    let operation = Operation::Override(quota.to_owned(), Some(left));
    let resolved = resolve_operated(limits, limit.as_bytes(), Some(key.as_bytes()), &operation);
    until <= now
        || resolved.is_ok_and(|of| of.limit.operate_in_memory(of.key, &operation, now).is_ok())
}

fn sooner(time: u64, by: Nanos) -> Nanos {
    Nanos::new(time).saturating_since(by)
}

/// Whose states a section has.
enum Owner<'a> {
    Throttle(&'a KeyedLimiter<()>),
    Limit(&'a Limit),
}

impl Owner<'_> {
    fn limiter(&self) -> &KeyedLimiter<()> {
        match self {
            Self::Throttle(limiter) => limiter,
            Self::Limit(limit) => limit.limiter(),
        }
    }
}

fn give_back(
    owner: &Owner<'_>,
    header: &LimitHeader,
    mut entry: SnapshotEntry,
    ahead: Nanos,
    now: Nanos,
) -> bool {
    let general = header.policy.unwrap_or_else(|| owner.limiter().policy());
    let from = match &entry {
        SnapshotEntry::Own { tag, .. } => match header.own.get(tag) {
            Some(own) => own,
            None => return false,
        },
        _ => &general,
    };
    if ahead > Nanos::ZERO {
        match &mut entry {
            SnapshotEntry::Key { state, .. } | SnapshotEntry::Own { state, .. } => {
                if !from.accepts(state) {
                    return false;
                }
                let used = from.used(state, now.saturating_add(ahead));
                state.fill(0);
                from.charge(state, now, used);
            }
            SnapshotEntry::Record { debt, .. } => *debt = debt.sooner(ahead),
            SnapshotEntry::Blocked { until, .. } if *until < Nanos::MAX.get() => {
                *until = sooner(*until, ahead).get();
            }
            _ => {}
        }
    }
    match owner {
        Owner::Throttle(limiter) => limiter.at(now).restore(from, &entry),
        Owner::Limit(limit) => limit.restore(from, &entry, now),
    }
}

fn give_tenant_back(
    tenants: &FairTenants,
    header: &LimitHeader,
    kind: &str,
    entry: SnapshotEntry,
    ahead: Nanos,
    now: Nanos,
) -> bool {
    let Some(from) = &header.policy else {
        return false;
    };
    let entry = match entry {
        entry if kind == CEILINGS => TenantEntry::Ceiling(entry),
        SnapshotEntry::Own { tag, state } => match *state {
            [one, two] => TenantEntry::Guarantee {
                tag,
                state: [one, two],
            },
            [one, two, three] => TenantEntry::Note {
                place: tag,
                words: [one, two, three],
            },
            _ => TenantEntry::Common { state, notes: tag },
        },
        entry => TenantEntry::Share(entry),
    };
    let entry = if ahead > Nanos::ZERO {
        entry.sooner(from, ahead, now)
    } else {
        Some(entry)
    };
    entry.is_some_and(|entry| tenants.at(now).restore(from, &entry))
}

fn beginning(input: &mut Input<impl Read>) -> Result<(Nanos, u32), StateError> {
    for expected in MAGIC {
        // A file that is too short, or empty, was truncated.
        if input.u8()? != *expected {
            return Err(StateError::NotAState);
        }
    }
    let version = input.u32()?;
    if version != VERSION {
        return Err(StateError::Version(version));
    }
    Ok((Nanos::new(input.u64()?), input.u32()?))
}

fn header(input: &mut Input<impl Read>) -> Result<(String, LimitHeader), StateError> {
    let name = input.text()?;
    let policy = input.policy()?;
    let global = input.u8()? != 0;
    let max_keys = input.u64()?;
    let hash = HashKeys::from_seeds(input.u64()?, input.u64()?);
    let words = input.u32()?;
    if words == 0 || words > MOST_WORDS {
        return Err(StateError::Contents("a state of no words, or too many"));
    }
    let mut own = HashMap::new();
    for _ in 0..input.u32()? {
        let tag = input.u64()?;
        own.extend(input.policy()?.map(|policy| (tag, policy)));
    }
    Ok((
        name,
        LimitHeader {
            policy,
            global,
            max_keys,
            hash,
            words: words as usize,
            own,
        },
    ))
}

fn each_entry(
    input: &mut Input<impl Read>,
    words: usize,
    mut take: impl FnMut(SnapshotEntry),
) -> Result<(), StateError> {
    loop {
        let kind = input.u8()?;
        if kind == END {
            return Ok(());
        }
        let number = input.u64()?;
        take(match kind {
            KEY => SnapshotEntry::Key {
                tag: number,
                state: input.words(words)?,
            },
            SHARED_DEBT => {
                // Its owner is unknown.
                input.words(words)?;
                continue;
            }
            RECORD => {
                let (of, debt) = (input.u64()?, [input.u64()?, input.u64()?]);
                match (RecordSpot::from_words([number, of]), Debt::from_words(debt)) {
                    (Some(place), Some(debt)) => SnapshotEntry::Record { place, debt },
                    _ => return Err(StateError::Contents("an invalid record")),
                }
            }
            OWN => match usize::try_from(input.u64()?) {
                Ok(words) if words <= MOST_WORDS as usize => SnapshotEntry::Own {
                    tag: number,
                    state: input.words(words)?,
                },
                _ => return Err(StateError::Contents("a state of too many words")),
            },
            BLOCKED => SnapshotEntry::Blocked {
                tag: number,
                until: input.u64()?,
            },
            _ => return Err(StateError::Contents("an entry of an unknown kind")),
        });
    }
}

/// A file, with a checksum of the bytes read so far.
struct Input<R> {
    file: BufReader<R>,
    checksum: crc32fast::Hasher,
}

impl<R: Read> Input<R> {
    fn new(file: R) -> Self {
        Self {
            file: BufReader::with_capacity(1 << 16, file),
            checksum: crc32fast::Hasher::new(),
        }
    }

    fn bytes(&mut self, bytes: &mut [u8]) -> Result<(), StateError> {
        self.file.read_exact(bytes)?;
        self.checksum.update(bytes);
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], StateError> {
        let mut bytes = [0; N];
        self.bytes(&mut bytes)?;
        Ok(bytes)
    }

    fn u8(&mut self) -> Result<u8, StateError> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, StateError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, StateError> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, StateError> {
        let mut bytes = vec![0; u16::from_le_bytes(self.array()?).into()];
        self.bytes(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| StateError::Contents("a text that is not UTF-8"))
    }

    /// A policy as rules write it; `None` for an empty text.
    fn policy(&mut self) -> Result<Option<Policy>, StateError> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        let spec = parse_policy(&text)
            .map_err(|_| StateError::Contents("a policy that cannot be parsed"))?;
        spec.policy()
            .map(Some)
            .map_err(|_| StateError::Contents("an invalid policy"))
    }

    fn words(&mut self, count: usize) -> Result<Vec<u64>, StateError> {
        // Not reserved in advance: a wrong count could ask for up to 8 MB.
        (0..count).map(|_| self.u64()).collect()
    }

    /// Checks the checksum, after which nothing may follow.
    fn end(mut self) -> Result<(), StateError> {
        let expected = self.checksum.clone().finalize();
        let found = self.u32()?;
        let rest = io::copy(&mut self.file.by_ref().take(1), &mut io::sink())?;
        if rest > 0 {
            return Err(StateError::Length);
        }
        if found == expected {
            Ok(())
        } else {
            Err(StateError::Checksum)
        }
    }
}
