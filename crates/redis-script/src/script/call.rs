//! A script call: its arguments and its reply.

use redis::{Cmd, Value};
use tidegate_core::lease::{GiveBack, Mode, Request};
use tidegate_core::{MAX_LIMIT, Nanos, Penalty, Priority};

use super::{Plan, Script, ShareSeen, plan::LineSeen};
use crate::StoreError;

/// A cost as Lua has it, which has only doubles: more than any limit stays more than any limit.
fn exact(cost: u64) -> u64 {
    cost.min(MAX_LIMIT + 1)
}

/// Many requests of one limit for one call: each key once, with its costs in order.
#[derive(Debug, Default)]
pub struct Batch {
    pub keys: Vec<Vec<u8>>,
    /// The costs of the first key, then those of the second, and so on.
    pub costs: Vec<u64>,
    /// The number of costs of each key.
    pub counts: Vec<u32>,
}

impl Batch {
    /// The arguments after the keys.
    pub fn arguments(&self, plan: &Plan) -> [Vec<u8>; 3] {
        let once = self.counts.iter().all(|&count| count == 1);
        let same = once && self.costs.windows(2).all(|two| two[0] == two[1]);
        let (costs, counts): (Vec<u8>, Vec<u8>) = if same {
            (exact(self.costs[0]).to_le_bytes().to_vec(), Vec::new())
        } else {
            let costs = self
                .costs
                .iter()
                .flat_map(|&cost| exact(cost).to_le_bytes());
            (
                costs.collect(),
                self.counts
                    .iter()
                    .flat_map(|count| count.to_le_bytes())
                    .collect(),
            )
        };
        [plan.call_numbers(), costs, counts]
    }
}

/// The arguments, after the keys, of a call in which nodes take allotments. `requests` are those of
/// each key in order, and `counts` the number of requests of each key.
pub fn lease_arguments<'a>(
    plan: &Plan,
    mode: Mode,
    requests: impl Iterator<Item = &'a Request>,
    counts: impl Iterator<Item = u32>,
) -> [Vec<u8>; 4] {
    let letter = if mode == Mode::Leased { b"l" } else { b"r" };
    let mut packed = Vec::new();
    for request in requests {
        let back = request.back.unwrap_or(GiveBack {
            units: 0,
            taken: Nanos::ZERO,
        });
        packed.extend_from_slice(&exact(request.cost).to_le_bytes());
        for number in [request.ahead, request.spent, back.units] {
            packed.extend_from_slice(&number.to_le_bytes());
        }
        packed.extend_from_slice(&(back.taken.get() / 1_000).to_le_bytes());
    }
    [
        plan.lease_numbers(),
        letter.to_vec(),
        packed,
        counts.flat_map(u32::to_le_bytes).collect(),
    ]
}

/// The arguments of a refund, after its keys.
pub fn refund_arguments(plan: &Plan, cost: u64) -> [Vec<u8>; 2] {
    [plan.call_numbers(), exact(cost).to_string().into_bytes()]
}

/// The arguments of a charge, after its keys.
pub fn charge_arguments(plan: &Plan, cost: u64) -> [Vec<u8>; 2] {
    [plan.lease_numbers(), exact(cost).to_string().into_bytes()]
}

/// The arguments of the script that gives back or renews a holder's permits. `name` identifies the
/// holder: the time at which the permits were taken.
pub fn settle_arguments(hold: Nanos, renew: bool, name: Nanos) -> [Vec<u8>; 3] {
    let hold = hold.get().div_ceil(1_000);
    let name = (name.get() / 1_000).to_le_bytes();
    [
        hold.to_string().into_bytes(),
        u8::from(renew).to_string().into_bytes(),
        name.to_vec(),
    ]
}

/// The arguments of a joint decision, after its keys. If it takes nothing, `look` is the last.
pub fn joint_arguments<'a>(
    requests: impl Iterator<Item = (&'a Plan, u64)>,
    takes: bool,
) -> Vec<Vec<u8>> {
    let look = (!takes).then(|| b"look".to_vec());
    with_besides(requests.map(|(plan, cost)| (plan, cost, false)))
        .into_iter()
        .chain(look)
        .collect()
}

