//! The commands that limit.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Decision, DenialReason, MAX_LIMIT, Nanos, Priority, PriorityError};
use tidegate_listen::access::Role;
use tidegate_service::decide::{
    limits::Limit,
    service::{
        Act, Operation, Operator, Refusal, Resolved, WaitFor, check_id, check_wait, reset_after,
        resolve, wait_of,
    },
    throttle::{self, ThrottleError, ThrottleQuota},
};

use crate::{
    question::{BucketReply, Question, UpToReply, taken_of},
    reply::{Replies, to_integer},
    session::Context,
};

/// `limit key [cost]` → five integers, with `REASON` after the cost also the reason of a denial.
/// With `ID id` the request is safe to repeat. With `ATMOST` as much of the cost is taken as is
/// available, and the reply has that number before the reason. The key of a global limit can be omitted and is
/// ignored.
#[inline]
pub(super) fn decide(context: &mut Context<'_>, name: &str, args: &[&[u8]], act: Act) {
    let (args, words) = match args {
        [_] | [_, _] | [_, _, _] if !args.get(2).is_some_and(is_word) => (args, Words::default()),
        _ => match words(args, act) {
            Ok(read) => read,
            Err(why) => return context.error(&format!("ERR {why}")),
        },
    };
    let Some((Resolved { limit, key }, cost)) = asked(context, name, args) else {
        return;
    };
    let wait = match wait_of(words.wait, words.priority) {
        Ok(wait) => wait.filter(|_| !context.in_transaction),
        Err(refusal) => return context.error(&format!("ERR {refusal}")),
    };
    let with_reason = words.with_reason;
    if words.up_to {
        return decide_up_to(
            context,
            (limit, key, cost),
            UpToReply::Acquire { with_reason },
        );
    }
    if let Some(wait) = wait {
        return wait_in_line(context, (limit, key, cost), with_reason, wait);
    }
    if let Some(id) = words.id {
        return decide_once(context, (limit, key, cost), with_reason, id);
    }
    // A client may give back its permits. Only an operator may refund what a rate has counted.
    let is_operation = act == Act::Refund && limit.spec().policy.algorithm.limits_rate();
    if is_operation
        && !context
            .session
            .rights()
            .is_some_and(|rights| rights.may(Role::Operate))
    {
        return context.not_permitted("refund what a rate has counted");
    }
    if let Err(refusal) = limit.accepts(act) {
        return refuse(context, name, &refusal);
    }
    let decided = limit
        .decide_in_memory(act, key, cost, context.now)
        .or_else(|| {
            // A question of this connection about the same key comes first.
            let here = act == Act::Take && !context.asks_about(limit, key);
            if here {
                limit.take_here(key, cost, context.now)
            } else {
                None
            }
        });
    let by = context
        .session
        .rights()
        .filter(|_| is_operation)
        .map(|rights| rights.name.clone());
    if let Some(decision) = decided {
        if let Some(client) = by {
            context
                .shared
                .service
                .record_refund(&client, limit, key, cost);
        }
        write_decision(
            &mut context.replies(),
            &decision,
            limit.spec().shadow,
            with_reason,
        );
    } else {
        let limit = Arc::clone(limit);
        context.ask(Question::Limit {
            limit,
            key: key.into(),
            cost,
            act,
            by,
            with_reason,
            id: None,
        });
    }
}

/// The words after the cost.
#[derive(Default)]
struct Words<'k> {
    with_reason: bool,
    id: Option<&'k [u8]>,
    wait: Option<Duration>,
    priority: Option<Priority>,
    up_to: bool,
}

/// Why the words after the cost are refused.
#[derive(Debug, thiserror::Error)]
enum WordError {
    #[error("syntax error: {0}")]
    Incomplete(&'static str),
    #[error(
        "syntax error: after the cost only REASON, ID id, ATMOST, WAIT milliseconds and PRIORITY level are known, each once"
    )]
    Unknown,
    #[error("syntax error: after the cost only REASON is known")]
    OnlyReason,
    #[error("syntax error: a request with ATMOST {0}")]
    UpTo(&'static str),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Priority(#[from] PriorityError),
}

