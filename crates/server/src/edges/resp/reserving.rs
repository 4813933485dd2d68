//! The commands for estimates that are corrected after the work.

use futures_util::FutureExt;
use tidegate_core::Nanos;

use super::{
    limiting::{number, refuse, refuse_number, write_numbers},
    session::{Context, Flow},
};
use crate::{
    decide::{
        reservations::{Id, MOST_PARTS, ReservationError},
        service::{Ask, JointAnswer, Refusal, refuse_unknown},
    },
    listen::access::Role,
};

/// The maximum number of arguments of `RESERVE`, and of the commands with an id and costs.
pub(super) const MOST_ARGS: usize = 1 + 3 * MOST_PARTS;
pub(super) const MOST_COSTS: usize = 1 + MOST_PARTS;

/// A day, in milliseconds.
const LONGEST_MS: u64 = 86_400_000;

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
        asks.push(Ask { limit, key: Some(key), cost });
    }
    if !asks.iter().all(|ask| may_use(context, ask.limit)) {
        context.not_permitted("reserve units of these limits");
        return Flow::Continue;
    }
    let rights = context.session.rights();
    let unknown =
        |ask: &Ask<'_>| rights.map_or(Ok(()), |rights| refuse_unknown(context.limits, ask.limit, rights));
    if let Err(refusal) = asks.iter().try_for_each(unknown) {
        return refuse(context, "reserve", &refusal);
    }
    let (service, now) = (&context.shared.service, context.now);
    let reserved = Box::pin(service.reserve(&asks, Nanos::from_millis(ms), now)).now_or_never();
    match reserved {
        Some(Ok((joint, id))) => {
            context.replies().array(6);
            write_bound(context, &joint);
            match id {
                Some(id) => context.replies().bulk(id.to_string().as_bytes()),
                None => context.replies().null(),
            }
            Flow::Continue
        }
        Some(Err((_, refusal))) => refuse(context, "reserve", &refusal),
        // A reload has just moved one of the limits to the store.
        None => refuse(context, "reserve", &Refusal::Reservation(ReservationError::Ended)),
    }
}

/// `id cost [cost ...]` → five integers. If a limit denies, nothing has changed.
pub(super) fn extend(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let Some((id, costs)) = id_and_costs(context, args) else { return Flow::Continue };
    let extended = Box::pin(context.shared.service.extend(id, &costs, context.now)).now_or_never();
    match extended {
        Some(Ok(joint)) => {
            context.replies().array(5);
            write_bound(context, &joint);
            Flow::Continue
        }
        Some(Err(refusal)) => refuse(context, "extend", &refusal),
        // The rules have changed since the reservation was made.
        None => refuse(context, "extend", &Refusal::Reservation(ReservationError::Ended)),
    }
}

/// `id cost [cost ...]` → 1, or 0 if it was settled or cancelled before.
pub(super) fn settle(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let Some((id, costs)) = id_and_costs(context, args) else { return Flow::Continue };
    write_end(context, "settle", id, Some(&costs))
}

/// `id` → 1, or 0 if it was settled or cancelled before.
pub(super) fn cancel(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let Some((id, _)) = id_and_costs(context, args) else { return Flow::Continue };
    write_end(context, "cancel", id, None)
}

fn write_end(context: &mut Context<'_>, name: &str, id: Id, costs: Option<&[u32]>) -> Flow {
    match context.shared.service.settle(id, costs, context.now) {
        Ok(first) => {
            context.replies().integer(i64::from(first));
            Flow::Continue
        }
        Err(why) => refuse(context, name, &Refusal::Reservation(why)),
    }
}

fn write_bound(context: &mut Context<'_>, joint: &JointAnswer) {
    let bound = &joint.answers[joint.bound];
    let is_shadow = bound.limit.spec().shadow;
    write_numbers(&mut context.replies(), &bound.decision, is_shadow);
}

/// The reservation, if the client may use its limits, and its costs; `None` if an error was sent.
fn id_and_costs(context: &mut Context<'_>, args: &[&[u8]]) -> Option<(Id, Vec<u32>)> {
    let id = str::from_utf8(args[0]).map_err(|_| ReservationError::NotAnId).and_then(str::parse::<Id>);
    let found = id.and_then(|id| Ok((id, context.shared.service.reservations().parts(id)?)));
    let (id, parts) = match found {
        Ok(found) => found,
        Err(why) => {
            refuse(context, "settle", &Refusal::Reservation(why));
            return None;
        }
    };
    if !parts.iter().all(|part| may_use(context, part.limit.as_bytes())) {
        context.not_permitted("use this reservation");
        return None;
    }
    let costs = args[1..].iter().map(|cost| read_cost(context, cost)).collect::<Option<_>>()?;
    Some((id, costs))
}

fn may_use(context: &Context<'_>, limit: &[u8]) -> bool {
    context.session.rights().is_some_and(|rights| rights.may(Role::Decide) && rights.concern(limit))
}

fn read_cost(context: &mut Context<'_>, text: &[u8]) -> Option<u32> {
    let cost = number(text).and_then(|cost| u32::try_from(cost).ok());
    if cost.is_none() {
        refuse_number(context, "cost", text, "a whole number from 0 to 4294967295");
    }
    cost
}
