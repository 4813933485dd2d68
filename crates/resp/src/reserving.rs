//! The commands for estimates that are corrected after the work.

use futures_util::FutureExt;
use tidegate_core::Nanos;
use tidegate_listen::access::Rights;
use tidegate_service::decide::{
    reservations::{Id, MOST_PARTS, ReservationError},
    service::{Answer, Ask, Refusal, check_id, wait_of},
};

use crate::{
    limiting::{number, read_cost, read_priority, read_wait, refuse_number, write_numbers},
    question::{self, Asked, Done, Question, ReservationAct, Reserving},
    reply::Replies,
    session::Context,
};

/// The arguments of `RESERVE`.
pub(super) const RESERVE: &str =
    "milliseconds limit key cost [limit key cost ...] [ID id|WAIT milliseconds [PRIORITY level]]";

/// The maximum number of arguments of `RESERVE`, and of the commands with an id and costs.
pub(super) const MOST_ARGS: usize = 1 + 3 * MOST_PARTS + 2 * OPTIONS.len();
pub(super) const MOST_COSTS: usize = 1 + MOST_PARTS;

/// The arguments of `ACQUIREANY`.
pub(super) const ACQUIRE_ANY: &str = "limit key cost [limit key cost ...]";
pub(super) const MOST_ANY: usize = 3 * MOST_PARTS;

/// A day, in milliseconds.
const LONGEST_MS: u64 = 86_400_000;

/// `milliseconds limit key cost [limit key cost ...] [ID id|WAIT milliseconds [PRIORITY level]]` → the five
/// integers of the limit that bound, and the id, or null for a denial. With `ID id` the request is
/// safe to repeat, with `WAIT milliseconds` it waits in line.
pub(super) fn reserve(context: &mut Context<'_>, args: &[&[u8]]) {
    let ttl = args[0];
    let (rest, options) = split_options(&args[1..]);
    let (mut request, mut span, mut priority) = (None, None, None);
    for (word, value) in options {
        let is_again = match word {
            "ID" => request.is_some(),
            "WAIT" => span.is_some(),
            _ => priority.is_some(),
        };
        if is_again {
            return context.error(&format!("ERR syntax error: {word} is given twice"));
        }
        let read = match word {
            "ID" => check_id(value).map(|()| request = Some(value)),
            "WAIT" => read_wait(value).map(|read| span = Some(read)),
            _ => match read_priority(value) {
                Ok(read) => {
                    priority = Some(read);
                    Ok(())
                }
                Err(error) => return context.error(&format!("ERR {error}")),
            },
        };
        if let Err(refusal) = read {
            return context.error(&format!("ERR {refusal}"));
        }
    }
    if request.is_some() && span.is_some() {
        return context.error(&format!("ERR {}", Refusal::WaitOnce));
    }
    let wait = match wait_of(span, priority) {
        Ok(wait) => wait,
        Err(refusal) => return context.error(&format!("ERR {refusal}")),
    };
    let wait = wait.filter(|_| !context.in_transaction);
    // The replies to earlier questions do not wait.
    if wait.is_some() && !context.questions.is_empty() {
        context.runs_again = true;
        return;
    }
    let ms = number(ttl).and_then(|ms| u64::try_from(ms).ok());
    let Some(ms) = ms.filter(|ms| (1..=LONGEST_MS).contains(ms)) else {
        return refuse_number(
            context,
            "milliseconds",
            ttl,
            "a whole number from 1 to 86400000",
        );
    };
    let Some(asks) = read_asks(context, rest, ("reserve", RESERVE)) else {
        return;
    };
    let ttl = Nanos::from_millis(ms);
    let service = &context.shared.service;
    if service.store().is_some() || wait.is_some() {
        let act = ReservationAct::Reserve {
            ttl,
            asks: owned(&asks),
            request: request.map(Into::into),
            wait,
        };
        let rights = context.session.rights.clone();
        let protocol = context.session.protocol;
        return context.ask(Question::Reserve(Reserving {
            act,
            rights,
            protocol,
        }));
    }
    let rights = context.session.rights.clone();
    let asked = question::reserve(service, rights.as_deref(), request, &asks, ttl, context.now);
    let done = asked.now_or_never();
    write_at_once(context, rights.as_deref(), done);
}

/// The options behind the limits of `RESERVE`, each with a value.
const OPTIONS: [&str; 3] = ["ID", "WAIT", "PRIORITY"];

/// An option and its value.
type Choice<'k> = (&'static str, &'k [u8]);

/// The limits, and the options behind them. A limit or a key may have the name
/// of an option, so their number decides: each limit has three arguments.
fn split_options<'a, 'k>(args: &'a [&'k [u8]]) -> (&'a [&'k [u8]], Vec<Choice<'k>>) {
    let options = |count: usize| {
        let limits = args.len().checked_sub(2 * count)?;
        if limits == 0 || !limits.is_multiple_of(3) {
            return None;
        }
        let (asked, pairs) = args.split_at(limits);
        let mut found: Vec<Choice<'_>> = Vec::new();
        for [word, value] in pairs.as_chunks().0 {
            let known = |name: &&&str| word.eq_ignore_ascii_case(name.as_bytes());
            found.push((OPTIONS.iter().find(known)?, value));
        }
        Some((asked, found))
    };
    (1..=OPTIONS.len())
        .rev()
        .find_map(options)
        .unwrap_or((args, Vec::new()))
}

