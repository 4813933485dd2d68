//! Waiting for several limits together.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
};

use tidegate_core::{Admission, Decision, DenialReason, Estimate, Nanos, Priority};

use crate::{
    AllDecision, Full, Request, Timer, WaitError, WaitUntil, acquire_all_estimates_at,
    joint::{Few, States, with_all},
    wait::{CALL, Ticket, Wakes, wait},
};

/// How long a caller keeps the front of lines for permits of another limit, which may be returned
/// at any time, and how long it then lets others pass.
const HOPE: Nanos = Nanos::from_secs(1);

/// Why a wait for several limits ended without admission.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaitAllError {
    /// A limit can never admit its cost.
    #[error("waiting cannot make room for one of the costs")]
    Never(Box<AllDecision>),
    /// The binding limit would admit its cost only after the deadline. Returned as soon as that is
    /// known.
    #[error("a limit has room only after the deadline")]
    Deadline(Box<AllDecision>),
    /// A limiter is too small to hold all requested keys at the same time.
    #[error(transparent)]
    Full(#[from] Full),
}

impl WaitAllError {
    /// The decision that ended the wait, unless the keys had no room.
    #[must_use]
    pub fn decision(&self) -> Option<&AllDecision> {
        match self {
            Self::Never(all) | Self::Deadline(all) => Some(all),
            Self::Full(_) => None,
        }
    }
}