/// Whether an argument is a word, and no cost.
fn is_word(argument: &&[u8]) -> bool {
    [&b"reason"[..], b"id", b"atmost", b"wait", b"priority"]
        .iter()
        .any(|word| argument.eq_ignore_ascii_case(word))
}

/// The arguments without the words at their end, and these words.
fn words<'a, 'k>(args: &'a [&'k [u8]], act: Act) -> Result<(&'a [&'k [u8]], Words<'k>), WordError> {
    let first = 2 + usize::from(!args.get(2).is_some_and(is_word));
    let (args, mut rest) = args.split_at(first.min(args.len()));
    let mut words = Words::default();
    while let Some((word, behind)) = rest.split_first() {
        rest = behind;
        if word.eq_ignore_ascii_case(b"reason") && !words.with_reason {
            words.with_reason = true;
        } else if word.eq_ignore_ascii_case(b"id") && act == Act::Take && words.id.is_none() {
            let Some((&id, behind)) = behind.split_first() else {
                return Err(WordError::Incomplete("ID needs an id"));
            };
            check_id(id)?;
            (words.id, rest) = (Some(id), behind);
        } else if word.eq_ignore_ascii_case(b"wait") && act == Act::Take && words.wait.is_none() {
            let Some((span, behind)) = behind.split_first() else {
                return Err(WordError::Incomplete("WAIT needs milliseconds"));
            };
            (words.wait, rest) = (Some(read_wait(span)?), behind);
        } else if word.eq_ignore_ascii_case(b"priority")
            && act == Act::Take
            && words.priority.is_none()
        {
            let Some((level, behind)) = behind.split_first() else {
                return Err(WordError::Incomplete("PRIORITY needs a level"));
            };
            (words.priority, rest) = (Some(read_priority(level)?), behind);
        } else if word.eq_ignore_ascii_case(b"atmost") && act == Act::Take && !words.up_to {
            words.up_to = true;
        } else if act == Act::Take {
            return Err(WordError::Unknown);
        } else {
            return Err(WordError::OnlyReason);
        }
    }
    if words.wait.is_some() && words.up_to {
        return Err(WordError::UpTo("does not wait"));
    }
    if words.wait.is_some() && words.id.is_some() {
        return Err(Refusal::WaitOnce.into());
    }
    if words.up_to && words.id.is_some() {
        return Err(WordError::UpTo("has no id"));
    }
    Ok((args, words))
}

/// How long a request waits in line at most, in milliseconds.
pub(super) fn read_wait(text: &[u8]) -> Result<Duration, Refusal> {
    let ms = number(text).and_then(|ms| u64::try_from(ms).ok());
    let span = Duration::from_millis(ms.unwrap_or(0));
    check_wait(span).map(|()| span)
}

/// A priority in line.
pub(super) fn read_priority(text: &[u8]) -> Result<Priority, PriorityError> {
    let text = std::str::from_utf8(text).map_err(|_| PriorityError)?;
    text.parse()
}

/// Takes a cost once it is admitted. Meanwhile no other command of the connection runs.
#[inline(never)]
fn wait_in_line(
    context: &mut Context<'_>,
    (limit, key, cost): (&Arc<Limit>, &[u8], u64),
    with_reason: bool,
    wait: WaitFor,
) {
    // The replies to earlier questions do not wait.
    if !context.questions.is_empty() {
        context.runs_again = true;
        return;
    }
    context.ask(Question::Wait {
        limit: Arc::clone(limit),
        key: key.into(),
        cost,
        with_reason,
        wait,
    });
}

/// Takes as much of a cost as is available.
#[inline(never)]
pub(super) fn decide_up_to(
    context: &mut Context<'_>,
    (limit, key, cost): (&Arc<Limit>, &[u8], u64),
    form: UpToReply,
) {
    let decided = match form {
        UpToReply::Increx { saturate: false } => take_whole(limit, (key, cost), context.now),
        _ => limit.take_up_to_in_memory(key, cost, context.now),
    };
    match decided {
        Some((taken, decision)) => {
            write_up_to(&mut context.replies(), (taken, &decision), limit, form);
        }
        None => context.ask(Question::UpTo {
            limit: Arc::clone(limit),
            key: key.into(),
            cost,
            form,
        }),
    }
}