/// The arguments of `allot.lua`, after its keys.
pub fn allot_arguments(plan: &Plan, request: &Request) -> Vec<Vec<u8>> {
    let mut arguments = joint_arguments(std::iter::once((plan, request.cost)), true);
    arguments.push(request.ahead.to_string().into_bytes());
    arguments
}

/// The arguments of each limit of a joint decision, and behind them those of the limits' blocks and
/// lines.
fn with_besides<'a>(parts: impl Iterator<Item = Reserved<'a>>) -> Vec<Vec<u8>> {
    let (mut limits, mut besides) = (Vec::new(), Vec::new());
    for (at, part) in parts.enumerate() {
        besides.extend(part.0.arguments_beside(at).flatten());
        limits.extend(part_arguments(part));
    }
    limits.append(&mut besides);
    limits
}

/// One limit of a reservation: its plan, the cost, and whether it is a shadow limit.
pub type Reserved<'a> = (&'a Plan, u64, bool);

/// The arguments of `reserve.lua`, after its keys. `text` is empty for an extension.
pub fn reserve_arguments<'a>(
    parts: impl Iterator<Item = Reserved<'a>> + Clone,
    (text, ttl, most): (&[u8], Nanos, usize),
    id: &str,
) -> Vec<Vec<u8>> {
    let places = parts.clone().flat_map(|(plan, ..)| plan.place()).collect();
    let ttl = ttl.get().div_ceil(1_000).to_string().into_bytes();
    let rest = [
        text.to_vec(),
        ttl,
        most.to_string().into_bytes(),
        places,
        id.into(),
    ];
    with_besides(parts).into_iter().chain(rest).collect()
}

/// The arguments of `reserve.lua` for units that were taken before: of each limit the cost, when it
/// was taken, and where it counts.
pub fn reserve_taken_arguments(
    taken: &[(u64, Nanos, [u8; 8])],
    (text, ttl, most): (&[u8], Nanos, usize),
    id: &str,
) -> [Vec<u8>; 6] {
    let units = |&(cost, taken, _): &(u64, Nanos, _)| {
        let numbers = [exact(cost), taken.get() / 1_000];
        numbers.into_iter().flat_map(u64::to_le_bytes)
    };
    [
        text.to_vec(),
        ttl.get().div_ceil(1_000).to_string().into_bytes(),
        most.to_string().into_bytes(),
        taken.iter().flat_map(|(.., place)| *place).collect(),
        id.into(),
        taken.iter().flat_map(units).collect(),
    ]
}

/// The arguments of a limit that may be a shadow limit, in a joint decision.
fn part_arguments((plan, cost, is_shadow): Reserved<'_>) -> [Vec<u8>; 3] {
    let letter = plan.kind().letter();
    let letter = if is_shadow {
        letter.to_ascii_uppercase()
    } else {
        letter.to_owned()
    };
    [
        letter.into_bytes(),
        plan.call_numbers(),
        exact(cost).to_string().into_bytes(),
    ]
}

/// Which answers to requests with an id the store keeps, for a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    All,
    Admissions,
    /// The call only looks for the first answer.
    Nothing,
}

/// The change of what a tenant has used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareChange {
    Charge(u64),
    Refund(u64),
    Reset,
}

/// The arguments of `share_change.lua`, after its keys; `None` without a tenant.
pub fn share_change_arguments(plan: &Plan, change: ShareChange) -> Option<Vec<Vec<u8>>> {
    let numbers = plan.share_numbers()?;
    let (word, cost) = match change {
        ShareChange::Charge(cost) => ("charge", cost),
        ShareChange::Refund(cost) => ("refund", cost),
        ShareChange::Reset => ("reset", 0),
    };
    let rest = [word.into(), exact(cost).to_string().into_bytes()];
    Some(numbers.into_iter().chain(rest).collect())
}

