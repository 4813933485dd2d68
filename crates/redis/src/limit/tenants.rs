//! Limits that tenants share: see [`LimitBuilder::tenants`](crate::LimitBuilder::tenants).

use std::{collections::HashMap, fmt, sync::Arc};

use tidegate_core::{Clock as _, Key, fair::Terms};

use super::SharedLimit;
use crate::{
    LimitOrders, StoreError,
    script::{ShareSeen, call::ShareChange},
};

/// The part of a key that names its tenant.
pub type TenantOf = fn(&[u8]) -> &[u8];

/// The tenants of a limit.
#[derive(Clone)]
pub struct StoreTenants {
    pub by: TenantOf,
    pub others: Terms,
    pub named: HashMap<Box<[u8]>, Terms>,
    /// The orders of operators, of which an override gives a tenant a weight.
    pub orders: Arc<LimitOrders>,
}

impl fmt::Debug for StoreTenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreTenants")
            .field("others", &self.others)
            .field("named", &self.named)
            .finish_non_exhaustive()
    }
}

impl StoreTenants {
    /// A tenant's terms now.
    pub fn terms(&self, name: &[u8]) -> Terms {
        let terms = self.named.get(name).copied().unwrap_or(self.others);
        let own = self.orders.override_of(name);
        own.and_then(|text| terms.with_weight_text(&text))
            .unwrap_or(terms)
    }
}

impl SharedLimit {
    /// The share of a key's tenant as this node has last seen it, in a decision or in a
    /// [`peek`](Self::peek). `None` without tenants, and if the tenant asked nothing lately.
    #[must_use]
    pub fn share_seen(&self, key: impl Key) -> Option<ShareSeen> {
        let tenants = self.0.tenants.as_ref()?;
        let now = self.monitor().clock.now();
        key.with_bytes(|key| self.plan().share_seen((tenants.by)(key), now))
    }

    /// The terms of a key's tenant now, with a weight that an operator gave it by an
    /// [order](crate::Order::Override), as `weight=10`. `None` without tenants.
    #[must_use]
    pub fn terms_of(&self, key: impl Key) -> Option<Terms> {
        let tenants = self.0.tenants.as_ref()?;
        Some(key.with_bytes(|key| tenants.terms((tenants.by)(key))))
    }

    /// Has a tenant's share follow a change of the limit itself.
    pub(super) async fn follow_in_share(&self, tenant: &impl Key, change: ShareChange) {
        if self.0.tenants.is_some() {
            let (plan, whole) = (self.plan_of(tenant, 0), self.redis_key(tenant));
            let batcher = self.store().batcher();
            batcher
                .follow_in_share(&plan, &whole, change, self.deadline())
                .await;
        }
    }

    /// Has a tenant's share follow a settlement.
    pub(super) async fn settle_share(&self, tenant: &impl Key, estimate: u64, actual: u64) {
        let change = if actual > estimate {
            ShareChange::Charge(actual - estimate)
        } else {
            ShareChange::Refund(estimate - actual)
        };
        if actual != estimate {
            self.follow_in_share(tenant, change).await;
        }
    }

    /// Changes what a tenant has used.
    pub(super) async fn change_share(
        &self,
        tenant: &impl Key,
        change: ShareChange,
    ) -> Result<(), StoreError> {
        let (plan, whole) = (self.plan_of(tenant, 0), self.redis_key(tenant));
        let batcher = self.store().batcher();
        batcher
            .change_share(&plan, &whole, change, self.deadline())
            .await
    }
}
