//! Holds: what a question takes from a rule with `hold` stays taken until a report of the same
//! request corrects it to what was used, or it expires as a reservation does.
//!
//! Envoy's messages do not say whether they ask or report. A descriptor of such a rule is a report
//!
//! * if it has negative hits: these units were not used;
//! * if it has an entry [`HOLD_REPORT`](crate::config::HOLD_REPORT);
//! * if the rule has an `estimate`, the message names a number of hits, and the descriptor has no
//!   entry [`HOLD_ID`](crate::config::HOLD_ID).
//!
//! Every other one is a question. A message that names no number counts as one hit elsewhere.

use std::{
    fmt,
    hash::BuildHasher,
    sync::{Arc, OnceLock},
};

use rapidhash::fast::RandomState;
use serde_json::{Value, json};
use tidegate_core::Nanos;
use tidegate_service::decide::{
    reservations::{Id, Name, ReservationError},
    service::{Act, Part, Refusal, Report},
};

use super::{Descriptor, DescriptorService, Found, Place, sketches::Sketches};
use crate::config::{Estimate, Hold};

/// A descriptor of a rule with holds.
pub(super) struct Held {
    ttl: Nanos,
    name: Name,
    /// The descriptor's own hits.
    #[cfg(feature = "grpc")]
    pub hits: u64,
    /// The use of the units; `None` for a question.
    report: Option<Report>,
    estimate: Source,
    /// The sketches that learn from the report, the most special first.
    learn: Option<[u64; 2]>,
    /// The reservation, once it is made.
    id: Option<Id>,
}

/// Where the units of a question are from.
#[derive(Clone, Copy, Debug)]
enum Source {
    Hits,
    Fixed,
    Percentile(u8),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hits => f.write_str("hits"),
            Self::Fixed => f.write_str("fixed"),
            Self::Percentile(percent) => write!(f, "p{percent}"),
        }
    }
}

impl Held {
    pub fn is_report(&self) -> bool {
        self.report.is_some()
    }
}

/// The estimates that rules have learnt.
#[derive(Default)]
pub(super) struct Learnt {
    sketches: OnceLock<Sketches>,
    hash: RandomState,
}

impl Learnt {
    fn sketches(&self) -> &Sketches {
        self.sketches.get_or_init(Sketches::new)
    }

    /// The sketches of a limit: that of a key or of an entry's value, and that of the whole limit.
    fn of(&self, limit: &str, part: (Option<&str>, &[u8])) -> [u64; 2] {
        [self.hash.hash_one((limit, part)), self.hash.hash_one(limit)]
    }
}

impl DescriptorService {
    /// Whether a descriptor of a rule with holds asks or reports, and the units.
    pub(super) fn held(
        &self,
        hold: &Hold,
        limit: &str,
        key: &[u8],
        descriptor: &Descriptor<'_>,
        named: Option<u64>,
    ) -> (Held, u64) {
        let cost = named.unwrap_or(1);
        let named = named.filter(|hits| *hits > 0);
        let name = Name::of(limit, key, descriptor.hold_id.map(str::as_bytes));
        let is_estimated = hold.estimate.is_some() && descriptor.hold_id.is_none();
        let report = if descriptor.is_refund {
            Some(Report::Unused(cost))
        } else if descriptor.is_report || is_estimated && named.is_some() {
            Some(Report::Used(cost))
        } else {
            None
        };
        let mut held = Held {
            ttl: hold.ttl.into(),
            name,
            #[cfg(feature = "grpc")]
            hits: cost,
            report,
            estimate: Source::Hits,
            learn: None,
            id: None,
        };
        // The hits of a question bound its estimate.
        let bounded = |units: u64| named.map_or(units, |hits| units.min(hits));
        let units = match &hold.estimate {
            None => cost,
            Some(Estimate::Fixed(_)) if held.is_report() => cost,
            Some(Estimate::Fixed(units)) => {
                held.estimate = Source::Fixed;
                bounded(*units)
            }
            Some(Estimate::Percentile { percent, by }) => {
                let value = by.as_deref().map(|by| {
                    let found = descriptor.entries.iter().rfind(|(key, _)| *key == by);
                    found.map_or("", |(_, value)| *value)
                });
                let part = if value.is_some() { b"" } else { key };
                let of = self.learnt.of(limit, (value, part));
                held.learn = Some(of);
                let sketches = self.learnt.sketches();
                let learnt = || {
                    of.into_iter()
                        .find_map(|of| sketches.percentile(of, *percent))
                };
                match report.is_none().then(learnt).flatten() {
                    None => cost,
                    Some(units) => {
                        held.estimate = Source::Percentile(*percent);
                        bounded(units)
                    }
                }
            }
        };
        (held, units)
    }

