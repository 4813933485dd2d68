//! The limits that a request's descriptors match, with their decisions.

use std::sync::Arc;

use tidegate_core::{Decision, Nanos};
use tidegate_headers as headers;
use tidegate_service::decide::{
    limits::Limit,
    service::{Act, Part, Refusal, reset_after},
};

use super::{
    Current, Descriptor, Descriptors, Question, Status, Unanswered, counts::Fate, holds::Held,
    quotas::Group,
};
use crate::config::{Charge, Match, Unit};

/// The limit for a descriptor.
pub(super) struct Found<'q> {
    /// The rule's number; `None` for an override in the request.
    pub rule: Option<usize>,
    pub limit: Arc<Limit>,
    pub key: Vec<u8>,
    pub cost: u64,
    pub act: Act,
    /// Whether it counts requests that are denied, too.
    pub charge: Charge,
    /// The hold that it takes or reports, if its rule has holds.
    pub held: Option<Box<Held>>,
    /// Its group if its rule, or all rules, are in quota mode.
    pub quota: Option<Group<'q>>,
    pub requests_per_unit: u64,
    pub unit: Unit,
    /// The limit's decision.
    pub decision: Option<Decision>,
    /// Nothing was taken although it would admit: another limit denies, or one of its group.
    pub is_uncharged: bool,
}

/// The limit that a descriptor matches.
pub(super) enum Place<'q> {
    /// No rule, or one that another rule replaces.
    Nowhere,
    /// A rule without a limit.
    Unlimited(usize),
    Limited(Found<'q>),
    /// It cannot be decided. The other descriptors are decided all the same.
    Undecided(Unanswered),
}

impl Place<'_> {
    /// The number of the rule that a descriptor matches.
    pub fn rule(&self) -> Option<usize> {
        match self {
            Self::Nowhere | Self::Undecided(_) => None,
            Self::Unlimited(rule) => Some(*rule),
            Self::Limited(found) => found.rule,
        }
    }
}

/// The limits of a request's descriptors.
pub(super) fn limited<'p, 'q>(places: &'p [Place<'q>]) -> impl Iterator<Item = &'p Found<'q>> {
    places.iter().filter_map(|place| {
        if let Place::Limited(found) = place {
            Some(found)
        } else {
            None
        }
    })
}

/// The same, to be decided.
pub(super) fn limited_mut<'p, 'q>(
    places: &'p mut [Place<'q>],
) -> impl Iterator<Item = &'p mut Found<'q>> {
    places.iter_mut().filter_map(|place| {
        if let Place::Limited(found) = place {
            Some(found)
        } else {
            None
        }
    })
}

/// Why one of the descriptors cannot be decided.
pub(super) fn undecided<'p>(places: &'p [Place<'_>]) -> Option<&'p Unanswered> {
    places.iter().find_map(|place| {
        if let Place::Undecided(why) = place {
            Some(why)
        } else {
            None
        }
    })
}

impl Found<'_> {
    pub fn part(&self) -> Part<'_> {
        Part::new(Arc::clone(&self.limit), &self.key, self.cost)
    }

    /// How it is charged, or taken from.
    pub fn taking(&self) -> Act {
        if self.charge == Charge::Always {
            Act::TakeAnyway
        } else {
            Act::Take
        }
    }

    /// Charges it, or takes from it, if its limit decides in memory.
    pub fn take_in_memory(&mut self, now: Nanos) -> bool {
        let (act, cost) = (self.taking(), self.cost);
        let Some(decision) = self.limit.decide_in_memory(act, &self.key, cost, now) else {
            return false;
        };
        self.decision = Some(decision);
        (self.act, self.is_uncharged) = (Act::Take, false);
        true
    }

    /// Asks the limit without taking anything.
    pub async fn look(&mut self, now: Nanos) -> Result<(), Refusal> {
        (self.act, self.is_uncharged) = (Act::Peek, true);
        let asked = self.limit.decide(Act::Peek, &self.key, self.cost, now);
        self.decision = Some(asked.await?);
        Ok(())
    }

    /// Whether this limit denied and its rule may deny.
    pub fn denies(&self) -> bool {
        matches!(self.act, Act::Take | Act::Peek) && !self.limit.spec().shadow && self.is_denied()
    }

    pub fn is_denied(&self) -> bool {
        self.decision.is_some_and(|decision| decision.is_denied())
    }

    /// The remaining units. A limit that would have admitted a request that another denied was not
    /// charged.
    fn remaining(&self, decision: &Decision) -> u64 {
        if decision.is_denied() {
            return if self.act == Act::Take {
                0
            } else {
                decision.remaining()
            };
        }
        // A shadow limit was only asked what remains.
        let counts_cost = self.act == Act::Take && !self.limit.spec().shadow;
        let uncharged = if self.is_uncharged && counts_cost {
            self.cost
        } else {
            0
        };
        (decision.remaining() + uncharged).min(decision.limit())
    }

    pub fn status(&self, descriptors: &Descriptors, now: Nanos) -> Status {
        let name = self
            .rule
            .map(|rule| descriptors.domains.rules()[rule].name.clone());
        let limit = Current {
            name: name.unwrap_or_default(),
            requests_per_unit: self.requests_per_unit,
            unit: self.unit,
        };
        let Some(decision) = &self.decision else {
            return Status::default();
        };
        let wait = decision
            .retry_after()
            .or_else(|| reset_after(decision))
            .filter(|wait| !wait.is_zero());
        let wait = wait.unwrap_or_else(|| {
            let unit = u64::try_from(self.unit.span().as_nanos()).unwrap_or(u64::MAX);
            std::time::Duration::from_nanos(unit - now.get() % unit)
        });
        Status {
            is_over: self.denies(),
            limit: Some(limit),
            remaining: self.remaining(decision),
            reset_after: Some(headers::ceil_secs(wait)),
        }
    }

    /// Counts for dashboards. A request that another limit denied is a hit, but counts neither as
    /// within this limit nor as over it.
    pub fn count(
        &self,
        descriptors: &Descriptors,
        question: &Question<'_>,
        descriptor: &Descriptor<'_>,
        near_limit: f32,
        now: Nanos,
    ) {
        let (Some(rule), Some(decision)) = (self.rule, &self.decision) else {
            return;
        };
        if !matches!(self.act, Act::Take | Act::Charge) {
            return;
        }
        let found = Match {
            rule: &descriptors.domains.rules()[rule],
            index: rule,
        };
        let entries = descriptor.entries.iter().copied();
        let detailed = if question.domain == found.rule.domain {
            descriptors.domains.metric_path(found, entries)
        } else {
            None
        };
        let is_denied = decision.is_denied();
        descriptors.counts[rule].add(
            detailed,
            Fate {
                hits: self.cost,
                decided: if self.is_uncharged && !is_denied {
                    0
                } else {
                    self.cost
                },
                is_denied,
                is_shadow: self.limit.spec().shadow,
                is_blocked: is_denied
                    && self.limit.store().is_some()
                    && self.limit.block_of(&self.key, now).is_some(),
                limit: decision.limit(),
                near: part(decision.limit(), near_limit),
                remaining: decision.remaining(),
            },
        );
    }
}

/// A part of a limit, rounded down as envoyproxy/ratelimit does.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "it computes with the same type, and the part is from 0 to 1"
)]
fn part(limit: u64, part: f32) -> u64 {
    (limit as f32 * part).floor() as u64
}
