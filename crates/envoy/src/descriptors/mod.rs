//! Decides on a request's descriptors through the server's one decision path.
//!
//! ```text
//! request ─ Question ─► Domains::find ─► the limit and the key of each descriptor ─ Limit::decide ─► Answer
//! ```
//!
//! `in_force` has the configuration in use with its limits and counters, `overrides` the limits
//! that requests bring, `reserve` the calls of Kuadrant's service.

pub mod counts;
mod found;
mod holds;
pub mod in_force;
mod metadata;
mod metrics;
mod overrides;
mod question;
mod quotas;
#[cfg(feature = "grpc")]
mod reserve;
mod settings;
mod sketches;

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use http::HeaderValue;
use serde_json::{Map, Value};
use tidegate_core::{MAX_LIMIT, Nanos};
use tidegate_headers::{self as headers, Vendor};
use tidegate_service::decide::{
    limits::Limit,
    service::{Act, InForce, Part, Refusal, SOFT_EXCEEDED, Service},
};

pub use self::in_force::Descriptors;
use self::{
    found::{Found, Place, limited, limited_mut, undecided},
    holds::Learnt,
    overrides::Overrides,
    quotas::{Group, Verdict},
};
pub use self::{
    overrides::Override,
    question::{Answer, Current, Descriptor, Question, Status, Unanswered},
    settings::{AnswerFields, Consume, FieldNames, Modes, field_names},
};
use crate::config::{Charge, Unit};

/// Decides on requests with descriptors.
pub struct DescriptorService {
    service: Arc<Service>,
    consume: Consume,
    fields: AnswerFields,
    /// The names of the header fields for the request, if it gets any.
    request_fields: Option<FieldNames>,
    modes: Modes,
    /// The provider of language models whose header fields they also include.
    pub vendor: Option<Vendor>,
    overrides: Overrides,
    learnt: Learnt,
    /// The requests that were admitted only because all are.
    pub shadowed: AtomicU64,
}

impl DescriptorService {
    /// Decides with the limits of this service. Answers also include the header fields of `vendor`,
    /// a provider of language models.
    pub fn new(
        service: Arc<Service>,
        consume: Consume,
        fields: AnswerFields,
        request_fields: Option<FieldNames>,
        modes: Modes,
        vendor: Option<Vendor>,
    ) -> Self {
        let overrides = Overrides::new(modes.calendar_months);
        Self {
            service,
            consume,
            fields,
            request_fields,
            modes,
            vendor,
            overrides,
            learnt: Learnt::default(),
            shadowed: AtomicU64::new(0),
        }
    }

    /// The service with the limits.
    pub fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Decides on a request. It never waits if the limits are in memory.
    ///
    /// A descriptor that cannot be decided does not release the others: they are decided and
    /// charged, and if one of them denies, the request is denied.
    ///
    /// # Errors
    /// When the request is invalid, or one of its descriptors cannot be decided and no other
    /// denies: see [`Unanswered`]. The caller must not take that for an admission.
    pub async fn decide(&self, question: &Question<'_>, now: Nanos) -> Result<Answer, Unanswered> {
        question.check()?;
        let in_force = self.service.in_force();
        let mut places = self.places(&in_force, question, now);
        let descriptors = Descriptors::of(&in_force);
        drop_replaced(descriptors, &mut places);
        let id = question.id;
        if id.is_some() {
            for found in limited(&places) {
                if found.held.is_some() {
                    return Err(Unanswered::NotOnce { what: "a hold" });
                }
                if found.act == Act::Refund {
                    return Err(Unanswered::NotOnce { what: "a refund" });
                }
            }
        }
        self.refund(&mut places, now).await;
        self.settle_reports(&mut places, now).await;
        let mut failed = undecided(&places).cloned();
        let (mut held, mut takes): (Vec<_>, Vec<_>) = limited_mut(&mut places)
            .filter(|found| found.act == Act::Take)
            .partition(|found| found.held.is_some());
        for found in &mut held {
            if let Err(refusal) = self.hold(found, now).await {
                failed.get_or_insert(refusal.into());
            }
        }
        let verdict = Verdict::of(held.iter().map(|found| &**found));
        let together = match self.consume {
            Consume::AllOrNone => self.take_together(id, &verdict, &mut takes, now).await,
            Consume::Each => None,
        };
        let taken = match together {
            Some(()) => Ok(()),
            None => self.take_each(id, &mut takes, now).await,
        };
        if let Err(refusal) = taken {
            failed.get_or_insert(refusal.into());
        }
        let verdict = Verdict::of(held.iter().chain(&takes).map(|found| &**found));
        let is_over = verdict.is_over();
        if together.is_some() {
            for (at, found) in takes.iter_mut().enumerate() {
                found.is_uncharged |= is_over;
                if found.is_uncharged
                    && found.charge == Charge::Always
                    && let Err(refusal) = self.take_one(id, at, found, now).await
                {
                    failed.get_or_insert(refusal.into());
                }
            }
        }
        for found in &mut held {
            let is_left_out = verdict.leaves_out(found);
            if is_over && !self.modes.shadow || failed.is_some() || is_left_out {
                self.release(found, now).await;
            }
        }
        match failed {
            Some(error) if !is_over => Err(error),
            _ => Ok(self.answer(descriptors, question, &places, is_over, now)),
        }
    }

