//! The task of a line: asks for its tickets until there are none.

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
    },
    grant::Grant,
    lines::Lines,
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
    Taken(u64, Grant),
    /// The cost of the ticket is above the limit.
    TooLarge(u64, Decision),
    /// The tickets are not there.
    Lost,
    /// The first ticket does not fit before this time; `None` if it fits, and may be taken by another
    /// server.
    Waits(u64, Option<Duration>),
}

/// Answers all that wait in a line if its task ends early: it has panicked, or its runtime has ended.
struct Unserved<'a> {
    lines: &'a Lines,
    line: &'a [u8],
    is_done: bool,
}

impl Drop for Unserved<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.lines.fail(self.line, &StoreError::LineEnded);
        }
    }
}

/// Asks for the tickets of a line until there are none.
pub async fn serve(store: Store, line: Arc<[u8]>, key: Box<[u8]>, wake: Arc<Notify>) {
    let lines = store.lines();
    let mut unserved = Unserved {
        lines,
        line: &line,
        is_done: false,
    };
    let (mut failed, mut again) = (0, None);
    let (mut front, mut pause) = (None, OTHERS_TURN);
    while let Some((turn, now)) = again.take().or_else(|| lines.next_turn(&line)) {
        let (limit, takes) = now();
        let turned = match ask(&limit, &key, &turn, takes).await {
            Ok(turned) => turned,
            Err(error) => {
                failed += 1;
                if failed == TRIES || error == StoreError::Down || error.is_about_the_key() {
                    lines.fail(&line, &error);
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
                lines.grant(&line, number, grant);
                continue;
            }
            Turned::TooLarge(number, decision) => {
                lines.deny(&line, number, decision);
                continue;
            }
            Turned::Lost => {
                lines.rejoin(&line);
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

/// Asks for the tickets of a line. If it may take nothing, it only keeps them.
async fn ask(
    limit: &SharedLimit,
    key: &[u8],
    turn: &Turn,
    takes: bool,
) -> Result<Turned, StoreError> {
    let store = limit.store();
    let monitor = &store.batcher().monitor;
    let deadline = limit.deadline();
    let part = Part {
        limit,
        key,
        cost: 0,
    };
    let formers = formers_of(&[part], deadline).await?;
    let own = limit.request(key, 0);
    let requests: Vec<_> = [own]
        .into_iter()
        .chain(of_formers(&formers[0], &key, 0))
        .collect();
    let (sums, costs) = sums(&requests)?;
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
    keys.extend([limit.line_key(key), answer]);
    let shard = monitor.shard_of(&keys[0]);
    monitor.admit(shard)?;
    let arguments = call::turn_arguments(plans(), turn, takes);
    let script = &store.batcher().scripts.turn;
    let reply = monitor
        .call(shard, script, &keys, &arguments, deadline, true)
        .await;
    if let Err(error) = &reply {
        monitor.counters().error(error);
    }
    let (front, now, values) = match call::turn_reply(reply?, turn.number, asked)? {
        TurnReply::Empty | TurnReply::Lost => return Ok(Turned::Lost),
        TurnReply::Front(front, now, values) => (front, now, values),
    };
    let found = call::found_in_turn(plans(), values)?;
    let decide = |&(at, _): &(usize, u64)| {
        let asked = (front.cost, front.is_taken);
        sums[at].plan.decision_on(&found[at], now, asked)
    };
    let decided = costs.iter().map(decide).collect::<Result<Vec<_>, _>>()?;
    let decisions: Vec<_> = decided.iter().map(|(decision, _)| *decision).collect();
    let decision = by_all(&decisions, &formers).and_then(|decisions| decisions.first().copied());
    let decision = decision.ok_or(StoreError::BadReply)?;
    if front.is_taken {
        // An admission holds, also if the rule has changed since.
        let decision = if decision.is_denied() {
            Decision::allow(decision.standing())
        } else {
            decision
        };
        let answer = SharedDecision::by_store(decision);
        monitor.decided(&Ok(()));
        let estimate = if formers[0].is_empty() {
            SharedEstimate::of(&answer, front.cost, decided[0].1, sums[0].plan)
        } else {
            SharedEstimate::unknown(front.cost)
        };
        let grant = Grant::new(limit.clone(), key.to_vec(), (answer, estimate));
        return Ok(Turned::Taken(front.number, grant));
    }
    if front.is_own && decision.exceeds_limit() {
        return Ok(Turned::TooLarge(front.number, decision));
    }
    let wait = wait_of(
        sums[0].plan,
        found[0].value.as_deref(),
        now,
        (&front, &decision),
    );
    // It fits, but not before a block or a change of the rules ends.
    let wait = if front.is_own {
        wait.or(Some(RENEW))
    } else {
        wait
    };
    Ok(Turned::Waits(front.number, wait))
}

/// The earliest time at which a ticket of the line that asks can fit; `None` if the first of all
/// lines fits now.
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