/// The arguments of `once.lua`, after its keys.
pub fn once_arguments<'a>(parts: impl Iterator<Item = Reserved<'a>>, keep: Keep) -> Vec<Vec<u8>> {
    let [millis, which] = match keep {
        Keep::All => ["60000", "all"],
        Keep::Admissions => ["60000", "admissions"],
        Keep::Nothing => ["0", "none"],
    };
    with_besides(parts)
        .into_iter()
        .chain([millis.into(), which.into()])
        .collect()
}

/// A ticket of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupTicket {
    pub number: u64,
    pub priority: Priority,
    /// Its cost in each line of its group.
    pub costs: Box<[u64]>,
}

/// A server's call about a group: its requests that wait for the same keys.
#[derive(Clone, Debug, Default)]
pub struct Turn {
    /// Identifies the group's tickets.
    pub id: u64,
    /// The number of this call. A call that is repeated has the same.
    pub number: u64,
    /// The tickets to add, in order.
    pub joins: Vec<GroupTicket>,
    /// The tickets to remove.
    pub leaves: Vec<GroupTicket>,
    /// Whether `joins` are all tickets that the group has in line.
    pub is_all: bool,
}

/// The arguments of `turn.lua`, after its keys: for each plan also the line that it is of, from 0.
/// If nothing may be taken, `takes` is false.
pub fn turn_arguments<'a>(
    plans: impl Iterator<Item = (&'a Plan, usize)> + Clone,
    turn: &Turn,
    takes: bool,
) -> Vec<Vec<u8>> {
    let blocks = plans.clone().enumerate();
    let blocks = blocks.filter_map(|(at, (plan, _))| plan.block_arguments(at));
    // A call has far fewer lines.
    let line = |(_, line): (&Plan, usize)| u16::try_from(line + 1).unwrap_or(u16::MAX);
    let lines = plans.clone().flat_map(|plan| line(plan).to_le_bytes());
    let lines = lines.collect();
    let limits = plans.map(|(plan, _)| part_arguments((plan, 0, false)));
    let arguments: Vec<Vec<u8>> = limits.chain(blocks).flatten().collect();
    let packed = |tickets: &[GroupTicket]| {
        let mut packed = Vec::with_capacity(17 * tickets.len());
        for ticket in tickets {
            packed.extend(ticket.number.to_le_bytes());
            packed.push(ticket.priority.level());
            packed.extend(
                ticket
                    .costs
                    .iter()
                    .flat_map(|cost| exact(*cost).to_le_bytes()),
            );
        }
        packed
    };
    let rest: [Vec<u8>; 8] = [
        if takes { "take".into() } else { "look".into() },
        Plan::line_numbers(None),
        turn.id.to_le_bytes().to_vec(),
        turn.number.to_string().into_bytes(),
        packed(&turn.joins),
        packed(&turn.leaves),
        if turn.is_all {
            "all".into()
        } else {
            Vec::new()
        },
        lines,
    ];
    arguments.into_iter().chain(rest).collect()
}

/// The first ticket of a line, in the reply of `turn.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// Whether it is of the group that asked.
    pub is_own: bool,
    /// Whether its cost was taken, and it left the line.
    pub is_taken: bool,
    pub number: u64,
    pub cost: u64,
    /// The cost of the first tickets of the line, up to the first one of the group that asked.
    pub ahead: u64,
    /// The number of all tickets, with this one.
    pub tickets: u64,
}

/// The reply of `turn.lua`.
#[derive(Debug)]
pub enum TurnReply {
    /// No ticket is in one of the lines.
    Empty,
    /// The group's tickets are no longer there. Nothing was done.
    Lost,
    /// The first ticket of each line, and what the decision on them was made from.
    Fronts(Vec<Front>, Nanos, Vec<Before>),
}

/// The length of a line's part of the reply.
const FRONT: usize = 33;