/// Waits until all requests are admitted in one step. Until then nothing is taken. Dropping the
/// future gives up the places in line.
///
/// The caller gets a place in the line of each limit at once. It holds up the callers behind it
/// only in lines whose units are due no earlier than those of its other limits: a caller that waits
/// for an hour because of its key does not delay others. Of two callers of the same
/// [`Priority`] that wait for the same limits, the one that came first is served first. A caller has
/// one priority, and the same place in the order of all its lines.
///
/// Callers that wait go before callers that do not: [`acquire`](crate::Limiter::acquire) and
/// [`acquire_all`](crate::acquire_all) are denied as long as a caller waits for the limit. So a
/// caller with a large cost is served although callers with small costs keep asking. A program
/// whose callers must share a limit evenly lets all of them wait.
///
/// It is unknown when permits of a [concurrency](tidegate_core::Policy::concurrency) limit are
/// returned. A caller that has room in its other limits keeps their lines waiting for a second at a
/// time, and lets others pass for a second in between.
///
/// ```
/// # use tidegate_limiter as tidegate;
/// use tidegate::{KeyedLimiter, Limiter, Policy, Quota, Request, wait_all};
/// # async fn call() -> Result<(), Box<dyn std::error::Error>> {
/// let in_all = Limiter::new(Policy::token_bucket(Quota::per_second(1_000)));
/// let per_client = KeyedLimiter::new(Policy::sliding_window(Quota::per_minute(60)))?;
/// let _ = wait_all(&[Request::unkeyed(&in_all, 1), Request::keyed(&per_client, b"alice", 1)], None).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// If waiting cannot help, or the limits would not admit by the deadline; both are returned as soon
/// as they are known. [`Full`] as for [`acquire_all`](crate::acquire_all).
///
/// # Panics
/// If the policy of a request has another algorithm than its limiter, or states of another width.
pub async fn wait_all<T: Timer>(
    requests: &[Request<'_, T>],
    until: impl Into<WaitUntil>,
) -> Result<AllDecision, WaitAllError> {
    Ok(wait_all_estimates(requests, until).await?.0)
}

/// [`wait_all`] for units that may return. The second value is what each request has taken, for
/// [`LimiterAt::settle`](crate::LimiterAt::settle) and [`KeyedAt::settle`](crate::KeyedAt::settle).
///
/// # Errors
/// The same as [`wait_all`].
///
/// # Panics
/// As [`wait_all`].
pub async fn wait_all_estimates<T: Timer>(
    requests: &[Request<'_, T>],
    until: impl Into<WaitUntil>,
) -> Result<(AllDecision, Vec<Estimate>), WaitAllError> {
    match requests.first().map(Request::clock) {
        Some(timer) => wait_all_estimates_by(timer, requests, until).await,
        None => Ok((AllDecision::new(Few::new()), Vec::new())),
    }
}

/// [`wait_all_estimates`] by a timer that is not the limiters' own clock, for limiters whose times
/// are arguments. All operations on the limiters need times of this timer.
///
/// # Errors
/// The same as [`wait_all`].
///
/// # Panics
/// As [`wait_all`].
pub async fn wait_all_estimates_by<C: ?Sized, T: Timer>(
    timer: &T,
    requests: &[Request<'_, C>],
    until: impl Into<WaitUntil>,
) -> Result<(AllDecision, Vec<Estimate>), WaitAllError> {
    let until = until.into();
    match requests {
        // The line of one request sees to its time, so the future needs no timer.
        [
            Request::Keyed {
                limiter,
                key,
                cost,
                policy: None,
            },
        ] => of_one(limiter.wait_estimate_by(timer, *key, *cost, until).await),
        [Request::Unkeyed { limiter, cost }] => of_one(
            wait(*limiter, *cost, until, timer, |admission, taken| {
                (admission, taken)
            })
            .await,
        ),
        // Boxed, because this future is larger.
        _ => Box::pin(wait_for_several(timer, requests, until)).await,
    }
}

/// The outcome of a wait for one limit as that of several.
fn of_one(
    waited: Result<(Admission, Estimate), WaitError>,
) -> Result<(AllDecision, Vec<Estimate>), WaitAllError> {
    let all = |decision| AllDecision::new(std::iter::once(decision).collect());
    match waited {
        Ok((admission, taken)) => Ok((all(*admission), vec![taken])),
        Err(WaitError::Never(denied)) => Err(WaitAllError::Never(Box::new(all(denied)))),
        Err(WaitError::Deadline(denied)) => Err(WaitAllError::Deadline(Box::new(all(denied)))),
    }
}

async fn wait_for_several<C: ?Sized, T: Timer>(
    timer: &T,
    requests: &[Request<'_, C>],
    WaitUntil { deadline, priority }: WaitUntil,
) -> Result<(AllDecision, Vec<Estimate>), WaitAllError> {
    let began = timer.now();
    let mut places = Places {
        timer,
        requests,
        priority,
        tickets: Few::new(),
    };
    loop {
        let now = timer.now();
        let Looked {
            all,
            taken,
            next,
            hopes,
        } = places.look(now, began)?;
        if all.is_allowed() {
            drop(places);
            return start(timer, requests, all, taken, now, deadline).await;
        }
        let Some(binding) = all.binding() else {
            return Ok((all, Vec::new()));
        };
        let is_hoped = |at: usize| hopes.get(at) == Some(&Hope::Return);
        if binding.retry_after().is_none() && !all.bound().is_some_and(is_hoped)
            || hopes.contains(&Hope::Never)
        {
            return Err(WaitAllError::Never(Box::new(all)));
        }
        let wait = known_wait(&hopes, &all);
        if deadline.is_some_and(|deadline| now >= deadline || now.saturating_add(wait) > deadline) {
            return Err(WaitAllError::Deadline(Box::new(all)));
        }
        let until = deadline.map_or(next, |deadline| deadline.min(next));
        let sleep = (until < Nanos::MAX).then(|| timer.sleep_until(until));
        places.sleep(pin!(sleep).as_pin_mut()).await;
    }
}

/// The outcome of one step for all requests.
struct Looked {
    all: AllDecision,
    taken: Few<Estimate>,
    /// When to look again at the latest.
    next: Nanos,
    /// The hope of each request, if not all are admitted. The policies may be others by now.
    hopes: Few<Hope>,
}

/// Something that may make room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hope {
    /// Time.
    Time,
    /// The return of permits, at any time.
    Return,
    /// Nothing: the cost is above all that is ever admitted.
    Never,
}

impl Hope {
    fn of<C: ?Sized>(
        request: &Request<'_, C>,
        states: &mut States<'_, '_, C>,
        at: usize,
        decision: &Decision,
    ) -> Self {
        let policy = states.policy(at);
        if request.cost() > request.own_policy().unwrap_or(policy).highest_cost() {
            return Self::Never;
        }
        match decision.reason() {
            // A permit that returns does not end these.
            Some(DenialReason::Blocked | DenialReason::TableFull) => Self::Time,
            _ if policy.is_concurrency() => Self::Return,
            _ => Self::Time,
        }
    }
}

/// How long the limits deny at least. Permits may be returned at any time before their holds end.
fn known_wait(hopes: &[Hope], all: &AllDecision) -> Nanos {
    let each = hopes.iter().zip(all.decisions());
    let waits = each.filter(|(hope, _)| **hope != Hope::Return);
    waits
        .filter_map(|(_, decision)| decision.retry_after())
        .max()
        .map_or(Nanos::ZERO, Nanos::from)
}

/// Waits for a leaky bucket's delay. A future that is dropped during the delay returns everything,
/// but for the leaky buckets' units that others have queued behind.
async fn start<C: ?Sized, T: Timer>(
    timer: &T,
    requests: &[Request<'_, C>],
    all: AllDecision,
    taken: Few<Estimate>,
    now: Nanos,
    deadline: Option<Nanos>,
) -> Result<(AllDecision, Vec<Estimate>), WaitAllError> {
    let delay = all
        .decisions()
        .iter()
        .map(Decision::delay)
        .max()
        .unwrap_or_default();
    if delay.is_zero() {
        return Ok((all, taken.into_vec()));
    }
    let mut held = Held {
        timer,
        requests,
        taken,
    };
    let start = now.saturating_add(delay.into());
    if deadline.is_some_and(|deadline| start > deadline) {
        return Err(WaitAllError::Deadline(Box::new(all)));
    }
    timer.sleep_until(start).await;
    Ok((all, std::mem::take(&mut held.taken).into_vec()))
}

/// Units that are returned when this is dropped.
struct Held<'a, C: ?Sized, T: Timer> {
    timer: &'a T,
    requests: &'a [Request<'a, C>],
    taken: Few<Estimate>,
}

impl<C: ?Sized, T: Timer> Drop for Held<'_, C, T> {
    fn drop(&mut self) {
        for (request, taken) in self.requests.iter().zip(self.taken.drain(..)) {
            let now = self.timer.now();
            match request {
                _ if taken.cost == 0 => {}
                Request::Keyed { limiter, key, .. } => {
                    limiter.settle_tag(limiter.tag(key), taken, 0, now);
                }
                Request::Unkeyed { limiter, .. } => limiter.at(now).settle(taken, 0),
            }
        }
    }
}

/// A caller's places in the lines of its limits.
struct Places<'a, C: ?Sized, T: Timer> {
    timer: &'a T,
    requests: &'a [Request<'a, C>],
    priority: Priority,
    /// For each request; `None` if an earlier request has the same state, or the key has no room.
    /// Empty before the first denial.
    tickets: Few<Option<Arc<Ticket>>>,
}

