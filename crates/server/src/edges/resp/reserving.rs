//! The commands for estimates that are corrected after the work.

use std::sync::Arc;

use futures_util::FutureExt;
use tidegate_core::Nanos;

use super::{
    Protocol,
    limiting::{number, refuse_number, write_numbers},
    question::Question,
    reply::Replies,
    session::{Context, Flow},
};
use crate::{
    decide::{
        reservations::{Id, MOST_PARTS, ReservationError},
        service::{Ask, JointAnswer, Refusal, Service, refuse_unknown},
    },
    listen::access::{Rights, Role},
};

/// The maximum number of arguments of `RESERVE`, and of the commands with an id and costs.
pub(super) const MOST_ARGS: usize = 1 + 3 * MOST_PARTS;
pub(super) const MOST_COSTS: usize = 1 + MOST_PARTS;

/// A day, in milliseconds.
const LONGEST_MS: u64 = 86_400_000;

/// A command about a reservation, with the rights of its client.
#[derive(Debug)]
pub(crate) struct Reserving {
    act: Act,
    rights: Option<Arc<Rights>>,
    protocol: Protocol,
}

/// A limit, a key and a cost.
type Asked = (Box<[u8]>, Box<[u8]>, u32);

#[derive(Debug)]
enum Act {
    /// For a time.
    Reserve(Nanos, Vec<Asked>),
    Extend(Id, Vec<u32>),
    /// Without costs the reservation is cancelled.
    Settle(Id, Option<Vec<u32>>),
}

/// The answer to it.
#[derive(Debug)]
pub(crate) enum Done {
    /// The decision, and the id unless the limits denied.
    Reserved(JointAnswer, Option<Id>),
    Extended(JointAnswer),
    /// Whether it was the first settlement.
    Settled(bool),
    Refused(Refusal),
    /// The client lacks the right to do this.
    NotPermitted(&'static str),
}

impl Reserving {
    /// Questions about one reservation stay in order, and new reservations of one key.
    pub fn is_about(&self) -> (usize, &[u8]) {
        match &self.act {
            Act::Reserve(_, asks) => (1, asks.first().map_or(&[], |ask| &ask.1)),
            // Commands about reservations whose low bits are equal wait for each other, too.
            Act::Extend(Id(id), _) | Act::Settle(Id(id), _) => (2 + (*id as usize >> 2), &[]),
        }
    }

    /// Carries it out.
    pub async fn ask(&self, service: &Service, now: Nanos) -> Done {
        self.try_ask(service, now).await.unwrap_or_else(Done::Refused)
    }

    async fn try_ask(&self, service: &Service, now: Nanos) -> Result<Done, Refusal> {
        let refuse = Refusal::Reservation;
        let id = match &self.act {
            Act::Reserve(ttl, asks) => {
                if !asks.iter().all(|ask| self.may_use(&ask.0)) {
                    return Ok(Done::NotPermitted("reserve units of these limits"));
                }
                let asks: Vec<_> = asks
                    .iter()
                    .map(|(limit, key, cost)| Ask { limit, key: Some(key), cost: *cost })
                    .collect();
                if let Some(rights) = &self.rights {
                    let limits = service.limits();
                    asks.iter().try_for_each(|ask| refuse_unknown(&limits, ask.limit, rights))?;
                }
                let reserved = service.reserve(&asks, *ttl, now).await;
                let (joint, id) = reserved.map_err(|(_, refusal)| refusal)?;
                return Ok(Done::Reserved(joint, id));
            }
            Act::Extend(id, _) | Act::Settle(id, _) => *id,
        };
        let parts = service.reserved(id).await.map_err(refuse)?;
        if !parts.iter().all(|part| self.may_use(part.limit.as_bytes())) {
            return Ok(Done::NotPermitted("use this reservation"));
        }
        match &self.act {
            Act::Extend(id, costs) => service.extend(*id, costs, now).await.map(Done::Extended),
            Act::Settle(id, costs) => {
                service.settle(*id, costs.as_deref(), now).await.map(Done::Settled).map_err(refuse)
            }
            Act::Reserve(..) => Err(refuse(ReservationError::Ended)),
        }
    }

    fn may_use(&self, limit: &[u8]) -> bool {
        self.rights.as_ref().is_some_and(|rights| rights.may(Role::Decide) && rights.concern(limit))
    }