fn front(text: &[u8; FRONT]) -> Front {
    let (numbers, _) = text[1..].as_chunks();
    let number = |at: usize| numbers.get(at).copied().map_or(0, u64::from_le_bytes);
    Front {
        is_own: text[0] > 0,
        is_taken: text[0] == 2,
        number: number(0),
        cost: number(1),
        ahead: number(2),
        tickets: number(3),
    }
}

/// The first tickets of so many lines, and the rest of the text.
fn fronts(text: &[u8], lines: usize) -> Option<(Vec<Front>, &[u8])> {
    let (states, rest) = text.split_at_checked(FRONT * lines)?;
    let (states, _) = states.as_chunks();
    Some((states.iter().map(front).collect(), rest))
}

/// Parses the reply of `turn.lua` to the call with a number about so many lines, with a value for
/// each of the `keys` of limits and blocks.
pub fn turn_reply(
    mut reply: Value,
    number: u64,
    lines: usize,
    keys: usize,
) -> Result<TurnReply, StoreError> {
    if let Some(word) = word_bytes(&reply) {
        return match word {
            b"empty" => Ok(TurnReply::Empty),
            b"lost" => Ok(TurnReply::Lost),
            b"wrong" => Err(StoreError::WrongType),
            kept_answer => {
                let answer = kept_answer
                    .strip_prefix(&number.to_le_bytes())
                    .and_then(|text| fronts(text, lines))
                    .and_then(|(fronts, text)| Some((fronts, kept(text)?)));
                let (fronts, kept) = answer.ok_or(StoreError::BadReply)?;
                let values = kept.parts.into_iter().map(|(_, value)| Ok(value));
                Ok(TurnReply::Fronts(fronts, kept.now, values.collect()))
            }
        };
    }
    let Value::Array(parts) = &mut reply else {
        return Err(StoreError::BadReply);
    };
    let state = match parts.pop() {
        Some(Value::BulkString(state)) => fronts(&state, lines).map(|(fronts, _)| fronts),
        _ => None,
    };
    let (now, found) = parse(reply, keys)?;
    Ok(TurnReply::Fronts(
        state.ok_or(StoreError::BadReply)?,
        now,
        found,
    ))
}

/// The answer of the first call, as `keep_answer.lua` writes it.
#[derive(Debug)]
pub struct Kept {
    pub now: Nanos,
    /// Whether each limit admits, and its value before the call.
    pub parts: Vec<(bool, Option<Vec<u8>>)>,
}

/// Parses an answer that was kept.
pub fn kept(text: &[u8]) -> Option<Kept> {
    let (now, mut rest) = text.split_first_chunk()?;
    let mut parts = Vec::new();
    while let Some((&[admits, a, b, c, d], behind)) = rest.split_first_chunk() {
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let (value, behind) = behind.split_at_checked(length.saturating_sub(1))?;
        parts.push((admits == 1, (length > 0).then(|| value.to_vec())));
        rest = behind;
    }
    let now = Nanos::from_micros(u64::from_le_bytes(*now));
    rest.is_empty().then_some(Kept { now, parts })
}

/// The arguments of `correct.lua`, after its keys. Each part has its position in the reservation,
/// from 0, and the actual cost, or the unused one.
pub fn correct_arguments<'a>(
    parts: impl Iterator<Item = (usize, &'a Plan, u64, bool)>,
    expires: bool,
    id: &str,
) -> Vec<Vec<u8>> {
    let part = |(at, plan, actual, is_unused): (usize, &Plan, u64, bool)| {
        let sign = if is_unused { "-" } else { "" };
        let (actual, field) = (
            format!("{sign}{}", exact(actual)).into_bytes(),
            (at + 1).to_string().into_bytes(),
        );
        [
            plan.kind().letter().into(),
            plan.lease_numbers(),
            actual,
            field,
            plan.place().to_vec(),
        ]
    };
    let act: &[u8] = if expires { b"expire" } else { b"settle" };
    parts
        .flat_map(part)
        .chain([act.to_vec(), id.into()])
        .collect()
}

