//! Asking, wherever the answer is: in memory at once, or in the store.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tidegate_core::{Decision, Nanos};
use tidegate_redis::{Part, StoreError};

use super::Shares;
use crate::{
    live::Limit,
    refusal::Refusal,
    service::{Answer, Ask, JointAnswer, Service, resolve, resolve_all},
    throttle::{ThrottleError, ThrottleQuota},
};

/// What is to be done with a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Take it, if that is admitted.
    Take,
    /// See whether it would be admitted.
    Look,
    /// Give up to so much back of what was taken.
    GiveBack,
}

/// A question for the store, which nothing in memory can answer.
#[derive(Debug)]
pub(crate) enum Question {
    /// For one of a limit's keys.
    Limit { limit: Arc<Limit>, key: Box<[u8]>, cost: u32, act: Act },
    /// For a bucket that comes with the request.
    Throttle { key: Box<[u8]>, quota: ThrottleQuota, quantity: i64 },
}

/// The store's answer to it.
#[derive(Debug)]
pub(crate) enum Reply {
    Limit(Result<Decision, Refusal>),
    Throttle(Result<Decision, ThrottleError>),
}

impl Service {
    /// Asks one limit, wherever it is decided.
    ///
    /// # Errors
    /// When the question makes no sense, or what was to be given back cannot be: see [`Refusal`].
    pub async fn decide(&self, ask: Ask<'_>, act: Act) -> Result<Answer, Refusal> {
        let now = self.now();
        if self.shared().is_none() {
            return match act {
                Act::Take => self.acquire(ask, now),
                Act::Look => self.peek(ask, now),
                Act::GiveBack => self.refund(ask, now),
            };
        }
        let (limit, key) = {
            let rules = self.rules();
            let (limit, key) = resolve(&rules, ask.limit, ask.key)?;
            (Arc::clone(limit), key)
        };
        let decision = match act {
            Act::GiveBack => limit.give_back(key, ask.cost, now).await?,
            _ => limit.decide(key, ask.cost, act == Act::Take, now).await,
        };
        Ok(Answer { limit, key: key.to_vec(), decision })
    }

    /// Asks several limits together, wherever they are decided: as [`acquire_all`](Self::acquire_all) or
    /// [`peek_all`](Self::peek_all).
    ///
    /// # Errors
    /// As those; and [`Refusal::Scattered`] where a cluster keeps the keys on different nodes.
    ///
    /// # Panics
    /// When `asks` is empty.
    pub async fn decide_all(&self, asks: &[Ask<'_>], takes: bool) -> Result<JointAnswer, (usize, Refusal)> {
        let now = self.now();
        let Some(shared) = self.shared() else {
            return if takes { self.acquire_all(asks, now) } else { self.peek_all(asks, now) };
        };
        let limits: Vec<(Arc<Limit>, &[u8])> = {
            let rules = self.rules();
            let limits = resolve_all(&rules, asks)?;
            limits.into_iter().map(|(limit, key)| (Arc::clone(limit), key)).collect()
        };
        let asked: Vec<Asked<'_>> =
            limits.iter().zip(asks).map(|((limit, key), ask)| Asked { limit, key, cost: ask.cost }).collect();
        let enforced = || asked.iter().filter(|asked| !asked.limit.spec().shadow);
        let blocked = enforced().any(|asked| asked.limit.blocked(asked.key, now).is_some());
        let mut admitted = takes && !blocked;
        let mut decisions = Vec::new();
        let parts: Option<Vec<Part<'_>>> = enforced().map(Asked::part).collect();
        if let Some(parts) = parts.filter(|parts| admitted && !parts.is_empty()) {
            let told = shared.store().acquire_all(&parts).await.map_err(|_| (0, Refusal::Scattered))?;
            decisions.extend(told.into_iter().map(|told| told.decision));
            admitted = decisions.iter().all(Decision::is_allowed);
        }
        let mut decisions = decisions.into_iter();
        // What is asked after that must be answered by the same time.
        let spent = self.now().saturating_since(now).into();
        let answers = asked.iter().map(|asked| {
            let told = if asked.limit.spec().shadow { None } else { decisions.next() };
            asked.answer(told, takes, admitted, (now, spent))
        });
        Ok(JointAnswer::new(join_all(answers).await))
    }
}

/// One of the limits that are asked together.
#[derive(Clone, Copy)]
struct Asked<'a> {
    limit: &'a Arc<Limit>,
    key: &'a [u8],
    cost: u32,
}

impl<'a> Asked<'a> {
    fn part(&self) -> Option<Part<'a>> {
        let limit = self.limit.shares()?.of(self.key);
        Some(Part { limit, key: self.key, cost: self.cost })
    }

    /// What this limit says, given what was `told` of it in the one step, and whether that admitted; at a time, after so much
    /// was spent on that step.
    async fn answer(
        self,
        told: Option<Decision>,
        takes: bool,
        admitted: bool,
        (now, spent): (Nanos, Duration),
    ) -> Answer {
        let Self { limit, key, cost } = self;
        let decision = match told {
            Some(decision) => {
                // A limit that would have admitted what another denied has neither admitted nor denied.
                if cost > 0 && (admitted || decision.is_denied()) {
                    limit.count(&decision);
                }
                decision
            }
            // A shadow limit beside them consumes what they admit.
            None if takes && admitted => limit.decide_after(spent, key, cost, true, now).await,
            None => {
                let decision = limit.decide_after(spent, key, cost, false, now).await;
                // It was blocked, and so the store was not asked.
                if takes && cost > 0 && decision.is_denied() && !limit.spec().shadow {
                    limit.count(&decision);
                }
                decision
            }
        };
        Answer { limit: Arc::clone(limit), key: key.to_vec(), decision }
    }
}

