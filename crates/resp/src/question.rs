//! Questions for the store or for a line, which a connection gathers for the async runtime.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Decision, Nanos};
use tidegate_listen::access::{Rights, Role};
use tidegate_service::decide::{
    limits::{Limit, Operation, Operator},
    reservations::{Id, ReservationError},
    service::{Act, Answer, Ask, Part, Refusal, Service, WaitFor, refuse_unknown},
    throttle::{ThrottleError, ThrottleQuota},
};

use crate::Protocol;

/// A question that is not answered at once: the store must answer, or a line.
#[derive(Debug)]
pub enum Question {
    /// About one of a limit's keys; a refund names its client.
    Limit {
        limit: Arc<Limit>,
        key: Box<[u8]>,
        cost: u64,
        act: Act,
        by: Option<Box<str>>,
        with_reason: bool,
        /// The id of a request that is safe to repeat.
        id: Option<Box<[u8]>>,
    },
    /// Waits in line for a key of a limit in memory.
    Wait {
        limit: Arc<Limit>,
        key: Box<[u8]>,
        cost: u64,
        with_reason: bool,
        wait: WaitFor,
    },
    /// About as much of a cost as is available for one of a limit's keys.
    UpTo {
        limit: Arc<Limit>,
        key: Box<[u8]>,
        cost: u64,
        form: UpToReply,
    },
    /// A change that an operator makes about one of a limit's keys.
    Operate {
        limit: Arc<Limit>,
        key: Box<[u8]>,
        operation: Operation,
        by: Box<str>,
    },
    /// About a bucket that the request describes.
    Throttle {
        key: Box<[u8]>,
        quota: ThrottleQuota,
        quantity: i64,
        form: BucketReply,
        protocol: Protocol,
    },
    /// About a reservation.
    Reserve(Reserving),
}

/// The form of the answer about what was taken of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpToReply {
    /// The integers of a decision, what was taken, and perhaps the reason of a denial.
    Acquire { with_reason: bool },
    /// The count and what it rose by, as of `INCREX`: the whole cost or nothing, unless it
    /// saturates.
    Increx { saturate: bool },
}

/// The form of the answer about a bucket that the request describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BucketReply {
    /// Five integers, as redis-cell's.
    Cell,
    /// Three integers and two doubles, as of the command that is proposed to Redis.
    Gcra,
    /// Five integers, as throttlecrab's server has them.
    Throttlecrab,
}

/// The store's answer.
#[derive(Debug)]
pub enum Reply {
    Limit(Result<Decision, Refusal>),
    UpTo(Result<(u64, Decision), Refusal>),
    Operate(Result<bool, Refusal>),
    Throttle(Result<Decision, ThrottleError>),
    Reserve(Box<Result<Done, Refusal>>),
}

impl Question {
    /// Identifies the state that a question is about. Questions about the same state must stay in
    /// order.
    pub fn is_about(&self) -> (usize, &[u8]) {
        match self {
            Self::Limit { limit, key, .. }
            | Self::Wait { limit, key, .. }
            | Self::UpTo { limit, key, .. }
            | Self::Operate { limit, key, .. } => (Arc::as_ptr(limit) as usize, key),
            Self::Throttle { key, .. } => (0, key),
            Self::Reserve(reserving) => reserving.is_about(),
        }
    }

    /// The limit that it takes from, if questions about any of its keys share calls.
    pub fn shares_calls(&self) -> Option<&Arc<Limit>> {
        match self {
            Self::Limit {
                limit,
                act: Act::Take,
                id: None,
                ..
            } => limit
                .store()
                .is_some_and(|store| store.shares_calls)
                .then_some(limit),
            _ => None,
        }
    }

    /// Whether another question is asked in turn with this one: it is about the same state, or both
    /// can share a call.
    pub fn goes_with(&self, other: &Self) -> bool {
        let shared = |one: &Arc<Limit>| {
            other
                .shares_calls()
                .is_some_and(|other| Arc::ptr_eq(one, other))
        };
        self.is_about() == other.is_about() || self.shares_calls().is_some_and(shared)
    }