/// The arguments of `correct.lua` for units that no reservation has recorded: their number, when
/// they were taken, and where they counted then.
pub fn settle_units_arguments(
    plan: &Plan,
    (cost, taken, place): (u64, Nanos, [u8; 8]),
    actual: u64,
) -> Vec<Vec<u8>> {
    let mut estimate = exact(cost).to_le_bytes().to_vec();
    estimate.extend((taken.get() / 1_000).to_le_bytes());
    estimate.extend(place);
    let mut arguments = correct_arguments([(0, plan, actual, false)].into_iter(), false, "");
    arguments.truncate(5);
    arguments.extend([b"units".to_vec(), estimate]);
    arguments
}

/// The command that calls a script: by its SHA, or with its text if the server does not know the
/// script.
pub fn command<K: AsRef<[u8]>, A: AsRef<[u8]>>(
    script: &Script,
    with_text: bool,
    keys: &[K],
    arguments: &[A],
) -> Cmd {
    let mut command = if with_text {
        redis::cmd("EVAL")
    } else {
        redis::cmd("EVALSHA")
    };
    command
        .arg(if with_text { &script.text } else { &script.sha })
        .arg(keys.len());
    for key in keys {
        command.arg(key.as_ref());
    }
    for argument in arguments {
        command.arg(argument.as_ref());
    }
    command
}

/// The value of a key as it was before, or the answers of a log; or why the key has no value of
/// this limit.
pub type Before = Result<Option<Vec<u8>>, StoreError>;

/// The part of a joint decision's reply for a limit: the value of its key as it was before, or the
/// answer of a log; the words of its block, if its rule blocks keys; the tickets in its line, if it
/// has one; and the share of the tenant that asked.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub value: Option<Vec<u8>>,
    pub block: Option<[u64; Penalty::WORDS]>,
    pub line: Option<LineSeen>,
    pub share: Option<ShareSeen>,
}

/// The parts of a reply for these limits. Behind the limits' parts are those of the blocks and
/// lines.
pub fn found<'a>(
    plans: impl ExactSizeIterator<Item = &'a Plan>,
    parts: Vec<Before>,
) -> Result<Vec<Found>, StoreError> {
    found_with(plans, parts, true)
}

/// The parts of a reply of `turn.lua` for these limits, which has none of the lines.
pub fn found_in_turn<'a>(
    plans: impl ExactSizeIterator<Item = &'a Plan>,
    parts: Vec<Before>,
) -> Result<Vec<Found>, StoreError> {
    found_with(plans, parts, false)
}

fn found_with<'a>(
    plans: impl ExactSizeIterator<Item = &'a Plan>,
    parts: Vec<Before>,
    lines: bool,
) -> Result<Vec<Found>, StoreError> {
    let mut values = parts;
    let mut besides = values.split_off(plans.len().min(values.len())).into_iter();
    let found = plans.zip(values).map(|(plan, value)| {
        let block = match plan.penalty() {
            // A kept answer has none if the rule did not block then.
            Some(_) => Some(super::block_words(besides.next().unwrap_or(Ok(None)))?),
            None => None,
        };
        let line = if lines && plan.has_line() {
            Some(super::line_seen(besides.next().unwrap_or(Ok(None)))?)
        } else {
            None
        };
        let share = match plan.tenant() {
            Some(_) => {
                let mut part = || besides.next().unwrap_or(Ok(None));
                Some(super::share_seen(part(), part())?)
            }
            None => None,
        };
        let value = value?;
        Ok(Found {
            value,
            block,
            line,
            share,
        })
    });
    found.collect()
}

/// The meaning of a script's code for a key without a value.
fn without_value(code: u8) -> Option<Before> {
    match code {
        0 => Some(Ok(None)),
        1 => Some(Err(StoreError::WrongType)),
        2 => Some(Err(StoreError::NotOurs)),
        128.. => Some(Err(StoreError::LaterVersion(code - 128))),
        _ => None,
    }
}

