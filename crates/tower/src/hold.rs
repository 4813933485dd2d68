//! The units that a request has taken from limits, and how they are given back.

#[cfg(feature = "shared")]
use tidegate_redis::{SharedEstimate, SharedPermit};

use http::response;
use smallvec::SmallVec;
use tidegate_core::Decision;
use tidegate_limiter::{Estimate, Timer};

#[cfg(feature = "json")]
use crate::usage::Usage;
use crate::{
    body::AtEnd,
    limit::{Limit, LimitKind},
    question::LimitQuestion,
    settle::Settle,
    upgrade::InFlight,
};

/// The units that a request has taken from one limit, and where they count.
pub(crate) enum TakenUnits {
    Here(Estimate),
    /// Permits whose place was not noted: the policy has just begun to count requests in flight.
    Permits(u64),
    #[cfg(feature = "shared")]
    Shared(SharedEstimate),
}

impl TakenUnits {
    /// The permits that a limit of this process has admitted without noting their place, because
    /// its policy became one of permits while it was asked. Only permits never reset by themselves.
    #[inline]
    pub(crate) fn permits(decision: &Decision, cost: u64) -> Option<Self> {
        let is_permit = decision.reset_after_nanos() == u64::MAX && decision.is_allowed();
        is_permit.then_some(Self::Permits(cost))
    }

    const fn cost(&self) -> u64 {
        match self {
            Self::Here(taken) => taken.cost,
            Self::Permits(cost) => *cost,
            #[cfg(feature = "shared")]
            Self::Shared(taken) => taken.cost(),
        }
    }
}

/// The units that a request has taken from one limit. Dropping it gives them back, unless it was
/// [settled](Self::settle).
pub(crate) struct Hold<C: Timer + 'static> {
    limit: Limit<C>,
    key: SmallVec<[u8; 24]>,
    /// The units, and where they count. None if they cannot return.
    taken: Option<TakenUnits>,
    /// A shared limit's permit. It gives itself back when it is dropped.
    #[cfg(feature = "shared")]
    _permit: Option<SharedPermit>,
}

impl<C: Timer + 'static> Hold<C> {
    fn new(question: &LimitQuestion<'_, C>, taken: Option<TakenUnits>) -> Self {
        Self {
            limit: question.limit.clone().into_owned(),
            key: question.key[..].into(),
            taken,
            #[cfg(feature = "shared")]
            _permit: None,
        }
    }

    #[cfg(feature = "shared")]
    pub(crate) fn of_permit(limit: Limit<C>, permit: SharedPermit) -> Self {
        Self {
            limit,
            key: SmallVec::new(),
            taken: None,
            _permit: Some(permit),
        }
    }

    /// Adjusts the charge to the final `cost`: the difference returns to where it counts, or is
    /// charged, whether it fits or not. `None` leaves it as it is.
    fn settle(&mut self, cost: Option<u64>) {
        if let (Some(taken), Some(cost)) = (self.taken.take(), cost) {
            correct(&self.limit, &self.key, taken, cost);
        }
    }
}

impl<C: Timer + 'static> Drop for Hold<C> {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take()
            && taken.cost() > 0
        {
            correct(&self.limit, &self.key, taken, 0);
        }
    }
}

/// Corrects what was taken from a limit to the `actual` cost.
fn correct<C: Timer + 'static>(limit: &Limit<C>, key: &[u8], taken: TakenUnits, actual: u64) {
    match (&limit.0, taken) {
        (LimitKind::Keyed(limiter), TakenUnits::Here(taken)) => {
            limiter.at(limiter.clock().now()).settle(key, taken, actual);
        }
        (LimitKind::Unkeyed(limiter), TakenUnits::Here(taken)) => {
            limiter.at(limiter.clock().now()).settle(taken, actual);
        }
        // Under a rate they count as its units, which were used.
        (LimitKind::Keyed(limiter), TakenUnits::Permits(cost)) => {
            let own = limiter.override_of(key);
            if own.unwrap_or_else(|| limiter.policy()).is_concurrency() {
                limiter.refund(key, cost);
            }
        }
        (LimitKind::Unkeyed(limiter), TakenUnits::Permits(cost))
            if limiter.policy().is_concurrency() =>
        {
            limiter.refund(cost);
        }
        #[cfg(feature = "shared")]
        (LimitKind::Shared(limit), TakenUnits::Shared(taken)) => {
            let (limit, key) = (limit.clone(), key.to_owned());
            in_background(async move {
                // A correction that fails (because the store is down) leaves the estimate charged.
                // The store's statistics count it.
                let _ = limit.settle(&key[..], taken, actual).await;
            });
        }
        _ => {}
    }
}

#[cfg(feature = "shared")]
fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    // Without a runtime nothing can ask the store. This happens only while the program exits.
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(work);
    }
}

/// The units that a request has taken from all its limits. Dropped before the service is called, it
/// gives all of them back; afterwards, those that are still due.
///
/// It is boxed: most requests hold nothing once their service is called, and those that do hold it
/// until their body ends.
pub(crate) struct Holds<C: Timer + 'static>(Option<Box<HeldUnits<C>>>);