    /// Writes the reply.
    pub fn write(&self, replies: &mut Replies<'_>, done: &Done) {
        match done {
            Done::Reserved(joint, id) => {
                replies.array(6);
                write_bound(replies, joint);
                match id {
                    Some(id) => replies.bulk(id.to_string().as_bytes()),
                    None => replies.null(),
                }
            }
            Done::Extended(joint) => {
                replies.array(5);
                write_bound(replies, joint);
            }
            Done::Settled(first) => replies.integer(i64::from(*first)),
            Done::Refused(refusal) => replies.error(&format!("ERR {refusal}")),
            Done::NotPermitted(what) => {
                let name = self.rights.as_ref().map_or("default", |rights| &*rights.name);
                replies.error(&format!("NOPERM User {name} has no permissions to {what}"));
            }
        }
    }

    pub fn protocol(&self) -> Protocol {
        self.protocol
    }
}

/// `milliseconds limit key cost [limit key cost ...]` → the five integers of the limit that bound, and the id, or null for a denial.
pub(super) fn reserve(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let (ttl, rest) = (args[0], &args[1..]);
    let ms = number(ttl).and_then(|ms| u64::try_from(ms).ok());
    let Some(ms) = ms.filter(|ms| (1..=LONGEST_MS).contains(ms)) else {
        return refuse_number(context, "milliseconds", ttl, "a whole number from 1 to 86400000");
    };
    let mut asks = Vec::with_capacity(rest.len() / 3);
    for part in rest.chunks(3) {
        let &[limit, key, cost] = part else {
            context.wrong_number("reserve");
            return Flow::Continue;
        };
        let Some(cost) = read_cost(context, cost) else { return Flow::Continue };
        asks.push((limit.into(), key.into(), cost));
    }
    carry_out(context, Act::Reserve(Nanos::from_millis(ms), asks))
}

/// `id cost [cost ...]` → five integers. If a limit denies, nothing has changed.
pub(super) fn extend(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let Some((id, costs)) = id_and_costs(context, args) else { return Flow::Continue };
    carry_out(context, Act::Extend(id, costs))
}

/// `id cost [cost ...]` → 1, or 0 if it was settled or cancelled before.
pub(super) fn settle(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let Some((id, costs)) = id_and_costs(context, args) else { return Flow::Continue };
    carry_out(context, Act::Settle(id, Some(costs)))
}

/// `id` → 1, or 0 if it was settled or cancelled before.
pub(super) fn cancel(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let Some((id, _)) = id_and_costs(context, args) else { return Flow::Continue };
    carry_out(context, Act::Settle(id, None))
}

fn carry_out(context: &mut Context<'_>, act: Act) -> Flow {
    let rights = context.session.shared_rights();
    let reserving = Reserving { act, rights, protocol: context.session.protocol };
    let service = &context.shared.service;
    if service.store().is_some() {
        context.ask(Question::Reserve(reserving));
        return Flow::Continue;
    }
    let done = Box::pin(reserving.ask(service, context.now)).now_or_never();
    // Memory never waits.
    let done = done.unwrap_or(Done::Refused(Refusal::Reservation(ReservationError::Ended)));
    reserving.write(&mut context.replies(), &done);
    Flow::Continue
}

fn write_bound(replies: &mut Replies<'_>, joint: &JointAnswer) {
    let bound = &joint.answers[joint.bound];
    write_numbers(replies, &bound.decision, bound.limit.spec().shadow);
}

/// The reservation and its costs; `None` if an error was sent.
fn id_and_costs(context: &mut Context<'_>, args: &[&[u8]]) -> Option<(Id, Vec<u32>)> {
    let id = str::from_utf8(args[0]).map_err(|_| ReservationError::NotAnId).and_then(str::parse::<Id>);
    let id = match id {
        Ok(id) => id,
        Err(why) => {
            context.replies().error(&format!("ERR {why}"));
            return None;
        }
    };
    let costs = args[1..].iter().map(|cost| read_cost(context, cost)).collect::<Option<_>>();
    Some((id, costs?))
}

fn read_cost(context: &mut Context<'_>, text: &[u8]) -> Option<u32> {
    let cost = number(text).and_then(|cost| u32::try_from(cost).ok());
    if cost.is_none() {
        refuse_number(context, "cost", text, "a whole number from 0 to 4294967295");
    }
    cost
}