/// The server's time in a reply, if it has one.
pub fn time(reply: &Value) -> Option<Nanos> {
    let micros = match reply {
        Value::BulkString(packed) => u64::from_le_bytes(*packed.first_chunk()?),
        Value::Array(parts) => {
            let [seconds, micros, ..] = &parts[..] else {
                return None;
            };
            let number = |value| redis::from_redis_value_ref::<u64>(value).ok();
            number(seconds)?
                .saturating_mul(1_000_000)
                .saturating_add(number(micros)?)
        }
        _ => return None,
    };
    Some(Nanos::from_micros(micros))
}

/// The word with which a script about a reservation replies if it did nothing.
pub fn word(reply: &Value) -> Option<&str> {
    str::from_utf8(word_bytes(reply)?).ok()
}

/// The third part of a reply, if it is a string.
pub fn word_bytes(reply: &Value) -> Option<&[u8]> {
    let Value::Array(parts) = reply else {
        return None;
    };
    let [_, _, Value::BulkString(word)] = &parts[..] else {
        return None;
    };
    Some(word)
}

/// The third part of a reply, if it is a list.
pub fn list(reply: Value) -> Result<Vec<Value>, StoreError> {
    let Value::Array(parts) = reply else {
        return Err(StoreError::BadReply);
    };
    match <[Value; 3]>::try_from(parts) {
        Ok([_, _, Value::Array(list)]) => Ok(list),
        _ => Err(StoreError::BadReply),
    }
}

/// Parses the reply about one key: the server's time, and the key's value.
pub fn parse_one(reply: Value) -> Result<(Nanos, Option<Vec<u8>>), StoreError> {
    let (now, found) = parse(reply, 1)?;
    Ok((now, found.into_iter().next().ok_or(StoreError::BadReply)??))
}

/// Takes the number behind a reply: the cost that was taken of a larger one, or which limit decided.
pub fn pop_number(reply: &mut Value) -> Result<u64, StoreError> {
    let Value::Array(parts) = reply else {
        return Err(StoreError::BadReply);
    };
    let number = parts.pop().ok_or(StoreError::BadReply)?;
    redis::from_redis_value(number).map_err(|_| StoreError::BadReply)
}

/// Parses the server's time and the part for each key.
pub fn parse(reply: Value, keys: usize) -> Result<(Nanos, Vec<Before>), StoreError> {
    if let Value::BulkString(packed) = &reply {
        return unpack(packed, keys).ok_or(StoreError::BadReply);
    }
    let now = time(&reply).ok_or(StoreError::BadReply)?;
    let before = |value| match value {
        Value::BulkString(bytes) => Some(Ok(Some(bytes))),
        Value::Nil | Value::Boolean(false) => Some(Ok(None)),
        Value::Int(code @ 1..) => without_value(u8::try_from(code).ok()?),
        _ => None,
    };
    let found: Option<Vec<Before>> = list(reply)?.into_iter().map(before).collect();
    let found = found
        .filter(|found| found.len() == keys)
        .ok_or(StoreError::BadReply)?;
    Ok((now, found))
}

/// Parses the reply of `value.lua`: the time, the size of a value, a value for each key, and the
/// keys that have none.
fn unpack(packed: &[u8], keys: usize) -> Option<(Nanos, Vec<Before>)> {
    let (now, rest) = packed.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let size = u32::from_le_bytes(*size) as usize;
    let (values, without) = rest.split_at_checked(size.checked_mul(keys)?)?;
    let value = |value: &[u8]| Ok(Some(value.to_vec()));
    let mut found: Vec<Before> = values.chunks_exact(size.max(1)).map(value).collect();
    for entry in without.chunks(5) {
        let [a, b, c, d, why] = *<&[u8; 5]>::try_from(entry).ok()?;
        *found.get_mut(u32::from_le_bytes([a, b, c, d]) as usize)? = without_value(why)?;
    }
    (found.len() == keys).then_some((Nanos::from_micros(u64::from_le_bytes(*now)), found))
}
