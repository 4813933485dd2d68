//! A question of an edge: a limit's name, a key and a cost.

use std::sync::Arc;

use tidegate_config::likest;

use crate::{
    decide::{
        limits::{Limit, Limits, Operation},
        refusal::Refusal,
    },
    rules::{MAX_KEY_BYTES, THROTTLE},
};

/// How many names an error about an unknown one suggests.
const NEAREST: usize = 3;

/// A question to one limit about one key.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The limit's name.
    pub limit: &'a [u8],
    /// The key; ignored for a global limit.
    pub key: Option<&'a [u8]>,
    /// The number of units.
    pub cost: u64,
}

/// A limit, and the key to use with it.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'r, 'k> {
    /// The limit.
    pub limit: &'r Arc<Limit>,
    /// The key; empty for a global limit.
    pub key: &'k [u8],
}

/// Finds the limit with this name, and the key to use with it.
///
/// # Errors
/// When no limit has this name, or the key is not valid for it.
#[inline]
pub fn resolve<'r, 'k>(
    limits: &'r Limits,
    name: &[u8],
    key: Option<&'k [u8]>,
) -> Result<Resolved<'r, 'k>, Refusal> {
    let Some(limit) = limits.limit(name) else {
        return Err(unknown(limits, name, |_| true));
    };
    match key {
        Some(key) if key.len() > MAX_KEY_BYTES => Err(Refusal::KeyTooLong { bytes: key.len() }),
        _ if limit.spec().global => Ok(Resolved { limit, key: &[] }),
        Some(key) => Ok(Resolved { limit, key }),
        None => Err(Refusal::KeyMissing {
            limit: limit.spec().name.clone(),
        }),
    }
}

/// Which limits a client may use, and so may see the names of.
pub trait Sees {
    /// Whether it may use all limits.
    fn sees_all(&self) -> bool;
    /// Whether it may use the limit with this name.
    fn sees(&self, name: &[u8]) -> bool;
}

/// Refuses a limit that does not exist for a client that may not see the names of all limits. For
/// other clients, asking it does.
pub fn refuse_unknown(limits: &Limits, name: &[u8], client: &impl Sees) -> Result<(), Refusal> {
    if client.sees_all() || limits.limit(name).is_some() || name == THROTTLE.as_bytes() {
        return Ok(());
    }
    Err(unknown(limits, name, |name| client.sees(name.as_bytes())))
}

/// Suggests names that may be seen.
#[cold]
fn unknown(limits: &Limits, name: &[u8], is_seen: impl Fn(&str) -> bool) -> Refusal {
    let shown: String = String::from_utf8_lossy(name).chars().take(64).collect();
    let names = limits
        .limits()
        .iter()
        .map(|limit| limit.spec().name.as_str())
        .filter(|name| is_seen(name));
    let limits = names.clone().count();
    let nearest = likest(&shown, names, NEAREST)
        .into_iter()
        .map(str::to_owned)
        .collect();
    Refusal::UnknownLimit {
        name: shown,
        nearest,
        limits,
    }
}

/// Finds what an operation concerns: a key of a limit with keys. A reset may also concern a global
/// limit, or all keys.
///
/// # Errors
/// The same as [`resolve`]; also for a global limit.
pub fn resolve_operated<'r, 'k>(
    limits: &'r Limits,
    name: &[u8],
    key: Option<&'k [u8]>,
    operation: &Operation,
) -> Result<Resolved<'r, 'k>, Refusal> {
    let is_reset = matches!(operation, Operation::Reset);
    let resolved = resolve(limits, name, if is_reset { key.or(Some(&[])) } else { key })?;
    if resolved.limit.spec().global && !is_reset {
        return Err(Refusal::GlobalHasNoKeys {
            limit: resolved.limit.spec().name.clone(),
        });
    }
    Ok(resolved)
}