/// `limit key cost [limit key cost ...]` → the five integers of the limit that took its cost, and
/// its name. If all deny, those of the denial that ends first, and null.
pub(super) fn acquire_any(context: &mut Context<'_>, args: &[&[u8]]) {
    let Some(asks) = read_asks(context, args, ("acquireany", ACQUIRE_ANY)) else {
        return;
    };
    if context.shared.service.store().is_some() {
        return carry_out(context, ReservationAct::Any(owned(&asks)));
    }
    let (service, rights) = (&context.shared.service, context.session.rights.clone());
    let asked = question::acquire_any(service, rights.as_deref(), &asks, context.now);
    let done = asked.now_or_never();
    write_at_once(context, rights.as_deref(), done);
}

/// Limits with a key and a cost each; `None` if an error was sent.
fn read_asks<'a>(
    context: &mut Context<'_>,
    args: &[&'a [u8]],
    (name, usage): (&str, &str),
) -> Option<Vec<Ask<'a>>> {
    let mut asks = Vec::with_capacity(args.len() / 3);
    for part in args.chunks(3) {
        let &[limit, key, cost] = part else {
            context.wrong_number(name, usage);
            return None;
        };
        let cost = read_cost(context, cost)?;
        asks.push(Ask {
            limit,
            key: Some(key),
            cost,
        });
    }
    Some(asks)
}

fn owned(asks: &[Ask<'_>]) -> Vec<Asked> {
    let one = |ask: &Ask<'_>| {
        let key = ask.key.unwrap_or_default();
        (ask.limit.into(), key.into(), ask.cost)
    };
    asks.iter().map(one).collect()
}

/// `id cost [cost ...]` → five integers. If a limit denies, nothing has changed.
pub(super) fn extend(context: &mut Context<'_>, args: &[&[u8]]) {
    let Some((id, costs)) = id_and_costs(context, args) else {
        return;
    };
    carry_out(context, ReservationAct::Extend(id, costs));
}

/// `id cost [cost ...]` → 1, or 0 if it was settled or cancelled before.
pub(super) fn settle(context: &mut Context<'_>, args: &[&[u8]]) {
    let Some((id, costs)) = id_and_costs(context, args) else {
        return;
    };
    carry_out(context, ReservationAct::Settle(id, Some(costs)));
}

/// `id` → 1, or 0 if it was settled or cancelled before.
pub(super) fn cancel(context: &mut Context<'_>, args: &[&[u8]]) {
    let Some((id, _)) = id_and_costs(context, args) else {
        return;
    };
    carry_out(context, ReservationAct::Settle(id, None));
}

fn carry_out(context: &mut Context<'_>, act: ReservationAct) {
    let rights = context.session.rights.clone();
    let reserving = Reserving {
        act,
        rights,
        protocol: context.session.protocol,
    };
    let service = &context.shared.service;
    if service.store().is_some() {
        return context.ask(Question::Reserve(reserving));
    }
    let done = reserving.ask(service, context.now).now_or_never();
    write_at_once(context, reserving.rights.as_deref(), done);
}

fn write_at_once(
    context: &mut Context<'_>,
    rights: Option<&Rights>,
    done: Option<Result<Done, Refusal>>,
) {
    // Memory never waits.
    let done = done.unwrap_or(Err(Refusal::Reservation(ReservationError::Ended)));
    write_reserved(&mut context.replies(), rights, &done);
}

/// Writes the reply.
pub(super) fn write_reserved(
    replies: &mut Replies<'_>,
    rights: Option<&Rights>,
    done: &Result<Done, Refusal>,
) {
    match done {
        Ok(Done::First(first)) => {
            replies.array(6);
            write_bound(replies, first);
            if first.is_allowed() {
                replies.bulk(first.limit.spec().name.as_bytes());
            } else {
                replies.null();
            }
        }
        Ok(Done::Reserved(bound, id)) => {
            replies.array(6);
            write_bound(replies, bound);
            match id {
                Some(id) => replies.bulk(&id.digits()),
                None => replies.null(),
            }
        }
        Ok(Done::Extended(bound)) => {
            replies.array(5);
            write_bound(replies, bound);
        }
        Ok(Done::Settled(first)) => replies.integer(i64::from(*first)),
        Err(refusal) => replies.error(&format!("ERR {refusal}")),
        Ok(Done::NotPermitted(what)) => {
            let name = rights.map_or("default", |rights| &*rights.name);
            replies.error(&format!("NOPERM User {name} has no permissions to {what}"));
        }
    }
}

fn write_bound(replies: &mut Replies<'_>, bound: &Answer) {
    write_numbers(replies, &bound.decision, bound.limit.spec().shadow);
}

/// The reservation and its costs; `None` if an error was sent.
fn id_and_costs(context: &mut Context<'_>, args: &[&[u8]]) -> Option<(Id, Vec<u64>)> {
    let id = match Id::from_digits(args[0]) {
        Ok(id) => id,
        Err(why) => {
            context.error(&format!("ERR {why}"));
            return None;
        }
    };
    let costs = args[1..]
        .iter()
        .map(|cost| read_cost(context, cost))
        .collect::<Option<_>>();
    Some((id, costs?))
}