    /// Finds what each descriptor matches.
    fn places<'q>(
        &self,
        in_force: &InForce,
        question: &'q Question<'_>,
        now: Nanos,
    ) -> Vec<Place<'q>> {
        let place = |descriptor| self.place(in_force, question, descriptor, now);
        question
            .descriptors
            .iter()
            .map(|one| place(one).unwrap_or_else(Place::Undecided))
            .collect()
    }

    fn place<'q>(
        &self,
        in_force: &InForce,
        question: &Question<'_>,
        descriptor: &'q Descriptor<'_>,
        now: Nanos,
    ) -> Result<Place<'q>, Unanswered> {
        let descriptors = Descriptors::of(in_force);
        let of_request = Some(question.hits).filter(|hits| *hits > 0);
        // More than any limit admits has no other answer, and no cost is above it elsewhere.
        let named = descriptor
            .hits
            .or(of_request)
            .map(|hits| hits.min(MAX_LIMIT));
        let cost = named.unwrap_or(1);
        let act = if descriptor.is_refund {
            Act::Refund
        } else {
            Act::Take
        };
        if let Some(wanted) = &descriptor.limit {
            // As in envoyproxy/ratelimit: an unconfigured domain has no limits, and even overrides
            // are ignored.
            if descriptors.domains.domain(question.domain).is_none() {
                return Ok(Place::Nowhere);
            }
            let wanted = wanted.clone()?;
            return Ok(Place::Limited(Found {
                rule: None,
                limit: self
                    .overrides
                    .limit(&in_force.limits, question.domain, wanted, now)?,
                key: overrides::key(&descriptor.entries),
                cost,
                act,
                charge: self.charge(None),
                held: None,
                quota: self.modes.quota.then(|| Group::of(descriptor)),
                requests_per_unit: wanted.requests_per_unit.into(),
                unit: wanted.unit,
                decision: None,
                is_uncharged: false,
            }));
        }
        let mut key = Vec::new();
        let entries = descriptor.entries.iter().copied();
        let Some(found) = descriptors.domains.find(question.domain, entries, &mut key) else {
            return Ok(Place::Nowhere);
        };
        let (Some(limit), Some(unit)) = (descriptors.limits[found.index].as_ref(), found.rule.unit)
        else {
            return Ok(Place::Unlimited(found.index));
        };
        let hold = found.rule.hold.as_ref();
        let held = hold.map(|hold| self.held(hold, &limit.spec().name, &key, descriptor, named));
        let (held, cost) = held.map_or((None, cost), |(held, units)| (Some(Box::new(held)), units));
        let act = match &held {
            Some(held) if held.is_report() => Act::Charge,
            _ => act,
        };
        Ok(Place::Limited(Found {
            rule: Some(found.index),
            limit: Arc::clone(limit),
            key,
            cost,
            act,
            held,
            charge: found
                .rule
                .charge
                .unwrap_or_else(|| self.charge(Some(limit))),
            quota: (self.modes.quota || found.rule.quota).then(|| Group::of(descriptor)),
            requests_per_unit: found.rule.requests_per_unit,
            unit,
            decision: None,
            is_uncharged: false,
        }))
    }

    /// Which requests a limit counts whose rule does not say it. Overrides are fixed windows.
    fn charge(&self, limit: Option<&Limit>) -> Charge {
        let is_fixed =
            limit.is_none_or(|limit| limit.spec().policy.algorithm.name() == "fixed-window");
        // A request that a share denies is not charged.
        let is_shared = limit.is_some_and(|limit| limit.spec().shares.is_some());
        if self.consume == Consume::Each && is_fixed && !is_shared {
            Charge::Always
        } else {
            Charge::Admitted
        }
    }

    /// Makes the refunds. They come first, so that the request's own descriptors may take what they
    /// give back.
    async fn refund(&self, places: &mut [Place<'_>], now: Nanos) {
        for place in places {
            let Place::Limited(found) = place else {
                continue;
            };
            if found.act != Act::Refund {
                continue;
            }
            match found
                .limit
                .decide(Act::Refund, &found.key, found.cost, now)
                .await
            {
                Ok(decision) => found.decision = Some(decision),
                Err(refusal) => *place = Place::Undecided(refusal.into()),
            }
        }
    }

    /// All plain limits and one group of quotas must admit, otherwise none is charged. A group that
    /// is over is left out and the others are asked again, so everything that is charged was
    /// admitted in one step. `held` is the verdict of the holds, which were taken before. `None` if
    /// one step cannot decide on all of them, because they are on different nodes of a cluster or
    /// a table has no room for all keys. Then nothing was charged.
    async fn take_together<'q>(
        &self,
        id: Option<&[u8]>,
        held: &Verdict<'q>,
        takes: &mut [&mut Found<'q>],
        now: Nanos,
    ) -> Option<()> {
        // The verdict if all others admit.
        let mut best = held.clone();
        for found in takes.iter() {
            best.add(found);
        }
        let mut asked: Vec<usize> = Vec::with_capacity(takes.len());
        for (at, found) in takes.iter_mut().enumerate() {
            if best.is_over() || held.leaves_out(found) {
                found.look(now).await.ok()?;
            } else {
                asked.push(at);
            }
        }
        while !asked.is_empty() {
            let parts: Vec<Part<'_>> = asked.iter().map(|at| takes[*at].part()).collect();
            let decisions = match id {
                None => self.service.take_all(&parts, now).await,
                Some(id) => self.service.take_all_once(id, parts, now).await,
            }
            .ok()?;
            let mut verdict = held.clone();
            for (at, decision) in asked.iter().zip(decisions) {
                takes[*at].decision = Some(decision);
                verdict.add(takes[*at]);
            }
            let before = asked.len();
            if verdict.is_over() {
                break;
            }
            asked.retain(|at| {
                takes[*at].is_uncharged = verdict.leaves_out(takes[*at]);
                !takes[*at].is_uncharged
            });
            if asked.len() == before {
                break;
            }
        }
        Some(())
    }

    /// Charges each limit separately.
    async fn take_each(
        &self,
        id: Option<&[u8]>,
        takes: &mut [&mut Found<'_>],
        now: Nanos,
    ) -> Result<(), Refusal> {
        // Limits in memory decide at once.
        let takes_now = |found: &mut Found<'_>| id.is_none() && found.take_in_memory(now);
        let others = takes
            .iter_mut()
            .enumerate()
            .filter_map(|(at, found)| (!takes_now(found)).then_some((at, found)))
            .collect::<Vec<_>>();
        if others.is_empty() {
            return Ok(());
        }
        let asked = others.into_iter();
        join_all(asked.map(|(at, found)| self.take_one(id, at, found, now)))
            .await
            .into_iter()
            .collect()
    }

    /// Charges the limit of a descriptor, or takes from it if it admits.
    async fn take_one(
        &self,
        id: Option<&[u8]>,
        at: usize,
        found: &mut Found<'_>,
        now: Nanos,
    ) -> Result<(), Refusal> {
        let act = found.taking();
        let decision = match id {
            None => found.limit.decide(act, &found.key, found.cost, now).await?,
            Some(id) => {
                // Two descriptors may ask the same limit for the same units.
                let id = [id, b"#", at.to_string().as_bytes()].concat();
                let asked = Box::pin(self.service.take_once(&id, act, found.part(), now));
                asked.await?.decision
            }
        };
        found.decision = Some(decision);
        (found.act, found.is_uncharged) = (Act::Take, false);
        Ok(())
    }

    fn answer(
        &self,
        descriptors: &Descriptors,
        question: &Question<'_>,
        places: &[Place<'_>],
        is_over: bool,
        now: Nanos,
    ) -> Answer {
        let rules = descriptors.domains.rules();
        let mut statuses = Vec::with_capacity(places.len());
        let mut metadata: Map<String, Value> = Map::new();
        let (mut policies, mut states) = (String::new(), String::new());
        for (place, descriptor) in places.iter().zip(&question.descriptors) {
            if let Some(rule) = place.rule() {
                for (name, text) in metadata::texts(&rules[rule].metadata) {
                    metadata.entry(name.as_str()).or_insert(text);
                }
            }
            statuses.push(match place {
                Place::Nowhere | Place::Undecided(_) => Status::default(),
                Place::Unlimited(_) => Status {
                    remaining: u32::MAX.into(),
                    ..Status::default()
                },
                Place::Limited(found) => {
                    let near_limit = self.modes.near_limit;
                    found.count(descriptors, question, descriptor, near_limit, now);
                    if self.fields == AnswerFields::RateLimit
                        && let Some(decision) = &found.decision
                    {
                        let spec = found.limit.spec();
                        let per = headers::Per::Window(found.unit.span());
                        headers::write_policy(
                            &mut policies,
                            &spec.name,
                            found.requests_per_unit,
                            per,
                        );
                        headers::write_state(&mut states, &spec.name, decision);
                    }
                    found.status(descriptors, now)
                }
            });
        }
        let mut headers: Vec<(Cow<'static, str>, String)> = if policies.is_empty() {
            Vec::new()
        } else {
            vec![
                ("ratelimit-policy".into(), policies),
                ("ratelimit".into(), states),
            ]
        };
        if let AnswerFields::Named(names) = &self.fields {
            headers.extend(named_fields(names, &statuses));
        }
        if self.modes.each_unit {
            headers.extend(fields_of_units(&statuses));
        }
        let named = self.request_fields.iter();
        let request_headers = named.flat_map(|names| named_fields(names, &statuses));
        let request_headers = request_headers.collect();
        if is_over && self.modes.shadow {
            self.shadowed.fetch_add(1, Ordering::Relaxed);
        }
        let is_over = is_over && !self.modes.shadow;
        let denied = limited(places)
            .filter(|found| is_over && found.denies() && !self.modes.without_reasons)
            .filter_map(|found| Some((found, found.decision?.reason()?)));
        // A quota that is used up denies only if no other limit does and all quotas are.
        if let Some((found, reason)) = denied.min_by_key(|(found, _)| found.quota.is_some()) {
            metadata.insert(
                "denied_by".to_owned(),
                found.limit.spec().name.as_str().into(),
            );
            metadata.insert("denied_reason".to_owned(), reason.name().into());
        }
        let exceeded = limited(places)
            .filter(|found| found.limit.spec().soft && found.is_denied())
            .map(|found| found.limit.spec().name.as_str());
        let exceeded = exceeded.collect::<Vec<_>>().join(", ");
        if !exceeded.is_empty() {
            metadata.insert("soft_exceeded".to_owned(), exceeded.as_str().into());
            headers.push((SOFT_EXCEEDED.into(), exceeded));
        }
        if let Some(vendor) = self.vendor {
            let decided = limited(places).filter_map(|found| {
                Some((found.limit.spec().name.as_str(), found.decision.as_ref()?))
            });
            let text = |value: HeaderValue| value.to_str().unwrap_or_default().to_owned();
            let mut fields = vendor.fields(decided, now);
            if is_over {
                let denied = limited(places).filter(|found| found.denies());
                let waits = denied.map(|found| found.decision.as_ref()?.retry_after());
                // No wait helps if none helps at one of them.
                let wait = waits.collect::<Option<Vec<_>>>();
                let wait = wait.and_then(|waits| waits.into_iter().max());
                fields.extend(vendor.retry_fields(wait));
            }
            let fields = fields.into_iter();
            headers
                .extend(fields.map(|(name, value)| (name.as_str().to_owned().into(), text(value))));
        }
        if self.modes.metadata {
            metadata = self.description(rules, question, places, &statuses);
        }
        if let Some(exact) = metadata::exact_limits(&statuses) {
            metadata.insert("exact_limits".to_owned(), exact);
        }
        if let Some(held) = holds::described(places) {
            metadata.insert("holds".to_owned(), held);
        }
        Answer {
            is_over,
            statuses,
            metadata,
            headers,
            request_headers,
        }
    }
}

/// The descriptor that tells a client most: the last one that denies, or else the first of those
/// with the least remaining.
fn strictest<'s>(
    statuses: impl Iterator<Item = &'s Status> + Clone,
) -> Option<(&'s Current, &'s Status)> {
    let limited = statuses.filter_map(|status| Some((status.limit.as_ref()?, status)));
    let over = limited.clone().filter(|(_, status)| status.is_over).last();
    over.or_else(|| limited.min_by_key(|(_, status)| status.remaining))
}

/// The limit, what remains and the seconds until the end of the unit, of the strictest descriptor.
fn named_fields(
    names: &FieldNames,
    statuses: &[Status],
) -> impl Iterator<Item = (Cow<'static, str>, String)> {
    let numbers = strictest(statuses.iter()).map(|(limit, status)| {
        let reset = status.reset_after.unwrap_or_default();
        [limit.requests_per_unit, status.remaining, reset]
    });
    let names = names
        .each_ref()
        .map(|name| Cow::Owned(name.as_str().to_owned()));
    let fields = numbers.map(|numbers| {
        names
            .into_iter()
            .zip(numbers.map(|number| number.to_string()))
    });
    fields.into_iter().flatten()
}

/// `ratelimit-limit-minutes` and `ratelimit-remaining-minutes`, and the same for each other unit
/// that a limit has: those of its strictest descriptor.
fn fields_of_units(statuses: &[Status]) -> impl Iterator<Item = (Cow<'static, str>, String)> {
    Unit::ALL.into_iter().flat_map(|unit| {
        let has_unit = move |status: &&Status| {
            status
                .limit
                .as_ref()
                .is_some_and(|limit| limit.unit == unit)
        };
        let strictest = strictest(statuses.iter().filter(has_unit));
        let fields = strictest.map(|(limit, status)| {
            let named = |what: &str| format!("ratelimit-{what}-{}s", unit.name()).into();
            [
                (named("limit"), limit.requests_per_unit.to_string()),
                (named("remaining"), status.remaining.to_string()),
            ]
        });
        fields.into_iter().flatten()
    })
}

/// Removes the rules that others replace. Two rules that replace each other are both removed. A
/// rule without a limit stays.
fn drop_replaced(descriptors: &Descriptors, places: &mut [Place<'_>]) {
    let rules = descriptors.domains.rules();
    let replaced: Vec<&str> = places
        .iter()
        .filter_map(Place::rule)
        .flat_map(|rule| &rules[rule].replaces)
        .map(String::as_str)
        .collect();
    if replaced.is_empty() {
        return;
    }
    for place in places {
        if let Place::Limited(Found {
            rule: Some(rule), ..
        }) = place
            && replaced.contains(&rules[*rule].name.as_str())
        {
            *place = Place::Nowhere;
        }
    }
}