/// The answer about what was taken of a cost.
pub(super) fn write_up_to(
    replies: &mut Replies<'_>,
    (taken, decision): (u64, &Decision),
    limit: &Limit,
    form: UpToReply,
) {
    let shadow = limit.spec().shadow;
    match form {
        UpToReply::Acquire { with_reason } => {
            replies.array(6 + usize::from(with_reason));
            write_numbers(replies, decision, shadow);
            replies.integer(to_integer(taken));
            if with_reason {
                write_reason(replies, decision, shadow);
            }
        }
        UpToReply::Increx { .. } => write_count(replies, decision, taken),
    }
}

/// Takes a cost once for an id.
#[inline(never)]
fn decide_once(
    context: &mut Context<'_>,
    (limit, key, cost): (&Arc<Limit>, &[u8], u64),
    with_reason: bool,
    id: &[u8],
) {
    let (service, now) = (&context.shared.service, context.now);
    match service.take_once_in_memory(id, limit, key, cost, now) {
        Some(decision) => {
            let shadow = limit.spec().shadow;
            write_decision(&mut context.replies(), &decision, shadow, with_reason);
        }
        None => context.ask(Question::Limit {
            limit: Arc::clone(limit),
            key: key.into(),
            cost,
            act: Act::Take,
            by: None,
            with_reason,
            id: Some(id.into()),
        }),
    }
}

