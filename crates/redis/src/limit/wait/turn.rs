//! The task of a group: asks for its tickets until there are none.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Decision, DenialReason, Nanos};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    super::{
        Part,
        joint::{by_all, formers_of, of_formers, sums},
        reserve::deadline_of,
    },
    WaitPart,
    grant::SharedGrant,
    lines::{GroupKey, Lines},
};
use crate::{
    SharedDecision, SharedEstimate, SharedLimit, Store, StoreError,
    connection::beside,
    script::{
        Plan,
        call::{self, Front, Turn, TurnReply},
    },
};

/// The longest time between two calls. It is a fifth of the time for which tickets stay.
const RENEW: Duration = Duration::from_secs(1);
/// The time between two calls for permits, whose return has no known time.
const IN_FLIGHT: Duration = Duration::from_millis(100);
/// The first pause while the units are there and it is another server's turn. Later ones are longer.
const OTHERS_TURN: Duration = Duration::from_millis(4);
/// The pause after a call that failed, and how many calls in a row may fail.
const AGAIN: Duration = Duration::from_millis(50);
const TRIES: u32 = 3;

/// The outcome of a call.
enum Turned {
    Taken(u64, SharedGrant),
    /// The cost of the ticket is above the limit at this index.
    TooLarge(u64, (usize, Decision)),
    /// The tickets are not there.
    Lost,
    /// The group's first ticket does not fit before this time; `None` if those in front of it fit,
    /// and may be taken by another server. The number is that of the ticket that is waited for.
    Waits(u64, Option<Duration>),
}

/// Answers all that wait in a group if its task ends early: it has panicked, or its runtime has ended.
struct Unserved<'a> {
    lines: &'a Lines,
    group: &'a GroupKey,
    is_done: bool,
}

impl Drop for Unserved<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.lines.fail(self.group, &StoreError::LineEnded);
        }
    }
}

/// Asks for the tickets of a group until there are none.
pub async fn serve(store: Store, group: GroupKey, keys: Box<[Box<[u8]>]>, wake: Arc<Notify>) {
    let lines = store.lines();
    let mut unserved = Unserved {
        lines,
        group: &group,
        is_done: false,
    };
    let (mut failed, mut again) = (0, None);
    let (mut front, mut pause) = (None, OTHERS_TURN);
    while let Some((turn, now)) = again.take().or_else(|| lines.next_turn(&group)) {
        let (limits, takes) = now();
        let turned = match ask(&store, &limits, &keys, &turn, takes).await {
            Ok(turned) => turned,
            Err(error) => {
                failed += 1;
                if failed == TRIES || error == StoreError::Down || error.is_about_the_key() {
                    lines.fail(&group, &error);
                    unserved.is_done = true;
                    return;
                }
                // The reply may be lost, so the same call is repeated.
                again = Some((turn, now));
                sleep(AGAIN).await;
                continue;
            }
        };
        failed = 0;
        let wait = match turned {
            Turned::Taken(number, grant) => {
                lines.grant(&group, number, grant);
                continue;
            }
            Turned::TooLarge(number, denied) => {
                lines.deny(&group, number, denied);
                continue;
            }
            Turned::Lost => {
                lines.rejoin(&group);
                OTHERS_TURN
            }
            Turned::Waits(number, Some(wait)) => {
                (front, pause) = (Some(number), OTHERS_TURN);
                wait.max(Duration::from_millis(1))
            }
            Turned::Waits(number, None) => {
                // A wake ends a pause early, so there may be any number of them.
                pause = if front == Some(number) {
                    (2 * pause).min(RENEW)
                } else {
                    OTHERS_TURN
                };
                front = Some(number);
                pause
            }
        };
        // An error: the time is over.
        let _ = timeout(wait.min(RENEW), wake.notified()).await;
    }
    unserved.is_done = true;
}

