//! What a request holds of limits, and how it comes back.

#[cfg(feature = "shared")]
use tidegate_redis::{Permit, SharedLimit};

use std::num::NonZeroU32;

use tidegate_core::{Parameters, Policy};
use tidegate_limiter::Timer;

use crate::{
    bill::Bill,
    body::AtEnd,
    limit::{Kind, Limit},
};

/// What a request has taken of one limit. Dropped, it gives that back, unless it was [kept](Self::keep).
pub(crate) struct Hold<C: Timer + 'static> {
    /// Which rule of the layer it is of.
    pub(crate) rule: usize,
    limit: Limit<C>,
    key: Box<[u8]>,
    cost: u32,
    /// A shared limit's permit, which knows the way back better.
    #[cfg(feature = "shared")]
    _permit: Option<Permit>,
}

impl<C: Timer + 'static> Hold<C> {
    pub(crate) fn new(rule: usize, limit: Limit<C>, key: &[u8], cost: u32) -> Self {
        Self {
            rule,
            limit,
            key: key.into(),
            cost,
            #[cfg(feature = "shared")]
            _permit: None,
        }
    }

    #[cfg(feature = "shared")]
    pub(crate) fn of_permit(rule: usize, limit: Limit<C>, permit: Permit) -> Self {
        Self { rule, limit, key: Box::default(), cost: 0, _permit: Some(permit) }
    }

    /// Nothing comes back.
    pub(crate) fn keep(&mut self) {
        self.cost = 0;
    }

    /// Gives back or takes more, so that it was `cost` in the end: of what is to be taken, as much as there is.
    pub(crate) fn settle(&mut self, cost: u32) {
        let before = std::mem::replace(&mut self.cost, 0);
        let (more, less) = (cost.saturating_sub(before), before.saturating_sub(cost));
        match &self.limit.0 {
            Kind::Keyed(limiter) if more > 0 => drop(limiter.acquire_up_to(&self.key, more)),
            Kind::Unkeyed(limiter) if more > 0 => drop(limiter.acquire_up_to(more)),
            #[cfg(feature = "shared")]
            Kind::Shared(limit) if more > 0 => {
                let (limit, key) = (limit.clone(), std::mem::take(&mut self.key));
                in_background(async move {
                    let told = limit.acquire(&key, more).await;
                    let left = u32::try_from(told.decision.remaining()).unwrap_or(u32::MAX);
                    if told.is_denied() && left > 0 {
                        // Whoever comes between takes what is left: the limit is used up in either case.
                        let _ = limit.acquire(&key, left).await;
                    }
                });
            }
            _ => give_back(&self.limit, &self.key, less),
        }
    }
}

impl<C: Timer + 'static> Drop for Hold<C> {
    fn drop(&mut self) {
        give_back(&self.limit, &self.key, self.cost);
    }
}

fn give_back<C: Timer + 'static>(limit: &Limit<C>, key: &[u8], cost: u32) {
    if cost == 0 {
        return;
    }
    match &limit.0 {
        Kind::Keyed(limiter) => limiter.refund(key, cost),
        Kind::Unkeyed(limiter) => limiter.refund(cost),
        #[cfg(feature = "shared")]
        Kind::Shared(limit) => refund_in_background(limit, key, cost),
        Kind::Own(_) => {}
    }
}

/// What cannot be given back (limits that are leased or reported; a store that is down) stays taken, and the store's
/// statistics count it.
#[cfg(feature = "shared")]
fn refund_in_background(limit: &SharedLimit, key: &[u8], cost: u32) {
    let (limit, key) = (limit.clone(), key.to_owned());
    in_background(async move {
        let _ = limit.refund(key, cost).await;
    });
}

#[cfg(feature = "shared")]
fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    // Outside a runtime nobody can ask the store: that is the end of a program.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}

/// Whether what is taken of it is to come back.
pub(crate) fn is_in_flight(policy: &Policy) -> bool {
    matches!(policy.parameters(), Parameters::Concurrency { .. })
}

/// When it is known what a request has cost of a limit, and what then comes back.
#[derive(Clone)]
pub(crate) enum Settles {
    /// It was known before: nothing, unless the request never ran.
    Before,
    /// All of it, with the response's body: a permit.
    Back,
    /// The head of the response tells.
    Head,
    /// One for each so many bytes of the body.
    Bytes(NonZeroU32),
    /// As the service has written it down.
    Bill(Bill),
}

/// What a request holds of all its limits. Dropped before the service was called, it gives back everything, and else what
/// is left to give back.
pub(crate) struct Holds<C: Timer + 'static> {
    all: Vec<(Hold<C>, Settles)>,
    has_run: bool,
    /// Of the response's body, once there is one.
    bytes: Option<u64>,
}

impl<C: Timer + 'static> Holds<C> {
    pub(crate) fn new() -> Self {
        Self { all: Vec::new(), has_run: false, bytes: None }
    }

    pub(crate) fn add(&mut self, hold: Hold<C>, settles: Settles) {
        self.all.push((hold, settles));
    }

    pub(crate) fn append(&mut self, mut others: Self) {
        self.all.append(&mut others.all);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The service is called now: what is spent is spent.
    pub(crate) fn run(&mut self) {
        if self.is_empty() {
            return;
        }
        self.has_run = true;
        self.all.retain_mut(|(hold, settles)| {
            let is_spent = matches!(settles, Settles::Before);
            if is_spent {
                hold.keep();
            }
            !is_spent
        });
    }

    /// There is a response: `cost` says of a rule what its head tells.
    pub(crate) fn head(&mut self, cost: impl Fn(usize) -> Option<u32>) {
        self.bytes = Some(0);
        for (mut hold, settles) in std::mem::take(&mut self.all) {
            match settles {
                Settles::Head => match cost(hold.rule) {
                    Some(cost) => hold.settle(cost),
                    None => hold.keep(),
                },
                settles => self.all.push((hold, settles)),
            }
        }
    }
}

impl<C: Timer + 'static> AtEnd for Holds<C> {
    fn data(&mut self, bytes: usize) {
        self.bytes = Some(self.bytes.unwrap_or_default().saturating_add(bytes as u64));
    }
}

impl<C: Timer + 'static> Drop for Holds<C> {
    fn drop(&mut self) {
        for (mut hold, settles) in self.all.drain(..) {
            match (settles, self.bytes) {
                _ if !self.has_run => drop(hold),
                (Settles::Back, _) => drop(hold),
                (Settles::Bytes(unit), Some(bytes)) => {
                    let cost = bytes.div_ceil(u32::from(unit).into());
                    hold.settle(u32::try_from(cost).unwrap_or(u32::MAX));
                }
                (Settles::Bill(bill), _) => match bill.get() {
                    Some(cost) => hold.settle(cost),
                    None => hold.keep(),
                },
                // There was no response to tell it.
                _ => hold.keep(),
            }
        }
    }
}
