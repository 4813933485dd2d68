//! Shares of tenants, under keys next to that of the limit.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tidegate_core::{
    Decision, Nanos,
    fair::{FairError, FairShares, Refusal, Terms},
};

use super::{Plan, block::key_beside, numbers};
use crate::{StoreError, script::call::Before, sync::lock};

/// The letters of the common state and of a tenant in `joint.lua`, and in place of a shape in their
/// keys.
const COMMON: &str = "o";
const TENANT: &str = "h";

/// The maximum number of tenants whose shares a node remembers.
const SEEN: usize = 1 << 12;

/// Tenants' shares, and when they were seen.
type SharesSeen = HashMap<Box<[u8]>, (ShareSeen, Nanos)>;

/// How tenants share a plan's limit, and which of them asks.
#[derive(Clone, Debug)]
pub(super) struct PlanShares {
    fair: FairShares,
    seen: Arc<Mutex<SharesSeen>>,
    tenant: Option<Tenant>,
}

#[derive(Clone, Debug)]
struct Tenant {
    name: Box<[u8]>,
    terms: Terms,
}

impl PlanShares {
    /// Whether the store still has what was seen then.
    fn is_recent(&self, at: Nanos, now: Nanos) -> bool {
        now.saturating_since(at).get() < self.fair.horizon().get().saturating_mul(4)
    }

    fn remember(&self, tenant: &[u8], share: ShareSeen, now: Nanos) {
        let mut seen = lock(&self.seen);
        if let Some(known) = seen.get_mut(tenant) {
            *known = (share, now);
            return;
        }
        if seen.len() >= SEEN {
            seen.retain(|_, (_, at)| self.is_recent(*at, now));
            if seen.len() >= SEEN {
                seen.clear();
            }
        }
        seen.insert(tenant.into(), (share, now));
    }
}

/// A tenant's part of a reply.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShareSeen {
    /// Its share's or its ceiling's refusal.
    pub refusal: Option<Refusal>,
    /// Its part of the limit while all tenants that asked lately want more than they get, from 0 to
    /// 1.
    pub part: f64,
    /// The part of the limit that it has used lately.
    pub used: f64,
}

impl Plan {
    /// The same plan for a limit that tenants share.
    ///
    /// # Errors
    /// If the policy does not support shares.
    pub fn with_shares(self) -> Result<Self, FairError> {
        let fair = FairShares::new(&self.policy)?;
        if fair.are_permits() {
            return Err(FairError::Permits);
        }
        let shares = PlanShares {
            fair,
            seen: Arc::default(),
            tenant: None,
        };
        Ok(Self {
            shares: Some(Box::new(shares)),
            ..self
        })
    }

    /// Whether tenants share the limit.
    #[must_use]
    pub const fn has_shares(&self) -> bool {
        self.shares.is_some()
    }

    /// The same plan for requests of this tenant, if tenants share the limit.
    #[must_use]
    pub fn of_tenant(&self, name: &[u8], terms: Terms) -> Self {
        let mut plan = self.clone();
        if let Some(shares) = &mut plan.shares {
            shares.tenant = Some(Tenant {
                name: name.into(),
                terms,
            });
        }
        plan
    }

    /// The name of the tenant that asks.
    #[doc(hidden)]
    pub fn tenant(&self) -> Option<&[u8]> {
        Some(&self.shares.as_ref()?.tenant.as_ref()?.name)
    }

    /// The keys of the common state and of the tenant that asks.
    #[doc(hidden)]
    pub fn share_keys(&self, whole: &[u8], is_cluster: bool) -> Option<[Vec<u8>; 2]> {
        let name = self.tenant()?;
        let of_tenant = [whole, name].concat();
        let tenant = if is_cluster {
            // Next to the limit's own key, in its slot.
            let digest = sha1_smol::Sha1::from(name).digest().to_string();
            let letter = format!("{TENANT}{digest}");
            key_beside(whole, is_cluster, &letter)
        } else {
            key_beside(&of_tenant, is_cluster, TENANT)
        };
        Some([key_beside(whole, is_cluster, COMMON), tenant])
    }

    /// The numbers of the common state and of the tenant, for `shares.lua`.
    #[doc(hidden)]
    pub fn share_numbers(&self) -> Option<[Vec<u8>; 2]> {
        let shares = self.shares.as_ref()?;
        let Tenant { name, terms } = shares.tenant.as_ref()?;
        let [a, b, c, d, ..] = sha1_smol::Sha1::from(name).digest().bytes();
        let number = u32::from_le_bytes([a, b, c, d]).max(1);
        let guarantee = terms.guarantee().unwrap_or(0.0);
        let ceiling = terms.ceiling().unwrap_or(1.0);
        let of_tenant = [terms.weight(), guarantee, ceiling, number.into()];
        let micros = shares.fair.spans()?.map(|nanos| nanos / 1e3);
        Some([micros, of_tenant].map(numbers::fractions))
    }

    /// The arguments of the shares of the limit at this index of a joint decision, from 0.
    pub(super) fn share_arguments(&self, at: usize) -> impl Iterator<Item = [Vec<u8>; 3]> {
        let numbers = self.share_numbers().into_iter().flatten();
        let index = (at + 1).to_string().into_bytes();
        [COMMON, TENANT]
            .into_iter()
            .zip(numbers)
            .map(move |(letter, numbers)| [letter.into(), numbers, index.clone()])
    }

    /// The limit's decision, or the refusal by the tenant's share, which is remembered.
    pub(super) fn by_share(&self, made: Decision, seen: Option<ShareSeen>, now: Nanos) -> Decision {
        let (Some(shares), Some(seen)) = (&self.shares, seen) else {
            return made;
        };
        if let Some(tenant) = &shares.tenant {
            shares.remember(&tenant.name, seen, now);
        }
        match seen.refusal {
            Some(refusal) => shares.fair.refused(&made, refusal),
            None => made,
        }
    }

    /// A tenant's share as this node has last seen it, unless the store has forgotten it since.
    #[doc(hidden)]
    pub fn share_seen(&self, tenant: &[u8], now: Nanos) -> Option<ShareSeen> {
        let shares = self.shares.as_ref()?;
        let (seen, at) = *lock(&shares.seen).get(tenant)?;
        shares.is_recent(at, now).then_some(seen)
    }
}

/// A tenant's part of a reply, behind that of the common state.
pub fn seen(common: Before, tenant: Before) -> Result<ShareSeen, StoreError> {
    common?;
    let reply = tenant?.ok_or(StoreError::BadReply)?;
    let (&[is_refused, by_ceiling], numbers) =
        reply.split_first_chunk().ok_or(StoreError::BadReply)?;
    let (numbers, rest) = numbers.as_chunks();
    let ([wait, part, used], []) = (numbers, rest) else {
        return Err(StoreError::BadReply);
    };
    let refusal = Refusal {
        retry_after: Some(Nanos::from_micros(u64::from_le_bytes(*wait))),
        by_ceiling: by_ceiling == 1,
    };
    Ok(ShareSeen {
        refusal: (is_refused == 1).then_some(refusal),
        part: f64::from_le_bytes(*part),
        used: f64::from_le_bytes(*used),
    })
}