    /// Asks questions that were read at a time and [go together](Self::goes_with), in this order.
    /// Consecutive ones that take units share a round trip.
    pub async fn ask_in_turn(questions: &[&Self], read: Nanos, service: &Service) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(questions.len());
        for run in questions.chunk_by(|one, other| one.takes().is_some() && other.takes().is_some())
        {
            match run {
                [Self::Limit { limit, .. }, _, ..] => {
                    let takes: Vec<_> =
                        run.iter().filter_map(|question| question.takes()).collect();
                    let decisions = limit
                        .take_many(spent_since(read, service), &takes, service.now())
                        .await;
                    replies.extend(
                        decisions
                            .into_iter()
                            .map(|decision| Reply::Limit(Ok(decision))),
                    );
                }
                _ => {
                    for question in run {
                        replies.push(question.ask(read, service).await);
                    }
                }
            }
        }
        replies
    }

    /// The key and the cost that it takes from a limit.
    fn takes(&self) -> Option<(&[u8], u64)> {
        match self {
            Self::Limit {
                key,
                cost,
                act: Act::Take,
                id: None,
                ..
            } => Some((key, *cost)),
            _ => None,
        }
    }

    /// Asks the question, which was read at a time. Its deadline counts from then.
    pub async fn ask(&self, read: Nanos, service: &Service) -> Reply {
        match self {
            Self::Limit {
                limit,
                key,
                cost,
                id: Some(id),
                ..
            } => {
                let part = Part::new(Arc::clone(limit), key, *cost);
                let asked = Box::pin(service.take_once(id, Act::Take, part, service.now()));
                Reply::Limit(asked.await.map(|answer| answer.decision))
            }
            Self::Limit {
                limit,
                key,
                cost,
                act,
                by,
                ..
            } => {
                let spent = spent_since(read, service);
                let decided = limit
                    .decide_after(spent, *act, key, *cost, service.now())
                    .await;
                if let (Ok(_), Some(client)) = (&decided, by) {
                    service.record_refund(client, limit, key, *cost);
                }
                Reply::Limit(decided)
            }
            Self::Wait {
                limit,
                key,
                cost,
                wait,
                ..
            } => {
                let part = Part::new(Arc::clone(limit), key, *cost);
                let waited = Box::pin(service.take_waiting(part, *wait)).await;
                Reply::Limit(waited.map(|answer| answer.decision))
            }
            Self::UpTo {
                limit,
                key,
                cost,
                form: UpToReply::Increx { saturate: false },
            } => {
                let spent = spent_since(read, service);
                let decided = limit
                    .decide_after(spent, Act::Take, key, *cost, service.now())
                    .await;
                Reply::UpTo(decided.map(|decision| (taken_of(limit, &decision, *cost), decision)))
            }
            Self::UpTo {
                limit, key, cost, ..
            } => {
                let spent = spent_since(read, service);
                let asked = limit.take_up_to(spent, key, *cost, service.now());
                // Boxed, or the future of every question would have room for it.
                Reply::UpTo(Box::pin(asked).await)
            }
            Self::Operate {
                limit,
                key,
                operation,
                by,
            } => {
                let by = Operator {
                    client: by,
                    note: None,
                };
                let asked =
                    service.operate(limit.spec().name.as_bytes(), Some(key), operation, &by);
                Reply::Operate(Box::pin(asked).await)
            }
            Self::Throttle {
                key,
                quota,
                quantity,
                ..
            } => {
                let asked = service.throttle_in_store(key, *quota, *quantity, service.now());
                // Boxed, or the future of every question would have room for it.
                Reply::Throttle(Box::pin(asked).await)
            }
            Self::Reserve(reserving) => {
                let asked = reserving.ask(service, service.now());
                Reply::Reserve(Box::new(Box::pin(asked).await))
            }
        }
    }
}

/// How much of a cost was taken by a decision on all of it.
pub(super) fn taken_of(limit: &Limit, decision: &Decision, cost: u64) -> u64 {
    if decision.is_allowed() || limit.spec().shadow {
        cost
    } else {
        0
    }
}

/// How much of a question's deadline has passed.
fn spent_since(read: Nanos, service: &Service) -> Duration {
    service.now().saturating_since(read).into()
}

/// A command about several limits or about a reservation, with the rights of its client.
#[derive(Debug)]
pub struct Reserving {
    pub(super) act: ReservationAct,
    pub(super) rights: Option<Arc<Rights>>,
    pub(super) protocol: Protocol,
}

/// A limit, a key and a cost.
pub(super) type Asked = (Box<[u8]>, Box<[u8]>, u64);

#[derive(Debug)]
pub(super) enum ReservationAct {
    /// No reservation: the first limit that admits takes its cost.
    Any(Vec<Asked>),
    Reserve {
        ttl: Nanos,
        asks: Vec<Asked>,
        /// The request's own id, if it is safe to repeat.
        request: Option<Box<[u8]>>,
        /// How it waits in line.
        wait: Option<WaitFor>,
    },
    Extend(Id, Vec<u64>),
    /// Without costs the reservation is cancelled.
    Settle(Id, Option<Vec<u64>>),
}

/// The answer to it.
#[derive(Debug)]
pub enum Done {
    /// The answer of the limit that took its cost, or of the one whose denial ends first.
    First(Answer),
    /// The answer of the limit that bound, and the id unless the limits denied.
    Reserved(Answer, Option<Id>),
    Extended(Answer),
    /// Whether it was the first settlement.
    Settled(bool),
    /// The client lacks the right to do this.
    NotPermitted(&'static str),
}

impl Reserving {
    /// Whether it waits in line.
    pub fn waits(&self) -> bool {
        matches!(self.act, ReservationAct::Reserve { wait: Some(_), .. })
    }