/// Asks for the tickets of a group. If it may take nothing, it only keeps them.
async fn ask(
    store: &Store,
    limits: &[SharedLimit],
    keys: &[Box<[u8]>],
    turn: &Turn,
    takes: bool,
) -> Result<Turned, StoreError> {
    let monitor = &store.batcher().monitor;
    if limits.len() != keys.len() {
        return Err(StoreError::LineEnded);
    }
    let part = |(limit, key)| Part {
        limit,
        key,
        cost: 0,
    };
    let keys = keys.iter().map(|key| &key[..]);
    let parts: Vec<Part<'_>> = limits.iter().zip(keys).map(part).collect();
    let deadline = deadline_of(parts.iter().map(|part| part.limit));
    let formers = formers_of(&parts, deadline).await?;
    let mut requests: Vec<_> = parts
        .iter()
        .map(|part| part.limit.request(part.key, 0))
        .collect();
    let mut line_of: Vec<usize> = (0..parts.len()).collect();
    for (at, (part, formers)) in parts.iter().zip(&formers).enumerate() {
        requests.extend(of_formers(formers, &part.state_key(), 0));
        line_of.resize(requests.len(), at);
    }
    let (sums, states) = sums(&requests)?;
    let slot = |key: &[u8]| monitor.slot(key);
    if sums.iter().any(|sum| slot(sum.key) != slot(sums[0].key)) {
        return Err(StoreError::CrossSlot);
    }
    let plans = || sums.iter().map(|sum| sum.plan);
    let is_cluster = monitor.is_cluster();
    let blocks = sums
        .iter()
        .filter_map(|sum| sum.plan.block_key(sum.key, is_cluster));
    let mut keys: Vec<Vec<u8>> = sums.iter().map(|sum| sum.key.to_vec()).collect();
    keys.extend(blocks);
    let asked = keys.len();
    let text = format!("{}:turn:", monitor.runner.connector.prefix());
    let answer = beside(&keys[0], &text, &format!("{:016x}", turn.id));
    keys.extend(parts.iter().map(|part| part.limit.line_key(part.key)));
    keys.push(answer);
    let shard = monitor.shard_of(&keys[0]);
    monitor.admit(shard)?;
    let of_lines = sums.iter().map(|sum| (sum.plan, line_of[sum.first]));
    let arguments = call::turn_arguments(of_lines, turn, takes);
    let script = &store.batcher().scripts.turn;
    let reply = monitor
        .call(shard, script, &keys, &arguments, deadline, true)
        .await;
    if let Err(error) = &reply {
        monitor.counters().error(error);
    }
    let reply = call::turn_reply(reply?, turn.number, parts.len(), asked)?;
    let (fronts, now, values) = match reply {
        TurnReply::Empty | TurnReply::Lost => return Ok(Turned::Lost),
        TurnReply::Fronts(fronts, now, values) => (fronts, now, values),
    };
    let found = call::found_in_turn(plans(), values)?;
    let decide = |(&(at, _), &line): (&(usize, u64), &usize)| {
        let front = &fronts[line];
        let asked = (front.cost, front.is_taken);
        sums[at].plan.decision_on(&found[at], now, asked)
    };
    let decided = states.iter().zip(&line_of).map(decide);
    let decided = decided.collect::<Result<Vec<_>, _>>()?;
    let decisions: Vec<_> = decided.iter().map(|(decision, _)| *decision).collect();
    let decisions = by_all(&decisions, &formers).ok_or(StoreError::BadReply)?;
    let first = fronts.first().ok_or(StoreError::BadReply)?;
    if first.is_taken {
        monitor.decided(&Ok(()));
        // An admission holds, also if the rule has changed since.
        let admitted = |decision: &Decision| {
            SharedDecision::by_store(if decision.is_denied() {
                Decision::allow(decision.standing())
            } else {
                *decision
            })
        };
        let taken = |at: usize| {
            let ((own, seen), (state, _)) = (&decided[at], states[at]);
            let cost = fronts[at].cost;
            let estimate = SharedEstimate::of(&admitted(own), cost, *seen, sums[state].plan);
            (admitted(&decisions[at]), estimate)
        };
        let owned = parts.iter().zip(&fronts).map(|(part, front)| WaitPart {
            limit: part.limit.clone(),
            key: part.key.to_vec(),
            cost: front.cost,
        });
        let grant = SharedGrant::new(owned.collect(), (0..parts.len()).map(taken).unzip());
        return Ok(Turned::Taken(first.number, grant));
    }
    let lines = fronts.iter().zip(&decisions);
    let too_large = lines
        .clone()
        .position(|(front, decision)| front.is_own && decision.exceeds_limit());
    if let Some(at) = too_large {
        return Ok(Turned::TooLarge(fronts[at].number, (at, decisions[at])));
    }
    let waits = lines.zip(&states).filter_map(|(line, &(state, _))| {
        let value = found[state].value.as_deref();
        wait_of(sums[state].plan, value, now, line)
    });
    let wait = waits.max();
    let other = fronts.iter().find(|front| !front.is_own);
    // If all are its own and fit, a block or a change of the rules has to end before.
    let wait = if other.is_none() {
        wait.or(Some(RENEW))
    } else {
        wait
    };
    Ok(Turned::Waits(other.unwrap_or(first).number, wait))
}

/// The earliest time at which a ticket of the group that asks can fit; `None` if the line's first
/// ticket fits now.
fn wait_of(
    plan: &Plan,
    value: Option<&[u8]>,
    now: Nanos,
    (front, decision): (&Front, &Decision),
) -> Option<Duration> {
    if !decision.is_denied() {
        return None;
    }
    if decision.reason() == Some(DenialReason::InFlight) {
        return Some(IN_FLIGHT);
    }
    let own = decision.retry_after().unwrap_or(RENEW);
    let ahead = plan.wait_of(value, now, front.ahead.max(front.cost));
    Some(if front.is_own {
        own
    } else {
        ahead.map_or(own, |ahead| own.max(ahead.into()))
    })
}