    /// Takes the estimate of a question, and keeps it. If the store does not reply, the limit's
    /// `on_error` decides, and nothing is held.
    pub(super) async fn hold(&self, found: &mut Found<'_>, now: Nanos) -> Result<(), Refusal> {
        let Some(held) = &mut found.held else {
            return Ok(());
        };
        let part = Part::new(Arc::clone(&found.limit), &found.key, found.cost);
        match self.service.hold(part, held.name, held.ttl, now).await {
            Ok((decision, id)) => (found.decision, held.id) = (Some(decision), id),
            Err(Refusal::Reservation(ReservationError::NoAnswer { .. })) => {
                let decided = found.limit.decide(Act::Take, &found.key, found.cost, now);
                found.decision = Some(decided.await?);
            }
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Returns what was taken for a request that another limit denies.
    pub(super) async fn release(&self, found: &mut Found<'_>, now: Nanos) {
        let held = found.held.as_mut();
        if let Some(id) = held.and_then(|held| held.id.take()) {
            // If the store does not reply, the hold expires.
            let _ = self.service.settle(id, None, now).await;
            found.is_uncharged = true;
        }
    }

    /// Corrects the holds of reports. Hits that no hold covers are charged, or refunded, in full.
    pub(super) async fn settle_reports(&self, places: &mut [Place<'_>], now: Nanos) {
        for place in places {
            let Place::Limited(found) = place else {
                continue;
            };
            if let Err(refusal) = self.settle_report(found, now).await {
                *place = Place::Undecided(refusal.into());
            }
        }
    }

    async fn settle_report(&self, found: &mut Found<'_>, now: Nanos) -> Result<(), Refusal> {
        let Some((held, report)) = found
            .held
            .as_ref()
            .and_then(|held| Some((held, held.report?)))
        else {
            return Ok(());
        };
        let (limit, key) = (&found.limit, &found.key);
        let settled = self.service.settle_hold(limit, key, held.name, report, now);
        let settled = settled.await.map_err(Refusal::Reservation)?;
        let used = match (settled, report) {
            (Some((_, used)), _) | (None, Report::Used(used)) => Some(used),
            (None, Report::Unused(_)) => None,
        };
        if let (Some(of), Some(used)) = (held.learn, used) {
            for of in of {
                self.learnt.sketches().add(of, used);
            }
        }
        let (act, cost) = match (settled, report) {
            (Some(_), _) => (Act::Peek, 0),
            (None, Report::Used(used)) => (Act::Charge, used),
            (None, Report::Unused(unused)) => (Act::Refund, unused),
        };
        found.decision = Some(limit.decide(act, key, cost, now).await?);
        // The part that the hold did not cover is counted.
        found.act = Act::Charge;
        found.cost = match (settled, report) {
            (Some((held, used)), _) => used.saturating_sub(held),
            (None, Report::Used(used)) => used,
            (None, Report::Unused(_)) => 0,
        };
        Ok(())
    }
}

/// The units that questions took or wanted, and where the numbers are from. `None` if no question
/// takes an estimate.
pub(super) fn described(places: &[Place<'_>]) -> Option<Value> {
    let held = |place: &Place<'_>| match place {
        Place::Limited(Found {
            held: Some(held),
            cost,
            ..
        }) if !held.is_report() => json!({"units": cost, "estimate": held.estimate.to_string()}),
        _ => Value::Null,
    };
    let held: Vec<Value> = places.iter().map(held).collect();
    held.iter().any(|one| !one.is_null()).then(|| held.into())
}