impl<C: ?Sized, T: Timer> Places<'_, C, T> {
    /// Decides on all limits, and takes them if all admit. Otherwise it orders the places, and
    /// returns when to look again at the latest.
    fn look(&mut self, now: Nanos, began: Nanos) -> Result<Looked, Full> {
        let Self {
            timer,
            requests,
            priority,
            tickets,
        } = self;
        let mut has_entered = !tickets.is_empty();
        if !has_entered {
            let (all, taken) = acquire_all_estimates_at(requests, now)?;
            if all.is_allowed() {
                return Ok(Looked {
                    all,
                    taken: taken.into(),
                    next: now,
                    hopes: Few::new(),
                });
            }
            requests
                .iter()
                .filter_map(Request::key)
                .for_each(|(limiter, tag)| limiter.announce_line(tag));
        }
        let looked = with_all(requests, now, true, |states, blocked, wakes| {
            let (mut decisions, mut taken) = states.decide_and_note(blocked, tickets, now, wakes);
            if !std::mem::replace(&mut has_entered, true) {
                let is_denied = decisions.iter().any(Decision::is_denied);
                let arrived = is_denied.then(|| (arrival(requests, states, now), *priority));
                *tickets = (0..requests.len())
                    .map(|at| enter(*timer, requests, states, at, arrived, now))
                    .collect();
                if is_denied {
                    // At its places there may be room.
                    (decisions, taken) = states.decide_at_places(blocked, tickets, now, wakes);
                }
            }
            let mut hopes = Few::new();
            let mut next = now;
            if decisions.iter().any(Decision::is_denied) {
                let each = requests.iter().zip(&decisions).enumerate();
                hopes.extend(
                    each.map(|(at, (request, decision))| Hope::of(request, states, at, decision)),
                );
                next = order(states, tickets, &decisions, (now, began), wakes);
            }
            Looked {
                all: AllDecision::new(decisions),
                taken,
                next,
                hopes,
            }
        });
        if looked.is_err() && tickets.is_empty() {
            requests
                .iter()
                .filter_map(Request::key)
                .for_each(|(limiter, tag)| limiter.withdraw_line(tag));
        }
        looked
    }

    /// Completes when the caller must look again.
    async fn sleep<F: Future<Output = ()>>(&self, mut timer: Option<Pin<&mut F>>) {
        let mut was_asleep = false;
        poll_fn(move |cx| {
            let mut called = false;
            for ticket in self.tickets.iter().flatten() {
                called |= ticket.poll_called(was_asleep, cx.waker()).is_ready();
            }
            was_asleep = true;
            match &mut timer {
                _ if called => Poll::Ready(()),
                Some(timer) => timer.as_mut().poll(cx),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

impl<C: ?Sized, T: Timer> Drop for Places<'_, C, T> {
    fn drop(&mut self) {
        for (request, ticket) in self.requests.iter().zip(&self.tickets) {
            let Some(ticket) = ticket else { continue };
            match request {
                Request::Keyed { limiter, key, .. } => {
                    limiter.leave_line(limiter.tag(key), ticket, self.timer.now());
                }
                Request::Unkeyed { limiter, .. } => limiter.leave_line(ticket, self.timer.now()),
            }
        }
    }
}

/// When a caller comes, no earlier than the callers in any of its lines.
fn arrival<C: ?Sized>(
    requests: &[Request<'_, C>],
    states: &mut States<'_, '_, C>,
    now: Nanos,
) -> Nanos {
    let arrived = (0..requests.len())
        .filter_map(|at| states.on_line(at, false, now, |line, _| line.arrive(now)));
    arrived.fold(now, Nanos::max)
}

/// A place in the line of a request, unless an earlier one has it or the caller needs none.
fn enter<C: ?Sized>(
    timer: &impl Timer,
    requests: &[Request<'_, C>],
    states: &mut States<'_, '_, C>,
    at: usize,
    arrived: Option<(Nanos, Priority)>,
    now: Nanos,
) -> Option<Arc<Ticket>> {
    let cost = (0..requests.len())
        .filter(|&other| states.of_state(other).first == at)
        .fold(0, |sum: u64, other| {
            sum.saturating_add(requests[other].cost())
        });
    let arrived = arrived.filter(|_| cost > 0);
    // Without a step, the announcement of the line would stay.
    let entered = states.on_line(at, true, now, |line, _| {
        arrived.map(|arrived| line.enter(cost, arrived, timer))
    });
    if entered.is_none()
        && let Some((limiter, tag)) = requests[at].key()
    {
        limiter.withdraw_line(tag);
    }
    entered.flatten()
}

/// Lets the caller keep its place in the lines whose units are due last, and lets others pass in
/// the rest. Returns when that changes if nothing else happens.
fn order<C: ?Sized>(
    states: &mut States<'_, '_, C>,
    tickets: &[Option<Arc<Ticket>>],
    decisions: &[Decision],
    (now, began): (Nanos, Nanos),
    wakes: &mut Wakes,
) -> Nanos {
    let hopes = now.saturating_since(began).get() / HOPE.get();
    let in_hope = Nanos::new(began.get() + (hopes + 1) * HOPE.get());
    let dues: Few<Nanos> = (0..tickets.len())
        .map(|at| {
            let denied_until = decisions[at]
                .retry_after()
                .map_or(now, |wait| now.saturating_add(wait.into()));
            let Some(ticket) = &tickets[at] else {
                return denied_until;
            };
            let due = states.on_line(at, false, now, |line, ground| line.due_of(ground, ticket));
            // Permits may be returned at any time.
            let is_in_flight = states.policy(at).is_concurrency();
            let due = if is_in_flight && due.is_some_and(|due| due > now) {
                Some(Nanos::MAX)
            } else {
                due
            };
            match due {
                Some(Nanos::MAX) if hopes.is_multiple_of(2) => now,
                Some(Nanos::MAX) => in_hope,
                due => denied_until.max(due.unwrap_or(now)).max(now),
            }
        })
        .collect();
    let is_hoped = |at: usize| decisions[at].is_denied() && dues[at] == now;
    let last = dues.iter().copied().max().unwrap_or(now);
    let mut next = if last > now { last } else { in_hope };
    for (at, ticket) in tickets.iter().enumerate() {
        let Some(ticket) = ticket else { continue };
        let needs = dues[at].saturating_since(now);
        let placed_at = Nanos::new(last.get().saturating_sub(needs.get()));
        let stays = placed_at <= now || is_hoped(at);
        if !stays {
            next = next.min(placed_at);
        }
        let until = stays.then(|| {
            last.max(if last > now { last } else { in_hope })
                .saturating_add(CALL)
        });
        states.on_line(at, false, now, |line, ground| {
            line.place(ground, ticket, until, wakes);
        });
    }
    next
}
