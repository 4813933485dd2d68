//! How many keys each limit has room for, and how much memory that takes.
//!
//! Without a bound on memory, a limit has its own `max_keys` or the server's. With a bound, limits
//! without their own `max_keys` start with equal parts of half of what the others leave. The other
//! half goes to limits that need more while the server runs: see [`Division`](super::Division).

use tidegate_core::Policy;
use tidegate_limiter::{BuildError, FairBuildError, KeyedLimiter};

use super::{Limits, memory, tenants};
use crate::observe::heavy::TOP_KEYS;
use crate::rules::{Keeping, LimitSpec, MAX_TENANTS, Problem, RulesError};

/// The minimum number of keys of a limit, at the start and after shrinking.
pub(super) const LEAST_KEYS: usize = 64;

/// The bounds for limits without their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The maximum number of keys in one limit.
    pub max_keys: usize,
    /// The bytes of all states together, divided by use; `None` reserves `max_keys` for each limit.
    pub max_memory: Option<u64>,
    /// The same bytes if neither this nor the rules set them: a part of what the container may use.
    pub container: Option<u64>,
    /// The number of heavy keys that each limit tracks by name; 0 for none.
    pub top_keys: usize,
}

impl From<usize> for Capacity {
    fn from(max_keys: usize) -> Self {
        Self {
            max_keys,
            max_memory: None,
            container: None,
            top_keys: TOP_KEYS,
        }
    }
}

/// The bytes that the states of `max_keys` keys can take, including records of evicted keys.
pub(super) fn bytes_of(policy: Policy, max_keys: usize) -> Result<u64, BuildError> {
    // The memory is only reserved briefly and never touched.
    Ok(KeyedLimiter::builder(policy)
        .max_keys(max_keys)
        .clock(())
        .build()?
        .stats()
        .bytes)
}

/// The bytes of a limit that up to `max_tenants` share.
fn bytes_of_tenants(
    spec: &LimitSpec,
    policy: Policy,
    max_tenants: usize,
) -> Result<u64, FairBuildError> {
    let limiter = KeyedLimiter::builder(policy)
        .max_keys(1)
        .clock(())
        .build()?;
    let tenants = tenants::tenants(spec, max_tenants, &limiter)?;
    let bytes = tenants.map_or(0, |tenants| tenants.stats().bytes);
    Ok(bytes + limiter.stats().bytes)
}

/// The minimum number of keys of a limit: there must be room for those in the rules.
pub(super) fn least_keys(spec: &LimitSpec) -> usize {
    (spec.overrides.len() + spec.deny.len())
        .next_power_of_two()
        .max(LEAST_KEYS)
}

/// The bound in the limit's own rule.
fn own_bound(spec: &LimitSpec) -> Option<usize> {
    if spec.global {
        return Some(1);
    }
    // The tables of tenants do not follow their use.
    let tenants = spec.shares.is_some().then_some(MAX_TENANTS);
    spec.max_keys.or(tenants)
}

/// The room for keys of each limit.
pub(super) struct Rooms {
    max_keys: usize,
    keeping: Keeping,
    /// With a bound on memory: the initial bytes of each limit without its own bound.
    part: Option<u64>,
}

impl Rooms {
    /// # Errors
    /// When the memory is too small for these limits.
    pub fn new(
        limits: &[LimitSpec],
        max_keys: usize,
        max_memory: Option<u64>,
        keeping: Keeping,
        before: Option<&Limits>,
    ) -> Result<Self, RulesError> {
        let mut rooms = Self {
            max_keys,
            keeping,
            part: None,
        };
        let Some(max_memory) = max_memory else {
            return Ok(rooms);
        };
        // The buckets of `CL.THROTTLE` get a part like the limits.
        let (mut fixed, mut least, mut parts, mut held) = (0, 0, 1, 0);
        for spec in limits {
            if let Some(keys) = own_bound(spec) {
                fixed += rooms.bytes(spec, keys)?;
                continue;
            }
            least += 2 * rooms.bytes(spec, least_keys(spec))?;
            match before.and_then(|before| before.predecessor(spec)) {
                Some(old) => held += old.stats().bytes,
                None => parts += 1,
            }
        }
        let needed = fixed + least;
        if needed > max_memory {
            let what = format!(
                "{} at least {needed} bytes, and max_memory is {max_memory}",
                match limits.len() {
                    1 => "1 limit needs".to_owned(),
                    several => format!("{several} limits need"),
                }
            );
            let mend =
                "raise max_memory (or --max-memory), or lower the max_keys of limits that have one";
            return Err(RulesError::invalid(None, Problem::overall(what).mend(mend)));
        }
        rooms.part = Some((max_memory - fixed).saturating_sub(held) / 2 / parts);
        Ok(rooms)
    }

    /// The bound of a limit, unless it follows its use.
    pub fn bound(&self, spec: &LimitSpec) -> Option<usize> {
        own_bound(spec).or_else(|| self.part.is_none().then_some(self.max_keys))
    }

    /// The initial number of keys of a new limit.
    pub fn begins_with(&self, spec: &LimitSpec) -> usize {
        own_bound(spec)
            .unwrap_or_else(|| self.within_part(least_keys(spec), |keys| self.bytes(spec, keys)))
    }

    /// The initial number of keys of `CL.THROTTLE`.
    pub fn throttle_keys(&self) -> usize {
        self.within_part(LEAST_KEYS, |keys| bytes_of(Policy::concurrency(1), keys))
    }

    /// The largest number of keys, by doublings of the least, whose bytes fit into the part.
    fn within_part<E>(&self, least: usize, bytes: impl Fn(usize) -> Result<u64, E>) -> usize {
        let Some(part) = self.part else {
            return self.max_keys;
        };
        let mut keys = least;
        while 2 * keys <= self.max_keys && bytes(2 * keys).is_ok_and(|bytes| bytes <= part) {
            keys *= 2;
        }
        keys
    }

    fn bytes(&self, spec: &LimitSpec, keys: usize) -> Result<u64, RulesError> {
        let policy = memory::policy(&spec.policy, self.keeping);
        let policy = policy.map_err(|error| RulesError::of_policy(&spec.name, &error))?;
        let bytes = if spec.shares.is_some() && self.keeping == Keeping::Memory {
            bytes_of_tenants(spec, policy, keys)
        } else {
            bytes_of(policy, keys).map_err(FairBuildError::from)
        };
        bytes.map_err(|source| RulesError::Store {
            limit: spec.name.clone(),
            source,
        })
    }
}