impl Limit {
    /// Takes `cost` if that is admitted and counts the decision (a cost of 0 is a look, and not counted), or only looks: in
    /// memory for what is blocked and where there is no store.
    pub async fn decide(&self, key: &[u8], cost: u32, takes: bool, now: Nanos) -> Decision {
        self.decide_after(Duration::ZERO, key, cost, takes, now).await
    }

    /// The same, after so much of the deadline is spent.
    async fn decide_after(
        &self,
        spent: Duration,
        key: &[u8],
        cost: u32,
        takes: bool,
        now: Nanos,
    ) -> Decision {
        let decision = match (self.blocked(key, now), self.shares()) {
            (Some(blocked), _) => blocked,
            (None, Some(shares)) => return self.decide_in(shares, key, cost, takes, spent).await,
            (None, None) if takes => return self.acquire(key, cost, now),
            (None, None) => return self.peek(key, cost, now),
        };
        if takes && cost > 0 {
            self.count(&decision);
        }
        decision
    }

    /// Gives back up to `cost`, wherever that is kept; where the key stands then.
    async fn give_back(&self, key: &[u8], cost: u32, now: Nanos) -> Result<Decision, Refusal> {
        let Some(shares) = self.shares() else {
            self.refund(key, cost, now);
            return Ok(self.peek(key, 0, now));
        };
        let limit = || self.spec().name.clone();
        match shares.of(key).refund(key, cost).await {
            Ok(told) => Ok(self.blocked(key, now).unwrap_or(told.decision)),
            Err(StoreError::NotExact) => Err(Refusal::NotExact { limit: limit() }),
            Err(error) => Err(Refusal::NoAnswer { limit: limit(), why: error.to_string() }),
        }
    }

    /// Takes each of these costs, in this order, if that is admitted.
    async fn take_in_turn(&self, key: &[u8], costs: &[u32], now: Nanos) -> Vec<Decision> {
        let Some(shares) = self.shares() else {
            return costs.iter().map(|&cost| self.acquire(key, cost, now)).collect();
        };
        let told = shares.of(key).acquire_in_turn(key, costs).await;
        for (told, _) in told.iter().zip(costs).filter(|(_, cost)| **cost > 0) {
            self.count(&told.decision);
        }
        told.into_iter().map(|told| told.decision).collect()
    }

    async fn decide_in(
        &self,
        shares: &Shares,
        key: &[u8],
        cost: u32,
        takes: bool,
        spent: Duration,
    ) -> Decision {
        let shared = shares.of(key);
        if !takes {
            return shared.peek_after(key, cost, spent).await.decision;
        }
        let decision = shared.acquire_after(key, cost, spent).await.decision;
        if cost > 0 {
            self.count(&decision);
        }
        decision
    }
}

impl Question {
    /// Whether two questions are about one state: then their order matters.
    pub fn is_about(&self) -> (usize, &[u8]) {
        match self {
            Self::Limit { limit, key, .. } => (Arc::as_ptr(limit) as usize, key),
            Self::Throttle { key, .. } => (0, key),
        }
    }

    /// Asks questions about one state, in this order. Those that take, with no others between them, share a round trip.
    pub async fn ask_in_turn(questions: &[&Self], service: &Service) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(questions.len());
        for run in questions.chunk_by(|one, other| one.takes().is_some() && other.takes().is_some()) {
            match run {
                [Self::Limit { limit, key, .. }, _, ..] => {
                    let costs: Vec<u32> = run.iter().filter_map(|question| question.takes()).collect();
                    let told = limit.take_in_turn(key, &costs, service.now()).await;
                    replies.extend(told.into_iter().map(|decision| Reply::Limit(Ok(decision))));
                }
                _ => {
                    for question in run {
                        replies.push(question.ask(service).await);
                    }
                }
            }
        }
        replies
    }

    /// What it takes of a limit.
    fn takes(&self) -> Option<u32> {
        match self {
            Self::Limit { cost, act: Act::Take, .. } => Some(*cost),
            _ => None,
        }
    }

    /// Asks it.
    async fn ask(&self, service: &Service) -> Reply {
        match self {
            Self::Limit { limit, key, cost, act: Act::GiveBack } => {
                Reply::Limit(limit.give_back(key, *cost, service.now()).await)
            }
            Self::Limit { limit, key, cost, act } => {
                let takes = *act == Act::Take;
                Reply::Limit(Ok(match limit.shares() {
                    Some(shares) => limit.decide_in(shares, key, *cost, takes, Duration::ZERO).await,
                    None => limit.decide(key, *cost, takes, service.now()).await,
                }))
            }
            Self::Throttle { key, quota, quantity } => {
                let (throttle, now) = (service.throttle(), service.now());
                Reply::Throttle(match service.shared() {
                    Some(shared) => shared.throttle(throttle, key, *quota, *quantity, now).await,
                    None => throttle.acquire(key, *quota, *quantity, now),
                })
            }
        }
    }
}