struct HeldUnits<C: Timer + 'static> {
    all: SmallVec<[(Hold<C>, Settle); 1]>,
    /// Permits that the request shares with the connection that may outlive it.
    in_flight: Option<InFlight>,
    has_run: bool,
    /// The number of bytes of the response's body, once there is a response.
    bytes: Option<u64>,
    /// Reads the body, if a limit learns its cost from it.
    #[cfg(feature = "json")]
    usage: Option<Usage>,
}

impl<C: Timer + 'static> Holds<C> {
    pub(crate) const fn new() -> Self {
        Self(None)
    }

    pub(crate) const fn take(&mut self) -> Self {
        Self(self.0.take())
    }

    /// Adds what a request has taken from one limit.
    #[cold]
    pub(crate) fn add(
        &mut self,
        question: &LimitQuestion<'_, C>,
        taken: Option<TakenUnits>,
        settle: Settle,
    ) {
        if question.cost > 0 || !matches!(settle, Settle::Before | Settle::Back) {
            self.push(Hold::new(question, taken), settle);
        }
    }

    pub(crate) fn push(&mut self, hold: Hold<C>, settle: Settle) {
        let held = || {
            Box::new(HeldUnits {
                all: SmallVec::new(),
                in_flight: None,
                has_run: false,
                bytes: None,
                #[cfg(feature = "json")]
                usage: None,
            })
        };
        self.0.get_or_insert_with(held).all.push((hold, settle));
    }

    pub(crate) fn append(&mut self, others: Self) {
        for (hold, settle) in others
            .0
            .into_iter()
            .flat_map(|mut others| std::mem::take(&mut others.all))
        {
            self.push(hold, settle);
        }
    }

    /// Takes the permits out, for all holders of the returned value and this one.
    pub(crate) fn share_permits(&mut self) -> Option<InFlight> {
        let held = self.0.as_mut()?;
        let (permits, others) = std::mem::take(&mut held.all)
            .into_iter()
            .partition::<Vec<_>, _>(|(_, settle)| matches!(settle, Settle::Back));
        held.all = others.into();
        if permits.is_empty() {
            return None;
        }
        let holds = permits.into_iter().map(|(hold, _)| hold);
        held.in_flight = Some(InFlight::new(holds.collect::<Vec<Hold<C>>>()));
        held.in_flight.clone()
    }

    /// The service is called now, so costs that were known before become final.
    pub(crate) fn run(&mut self) {
        let Some(held) = &mut self.0 else { return };
        held.has_run = true;
        held.all.retain(|(hold, settle)| {
            let is_spent = matches!(settle, Settle::Before);
            if is_spent {
                hold.settle(None);
            }
            !is_spent
        });
        if held.holds_nothing() {
            self.0 = None;
        }
    }

    /// The response has arrived. Returns what is held until its body ends.
    pub(crate) fn head(self, head: &response::Parts) -> Option<Box<dyn AtEnd>> {
        let mut held = self.0?;
        held.bytes = Some(0);
        held.all.retain(|(hold, settle)| {
            let Settle::Head(cost) = settle else {
                return true;
            };
            hold.settle(cost(head));
            false
        });
        #[cfg(feature = "json")]
        if held
            .all
            .iter()
            .any(|(_, settle)| matches!(settle, Settle::Json(..)))
        {
            held.usage = Usage::of(head);
        }
        (!held.holds_nothing()).then_some(held as Box<dyn AtEnd>)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

impl<C: Timer + 'static> HeldUnits<C> {
    fn holds_nothing(&self) -> bool {
        self.all.is_empty() && self.in_flight.is_none()
    }
}

impl<C: Timer + 'static> AtEnd for HeldUnits<C> {
    fn data(&mut self, bytes: &[u8]) {
        self.bytes = Some(
            self.bytes
                .unwrap_or_default()
                .saturating_add(bytes.len() as u64),
        );
        #[cfg(feature = "json")]
        if let Some(usage) = &mut self.usage {
            usage.read(bytes, |value| learn(&mut self.all, value));
        }
    }
}

/// Looks for the costs of the limits in a JSON value of the response.
#[cfg(feature = "json")]
fn learn<C: Timer + 'static>(all: &mut [(Hold<C>, Settle)], value: &serde_json::Value) {
    for (_, settle) in all {
        if let Settle::Json(cost, last) = settle {
            *last = cost(value).or(*last);
        }
    }
}

impl<C: Timer + 'static> Drop for HeldUnits<C> {
    fn drop(&mut self) {
        #[cfg(feature = "json")]
        if let Some(usage) = &mut self.usage {
            usage.end(|value| learn(&mut self.all, value));
        }
        for (mut hold, settle) in self.all.drain(..) {
            hold.settle(match settle {
                // Its drop gives the units back.
                _ if !self.has_run => continue,
                Settle::Back => continue,
                Settle::Bytes(unit) => self
                    .bytes
                    .map(|bytes| bytes.div_ceil(u32::from(unit).into())),
                #[cfg(feature = "json")]
                Settle::Json(_, cost) => cost,
                Settle::Bill(bill) => bill.and_then(|bill| bill.get()),
                // There was no response that could say the cost.
                Settle::Before | Settle::Head(_) => None,
            });
        }
    }
}