    /// Questions about one reservation stay in order, and new reservations of one key.
    pub fn is_about(&self) -> (usize, &[u8]) {
        match &self.act {
            ReservationAct::Reserve { asks, .. } | ReservationAct::Any(asks) => {
                (1, asks.first().map_or(&[], |ask| &ask.1))
            }
            // Commands about reservations whose low bits are equal wait for each other, too.
            ReservationAct::Extend(Id(id), _) | ReservationAct::Settle(Id(id), _) => {
                (2 + (*id as usize >> 2), &[])
            }
        }
    }

    /// Carries it out.
    pub async fn ask(&self, service: &Service, now: Nanos) -> Result<Done, Refusal> {
        let refuse = Refusal::Reservation;
        let id = match &self.act {
            ReservationAct::Any(asks) => {
                return acquire_any(service, self.rights.as_deref(), &borrowed(asks), now).await;
            }
            ReservationAct::Reserve {
                ttl,
                asks,
                request,
                wait,
            } => {
                let asks = borrowed(asks);
                let rights = self.rights.as_deref();
                if let Some(wait) = wait {
                    if let Some(refused) = refuse_to_reserve(service, rights, &asks)? {
                        return Ok(refused);
                    }
                    let (decided, id) = service
                        .reserve_waiting(&asks, *ttl, *wait)
                        .await
                        .map_err(|(_, refusal)| refusal)?;
                    return Ok(Done::Reserved(decided.into_bound(), id));
                }
                return reserve(service, rights, request.as_deref(), &asks, *ttl, now).await;
            }
            ReservationAct::Extend(id, _) | ReservationAct::Settle(id, _) => *id,
        };
        if !self
            .rights
            .as_deref()
            .is_some_and(|rights| rights.may(Role::Decide) && rights.concern_all())
        {
            let parts = service.reserved(id).await.map_err(refuse)?;
            if !parts
                .iter()
                .all(|part| may_use(self.rights.as_deref(), part.limit.as_bytes()))
            {
                return Ok(Done::NotPermitted("use this reservation"));
            }
        }
        match &self.act {
            ReservationAct::Extend(id, costs) => service
                .extend(*id, costs, now)
                .await
                .map(|joint| Done::Extended(joint.into_bound())),
            ReservationAct::Settle(id, costs) => service
                .settle(*id, costs.as_deref(), now)
                .await
                .map(Done::Settled)
                .map_err(refuse),
            ReservationAct::Reserve { .. } | ReservationAct::Any(_) => {
                Err(refuse(ReservationError::Ended))
            }
        }
    }
}

fn borrowed(asks: &[Asked]) -> Vec<Ask<'_>> {
    let all = asks.iter().map(|(limit, key, cost)| Ask {
        limit,
        key: Some(key),
        cost: *cost,
    });
    all.collect()
}

/// Takes the cost of the first limit that admits, for a client with these rights.
pub(super) async fn acquire_any(
    service: &Service,
    rights: Option<&Rights>,
    asks: &[Ask<'_>],
    now: Nanos,
) -> Result<Done, Refusal> {
    if let Some(refused) = refuse_some(service, rights, asks, "ask these limits")? {
        return Ok(refused);
    }
    let joint = service.acquire_any(asks, now).await;
    Ok(Done::First(
        joint.map_err(|(_, refusal)| refusal)?.into_bound(),
    ))
}

/// Takes an estimate from each limit for a client with these rights.
pub(super) async fn reserve(
    service: &Service,
    rights: Option<&Rights>,
    request: Option<&[u8]>,
    asks: &[Ask<'_>],
    ttl: Nanos,
    now: Nanos,
) -> Result<Done, Refusal> {
    if let Some(refused) = refuse_to_reserve(service, rights, asks)? {
        return Ok(refused);
    }
    let (decided, id) = service
        .reserve_decided(request, asks, ttl, now)
        .await
        .map_err(|(_, refusal)| refusal)?;
    Ok(Done::Reserved(decided.into_bound(), id))
}

fn refuse_to_reserve(
    service: &Service,
    rights: Option<&Rights>,
    asks: &[Ask<'_>],
) -> Result<Option<Done>, Refusal> {
    refuse_some(service, rights, asks, "reserve units of these limits")
}

/// Refuses limits that the client may not use, or that do not exist.
fn refuse_some(
    service: &Service,
    rights: Option<&Rights>,
    asks: &[Ask<'_>],
    what: &'static str,
) -> Result<Option<Done>, Refusal> {
    if !asks.iter().all(|ask| may_use(rights, ask.limit)) {
        return Ok(Some(Done::NotPermitted(what)));
    }
    if let Some(rights) = rights {
        let limits = service.limits();
        asks.iter()
            .try_for_each(|ask| refuse_unknown(&limits, ask.limit, rights))?;
    }
    Ok(None)
}

fn may_use(rights: Option<&Rights>, limit: &[u8]) -> bool {
    rights.is_some_and(|rights| rights.may(Role::Decide) && rights.concern(limit))
}