/// The limit, key and cost of a command; `None` if an error was already sent.
#[inline]
fn asked<'a, 'k>(
    context: &mut Context<'a>,
    name: &str,
    args: &[&'k [u8]],
) -> Option<(Resolved<'a, 'k>, u64)> {
    let resolved = match resolve(context.limits, args[0], args.get(1).copied()) {
        Ok(resolved) => resolved,
        Err(refusal) => {
            refuse(context, name, &refusal);
            return None;
        }
    };
    let Some(text) = args.get(2) else {
        return Some((resolved, 1));
    };
    Some((resolved, read_cost(context, text)?))
}

/// Writes the used units of the limit, and the units that the request added.
fn write_count(replies: &mut Replies<'_>, decision: &Decision, taken: u64) {
    let used = decision.limit().saturating_sub(decision.remaining());
    replies.array(2);
    replies.integers([to_integer(used), to_integer(taken)]);
}

/// How a limit decides on the cost of such a request without asking the store; `None` if only the
/// store can.
fn take_whole(
    limit: &Arc<Limit>,
    (key, cost): (&[u8], u64),
    now: Nanos,
) -> Option<(u64, Decision)> {
    let decision = limit.decide_in_memory(Act::Take, key, cost, now)?;
    Some((taken_of(limit, &decision, cost), decision))
}

/// Five integers: 0 allowed or 1 denied, the limit, what remains, milliseconds to wait,
/// milliseconds until the limit is full again. Then, if the client wants it, the reason of a
/// denial, which is empty for an admission.
#[inline]
pub(super) fn write_decision(
    replies: &mut Replies<'_>,
    decision: &Decision,
    shadow: bool,
    with_reason: bool,
) {
    replies.array(5 + usize::from(with_reason));
    write_numbers(replies, decision, shadow);
    if with_reason {
        write_reason(replies, decision, shadow);
    }
}

fn write_reason(replies: &mut Replies<'_>, decision: &Decision, shadow: bool) {
    let reason = decision
        .reason()
        .filter(|_| !shadow)
        .map_or("", DenialReason::name);
    replies.bulk(reason.as_bytes());
}

/// The five integers, within a longer reply.
#[inline]
pub(super) fn write_numbers(replies: &mut Replies<'_>, decision: &Decision, shadow: bool) {
    let allowed = decision.is_allowed() || shadow;
    // A decision's times are at most 584 years, and fit.
    let ms = |span: Duration| {
        span.as_secs().cast_signed() * 1_000 + i64::from(span.subsec_nanos().div_ceil(1_000_000))
    };
    let wait = if !allowed {
        decision.retry_after().map_or(-1, ms)
    } else if decision.delay().is_zero() {
        -1
    } else {
        ms(decision.delay())
    };
    let reset = reset_after(decision).map_or(-1, ms);
    replies.integers([
        i64::from(!allowed),
        to_integer(decision.limit()),
        to_integer(decision.remaining()),
        wait,
        reset,
    ]);
}

/// The answer about a bucket that the request describes.
pub(super) fn write_bucket(replies: &mut Replies<'_>, decision: &Decision, form: BucketReply) {
    match form {
        BucketReply::Cell => write_five(replies, throttle::reply(decision)),
        BucketReply::Gcra => write_gcra(replies, decision),
        BucketReply::Throttlecrab => {
            write_five(replies, throttle::throttlecrab_reply(decision));
        }
    }
}

/// An error about such a bucket. Only clients of redis-cell look for its prefix.
#[cold]
pub(super) fn write_bucket_error(
    replies: &mut Replies<'_>,
    error: &ThrottleError,
    form: BucketReply,
) {
    match form {
        BucketReply::Throttlecrab => replies.error(&format!("ERR {}", error.detail())),
        BucketReply::Cell | BucketReply::Gcra => replies.error(&error.to_string()),
    }
}

fn write_five(replies: &mut Replies<'_>, numbers: [i64; 5]) {
    replies.array(5);
    for number in numbers {
        replies.integer(number);
    }
}

/// Two integers and the bucket's size, as `CL.THROTTLE` has them, and two times in seconds, exact
/// to a nanosecond; −1 if a time does not apply.
fn write_gcra(replies: &mut Replies<'_>, decision: &Decision) {
    let seconds = |span: Option<Duration>| span.map_or(-1.0, |span| span.as_secs_f64());
    let wait = decision.retry_after().filter(|_| decision.is_denied());
    replies.array(5);
    replies.integers([
        i64::from(decision.is_denied()),
        to_integer(decision.limit()),
        to_integer(decision.remaining()),
    ]);
    replies.double(seconds(wait));
    replies.double(seconds(reset_after(decision)));
}

/// `key max_burst count period [TOKENS quantity]`: a proposal to Redis, which clients send already.
pub(super) fn gcra(context: &mut Context<'_>, args: &[&[u8]]) {
    match args {
        [_, _, _, _] => throttle(context, args, BucketReply::Gcra),
        [key, burst, count, period, word, quantity] if word.eq_ignore_ascii_case(b"tokens") => {
            throttle(
                context,
                &[key, burst, count, period, quantity],
                BucketReply::Gcra,
            );
        }
        _ => context.error("ERR syntax error: after the period only TOKENS and a number are known"),
    }
}

pub(super) fn cl_throttle(context: &mut Context<'_>, args: &[&[u8]]) {
    throttle(context, args, BucketReply::Cell);
}

/// The command of throttlecrab's server: its `max_burst` counts the request itself.
pub(super) fn throttlecrab(context: &mut Context<'_>, args: &[&[u8]]) {
    throttle(context, args, BucketReply::Throttlecrab);
}

/// Decides by the bucket in `key max_burst count period [quantity]`.
fn throttle(context: &mut Context<'_>, args: &[&[u8]], form: BucketReply) {
    let mut numbers = [0, 0, 0, 1];
    for (to, text) in numbers.iter_mut().zip(&args[1..]) {
        let Some(number) = number(text) else {
            // redis-cell's own wording.
            let prefix = if form == BucketReply::Throttlecrab {
                "ERR"
            } else {
                "Cell error:"
            };
            let text = String::from_utf8_lossy(text);
            return context.error(&format!("{prefix} Couldn't parse as integer: {text}"));
        };
        *to = number;
    }
    let [max_burst, count, period, quantity] = numbers;
    if args[0].len() > tidegate_service::rules::MAX_KEY_BYTES {
        let refusal = Refusal::KeyTooLong {
            bytes: args[0].len(),
        };
        return refuse(context, "cl.throttle", &refusal);
    }
    let quota = if form == BucketReply::Throttlecrab {
        match ThrottleQuota::with_burst(max_burst, count, period) {
            Ok(quota) => quota,
            Err(error) => return write_bucket_error(&mut context.replies(), &error, form),
        }
    } else {
        ThrottleQuota {
            max_burst,
            count,
            period,
        }
    };
    match context
        .shared
        .service
        .throttle_in_memory(args[0], quota, quantity, context.now)
    {
        Some(Ok(decision)) => write_bucket(&mut context.replies(), &decision, form),
        Some(Err(error)) => write_bucket_error(&mut context.replies(), &error, form),
        None => {
            let protocol = context.session.protocol;
            context.ask(Question::Throttle {
                key: args[0].into(),
                quota,
                quantity,
                form,
                protocol,
            });
        }
    }
}

pub(super) fn block(context: &mut Context<'_>, args: &[&[u8]]) {
    let Ok(span) = milliseconds(context, args.get(2)) else {
        return;
    };
    operate(context, "block", args, Operation::Block(span));
}

pub(super) fn override_key(context: &mut Context<'_>, args: &[&[u8]]) {
    let quota = String::from_utf8_lossy(args[2]);
    if quota.eq_ignore_ascii_case("end") && args.len() == 3 {
        return operate(context, "override", args, Operation::EndOverride);
    }
    let Ok(span) = milliseconds(context, args.get(3)) else {
        return;
    };
    operate(
        context,
        "override",
        args,
        Operation::Override(quota.into_owned(), span),
    );
}

/// Makes an operator's change about the key in the second argument.
pub(super) fn operate(context: &mut Context<'_>, name: &str, args: &[&[u8]], operation: Operation) {
    let by: Box<str> = context
        .session
        .rights()
        .map_or_else(Box::default, |rights| rights.name.clone());
    let operator = Operator {
        client: &by,
        note: None,
    };
    match context
        .shared
        .service
        .operate_in_memory(args[0], Some(args[1]), &operation, &operator)
    {
        Some(Ok(done)) => write_done(&mut context.replies(), &operation, done),
        Some(Err(refusal)) => refuse(context, name, &refusal),
        None => match resolve(context.limits, args[0], Some(args[1])) {
            Ok(Resolved { limit, key }) => {
                context.ask(Question::Operate {
                    limit: Arc::clone(limit),
                    key: key.into(),
                    operation,
                    by,
                });
            }
            Err(refusal) => refuse(context, name, &refusal),
        },
    }
}

/// The reply to an operation: whether there was something to end, or OK.
pub(super) fn write_done(replies: &mut Replies<'_>, operation: &Operation, done: bool) {
    match operation {
        Operation::Unblock | Operation::EndOverride => replies.integer(i64::from(done)),
        _ => replies.ok(),
    }
}

/// For how long, where that is said; an error was answered.
fn milliseconds(context: &mut Context<'_>, text: Option<&&[u8]>) -> Result<Option<Duration>, ()> {
    let Some(text) = text else { return Ok(None) };
    let span = number(text)
        .and_then(|ms| u64::try_from(ms).ok())
        .filter(|ms| *ms > 0);
    if span.is_none() {
        refuse_number(context, "milliseconds", text, "a whole number above 0");
    }
    span.map(|ms| Some(Duration::from_millis(ms))).ok_or(())
}

/// The cost in a command; `None` if an error was sent.
#[inline]
pub(super) fn read_cost(context: &mut Context<'_>, text: &[u8]) -> Option<u64> {
    let cost = number(text)
        .and_then(|cost| u64::try_from(cost).ok())
        .filter(|cost| *cost <= MAX_LIMIT);
    if cost.is_none() {
        refuse_number(
            context,
            "cost",
            text,
            "a whole number from 0 to 9007199254740991",
        );
    }
    cost
}

/// A whole number as redis-cell and Redis parse one.
#[inline]
pub(super) fn number(text: &[u8]) -> Option<i64> {
    str::from_utf8(text).ok()?.parse().ok()
}

#[cold]
pub(super) fn refuse(context: &mut Context<'_>, name: &str, refusal: &Refusal) {
    let text = match refusal {
        Refusal::KeyMissing { .. } => {
            format!("ERR wrong number of arguments for '{name}' command: {refusal}")
        }
        _ => format!("ERR {refusal}"),
    };
    context.error(&text);
}

#[cold]
pub(super) fn refuse_number(context: &mut Context<'_>, what: &str, got: &[u8], wants: &str) {
    let got = String::from_utf8_lossy(&got[..got.len().min(32)]);
    context.error(&format!("ERR {what} is '{got}'; it must be {wants}"));
}
