//! Every order in which threads settle, extend, cancel and expire a reservation, take units next to
//! it, and copy all states to a file, with the real service: a thread pauses wherever another one
//! may come in between. Each guard can be left out, and is then missed.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    mem,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::FutureExt;
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_limiter::{HashKeys, SnapshotEntry};

use super::{Ask, Ending, Estimate, Id, NewId, Part, Service};
use crate::{
    decide::{
        limits::{Act, Limits},
        throttle::Throttle,
    },
    rules,
};

const START: Nanos = Nanos::from_secs(1_800_000_000);
/// Shorter than a reservation is remembered after its end.
const TTL: Nanos = Nanos::from_secs(10);
const LIMIT: u64 = 100;
/// The units of the reservation, of an extension, and of the other callers before it.
const HELD: u64 = 30;
const MORE: u64 = 5;
const OTHERS: u64 = 20;

thread_local! { static EXPLORES: Cell<bool> = const { Cell::new(false) }; }

/// Lets another thread come in between, while a test explores.
pub(super) async fn pause() {
    let mut has_paused = !EXPLORES.get();
    poll_fn(|_| {
        if mem::replace(&mut has_paused, true) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Settle(u64),
    Cancel,
    Extend,
    /// The time passes, and the server ends what has expired.
    Expire,
    /// A caller takes 30 units without a reservation.
    Take,
    /// A caller makes another reservation of 30 units, of which the server keeps no third.
    Reserve,
    /// The server copies its states.
    Save,
}

use Step::{Cancel, Expire, Extend, Reserve, Save, Settle, Take};

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// The cost, if it was the first settlement.
    Settled(Option<u64>),
    Extended(bool),
    Taken(u64),
    Expired,
    Saved,
}

/// A part of the code that the model can leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    /// A settlement ends the reservation before it corrects the limits.
    EndsFirst,
    /// A late settlement returns nothing that was released.
    Late,
    /// An extension of a reservation that has ended is returned.
    Extension,
    /// What the server has no room for is returned.
    Room,
    /// The reservations are looked at once more after the states.
    SeenAgain,
}

struct Simulation {
    service: Service,
    clock: Arc<ManualTimer>,
    /// Each order has another, so that a service can serve them all.
    key: Vec<u8>,
    id: Id,
    is_released: bool,
    /// Units that were taken next to the reservation.
    taken: Cell<u64>,
    copy: RefCell<Option<SavedStates>>,
    without: Option<Guard>,
}

#[derive(Default)]
struct SavedStates {
    reservations: Vec<(String, Nanos)>,
    limits: Vec<(usize, SnapshotEntry)>,
}

fn service(on_expiry: &str, clock: &Arc<ManualTimer>) -> Service {
    let rules = format!(
        "limits:\n  - {{name: tokens, limit: {LIMIT}/1h, algorithm: fixed-window, on_expiry: {on_expiry}}}\n  \
         - {{name: in-flight, limit: 5, algorithm: concurrency}}\n"
    );
    let hash = |_: &str| Some(HashKeys::from_seeds(1, 2));
    let limits = Limits::new(rules::parse(&rules).unwrap(), 1 << 15, hash, START).unwrap();
    Service::new(
        limits,
        Throttle::new(4, None).unwrap(),
        Arc::clone(clock) as _,
    )
}

impl Simulation {
    fn new(service: Service, clock: &Arc<ManualTimer>, number: usize) -> Self {
        clock.set(START);
        let (service, key) = (service.with_reservations(2), number.to_le_bytes().to_vec());
        for (limit, cost) in [(&b"tokens"[..], OTHERS), (b"in-flight", 1)] {
            let ask = Ask {
                limit,
                key: Some(&key),
                cost,
            };
            let answer = service
                .decide(ask, Act::Take, START)
                .now_or_never()
                .unwrap()
                .unwrap();
            assert!(answer.decision.is_allowed());
        }
        let reserved = service
            .reserve(None, &asks(&key, HELD, 1), TTL, START)
            .now_or_never()
            .unwrap();
        let id = reserved.ok().and_then(|(_, id)| id).unwrap();
        let (is_released, taken) = (false, Cell::new(OTHERS));
        Self {
            service,
            clock: Arc::clone(clock),
            key,
            id,
            is_released,
            taken,
            copy: RefCell::default(),
            without: None,
        }
    }

    /// The units and the permits in use.
    fn used(&self) -> [u64; 2] {
        used(&self.service, &self.key)
    }

    async fn step(&self, step: Step) -> Outcome {
        let (service, now) = (&self.service, self.service.now());
        match step {
            Settle(cost) => self.settle(Some(cost)).await,
            Cancel => self.settle(None).await,
            Extend if self.without == Some(Guard::Extension) => {
                let joint = service
                    .acquire_all(&asks(&self.key, MORE, 0), now)
                    .await
                    .ok()
                    .unwrap();
                let parts = service.reservations.parts(self.id).unwrap();
                let more = parts.into_iter().zip([MORE, 0]).map(|(part, cost)| Part {
                    taken: Estimate {
                        cost,
                        taken: now,
                        place: 0,
                    }
                    .into(),
                    ..part
                });
                let more: Vec<_> = more.collect();
                pause().await;
                let is_kept =
                    joint.is_allowed() && service.reservations.extend(self.id, &more, now).is_ok();
                Outcome::Extended(is_kept)
            }
            Extend => {
                let answer = service.extend(self.id, &[MORE, 0], now).await;
                Outcome::Extended(answer.is_ok_and(|joint| joint.is_allowed()))
            }
            Expire => {
                self.clock.set(START.saturating_add(TTL));
                pause().await;
                service.expire_reservations(false).await;
                Outcome::Expired
            }
            Take => {
                let ask = Ask {
                    limit: b"tokens",
                    key: Some(&self.key),
                    cost: HELD,
                };
                let answer = service.decide(ask, Act::Take, now).await.ok().unwrap();
                self.took(answer.decision.is_allowed())
            }
            Reserve if self.without == Some(Guard::Room) => {
                let joint = service
                    .acquire_all(&asks(&self.key, HELD, 0), now)
                    .await
                    .ok()
                    .unwrap();
                pause().await;
                let is_made = service
                    .reservations
                    .add::<&str, &[u8]>(NewId::Random, &[], Nanos::from_secs(3_000), now)
                    .is_ok();
                self.took(joint.is_allowed() && is_made)
            }
            Reserve => {
                let answer = service
                    .reserve(
                        None,
                        &asks(&self.key, HELD, 0),
                        Nanos::from_secs(3_000),
                        now,
                    )
                    .await;
                self.took(answer.is_ok_and(|(_, id)| id.is_some()))
            }
            Save => {
                self.copy().await;
                Outcome::Saved
            }
        }
    }

    fn took(&self, is_allowed: bool) -> Outcome {
        let units = if is_allowed { HELD } else { 0 };
        self.taken.set(self.taken.get() + units);
        Outcome::Taken(units)
    }

    async fn settle(&self, cost: Option<u64>) -> Outcome {
        let (service, now) = (&self.service, self.service.now());
        let costs = cost.map(|cost| [cost, 0]);
        let costs = costs.as_ref().map(<[u64; 2]>::as_slice);
        let is_first = match self.without {
            Some(Guard::EndsFirst) => {
                let parts = service.reservations.parts(self.id).unwrap();
                let is_open = !parts.is_empty();
                pause().await;
                service.settle_parts(parts, costs, now);
                let _ = service.reservations.end(self.id, None, now);
                is_open
            }
            Some(Guard::Late) => {
                let ending = service
                    .reservations
                    .end(self.id, costs.map(<[u64]>::len), now)
                    .unwrap();
                pause().await;
                let is_first = ending.is_some();
                service.settle_parts(
                    ending.map(|Ending { parts, .. }| parts).unwrap_or_default(),
                    costs,
                    now,
                );
                is_first
            }
            _ => service.settle(self.id, costs, now).await.unwrap(),
        };
        Outcome::Settled(is_first.then(|| cost.unwrap_or(0)))
    }

    /// In the order of the state file.
    async fn copy(&self) {
        let (service, now) = (&self.service, self.service.now());
        let mut copy = SavedStates::default();
        let seen = service.reservations.seen();
        let texts = |seen| service.reservation_texts(seen).collect();
        let at_once =
            (self.without == Some(Guard::SeenAgain)).then(|| texts(service.reservations.seen()));
        pause().await;
        for (at, limit) in service.limits().limits().to_vec().iter().enumerate() {
            limit.while_unchanged(|rules| {
                limit.snapshot(rules, now, |entry| copy.limits.push((at, entry)));
            });
            pause().await;
        }
        copy.reservations = at_once.unwrap_or_else(|| texts(seen));
        self.copy.replace(Some(copy));
    }

    /// The promises that hold at each moment.
    fn check(&self) -> Result<(), String> {
        let used = self.used()[0];
        let is_open = self.service.now() == START
            && self
                .service
                .reservations
                .parts(self.id)
                .is_ok_and(|parts| !parts.is_empty());
        let least = self.taken.get() + if is_open { HELD } else { 0 };
        if used < least {
            Err(format!("{used} units count, not {least}"))
        } else {
            Ok(())
        }
    }

    /// The promises that hold when all threads have ended.
    fn check_end(&self, outcomes: &[Outcome]) -> Result<(), String> {
        let settlements = outcomes
            .iter()
            .filter(|outcome| matches!(outcome, Outcome::Settled(_)))
            .count();
        let counted: Vec<u64> = outcomes
            .iter()
            .filter_map(|outcome| {
                if let Outcome::Settled(cost) = outcome {
                    *cost
                } else {
                    None
                }
            })
            .collect();
        if counted.len() != settlements.min(1) {
            return Err(format!(
                "{} of {settlements} settlements count",
                counted.len()
            ));
        }
        let extended = outcomes
            .iter()
            .filter(|outcome| **outcome == Outcome::Extended(true))
            .count() as u64;
        let has_expired = outcomes.contains(&Outcome::Expired);
        let held = match counted.first() {
            Some(&cost) => cost,
            None if has_expired && self.is_released => 0,
            None => HELD + MORE * extended,
        };
        let permits = u64::from(counted.is_empty() && !has_expired);
        let (used, expected) = (
            self.used(),
            [(self.taken.get() + held).min(LIMIT), 1 + permits],
        );
        if used != expected {
            return Err(format!(
                "{used:?} units and permits count, not {expected:?}"
            ));
        }
        self.check_restored()
    }

    /// After a crash the client repeats its settlement, and the time passes. The units of others
    /// must still count.
    fn check_restored(&self) -> Result<(), String> {
        let Some(copy) = self.copy.take() else {
            return Ok(());
        };
        let after = service(
            if self.is_released { "release" } else { "keep" },
            &self.clock,
        );
        let now = after.now();
        for (at, entry) in &copy.limits {
            let limit = Arc::clone(&after.limits().limits()[*at]);
            assert!(
                limit
                    .limiter()
                    .at(now)
                    .restore(&limit.spec().policy.policy().unwrap(), entry)
            );
        }
        for (text, due) in &copy.reservations {
            assert!(after.reservations.restore(text, *due), "{text}");
        }
        self.clock.set(START.saturating_add(TTL));
        after.expire_reservations(false).now_or_never().unwrap();
        let _ = after
            .settle(self.id, Some(&[0, 0]), after.now())
            .now_or_never()
            .unwrap();
        let used = used(&after, &self.key);
        if used[0] < OTHERS || used[1] < 1 {
            return Err(format!(
                "after a crash {used:?} units and permits count, and others hold {OTHERS} and 1"
            ));
        }
        Ok(())
    }
}

fn asks(key: &[u8], tokens: u64, permits: u64) -> [Ask<'_>; 2] {
    let ask = |limit, cost| Ask {
        limit,
        key: Some(key),
        cost,
    };
    [ask(b"tokens", tokens), ask(b"in-flight", permits)]
}

fn used(service: &Service, key: &[u8]) -> [u64; 2] {
    [(&b"tokens"[..], LIMIT), (b"in-flight", 5)].map(|(name, limit)| {
        let left = service
            .limits()
            .limit(name)
            .unwrap()
            .limiter()
            .at(service.now())
            .peek(key, 0);
        limit - left.remaining()
    })
}

/// One order: `choose` names the thread that goes on, of so many.
fn play(
    simulation: &Rc<Simulation>,
    steps: &[Step],
    choose: &mut dyn FnMut(usize) -> usize,
) -> Result<(), String> {
    let thread = |&step: &Step| {
        let simulation = Rc::clone(simulation);
        Box::pin(async move { simulation.step(step).await })
            as Pin<Box<dyn Future<Output = Outcome>>>
    };
    let mut threads: Vec<_> = steps.iter().map(thread).collect();
    let mut outcomes = Vec::new();
    while !threads.is_empty() {
        let at = choose(threads.len());
        EXPLORES.set(true);
        let polled = threads[at]
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        EXPLORES.set(false);
        if let Poll::Ready(outcome) = polled {
            outcomes.push(outcome);
            drop(threads.remove(at));
        }
        simulation.check()?;
    }
    simulation.check_end(&outcomes)
}

/// Every order of these threads: how many there are, or what is wrong in the first that is.
fn explore(steps: &[Step], on_expiry: &str, without: Option<Guard>) -> Result<usize, String> {
    // The choices of the last order: which thread, of how many.
    let mut choices: Vec<(usize, usize)> = Vec::new();
    let (mut orders, clock) = (0, Arc::new(ManualTimer::new(START)));
    let fresh = || service(on_expiry, &clock);
    let mut of_all = fresh();
    loop {
        let mut at = 0;
        let mut choose = |threads| {
            at += 1;
            if at > choices.len() {
                choices.push((0, threads));
            }
            choices[at - 1].0
        };
        let simulation = Simulation {
            is_released: on_expiry == "release",
            without,
            ..Simulation::new(of_all, &clock, orders)
        };
        let simulation = Rc::new(simulation);
        play(&simulation, steps, &mut choose)
            .map_err(|why| format!("{steps:?}, {on_expiry}, {choices:?}: {why}"))?;
        orders += 1;
        while let Some((chosen, threads)) = choices.pop() {
            if chosen + 1 < threads {
                choices.push((chosen + 1, threads));
                break;
            }
        }
        if choices.is_empty() {
            return Ok(orders);
        }
        // A copy has all keys.
        of_all = match Rc::into_inner(simulation) {
            Some(simulation) if !steps.contains(&Save) => simulation.service,
            _ => fresh(),
        };
    }
}

/// Every three threads of the ones that differ, and some others.
fn explore_all(without: Option<Guard>) -> Result<usize, String> {
    let all = [Settle(10), Extend, Expire, Take, Reserve];
    let mut threads = vec![
        vec![Settle(10), Settle(45), Expire],
        vec![Settle(45), Cancel, Extend],
        vec![Take, Take, Expire, Settle(45)],
        vec![Settle(10), Save],
        vec![Cancel, Expire, Save],
        vec![Extend, Save],
        vec![Reserve, Save],
        vec![Reserve, Reserve, Settle(10)],
    ];
    for (one, first) in all.iter().enumerate() {
        for (two, second) in all.iter().enumerate().skip(one) {
            threads.extend(
                all[two + 1..]
                    .iter()
                    .map(|third| vec![*first, *second, *third]),
            );
        }
    }
    let mut orders = 0;
    for steps in &threads {
        let both = ["release", "keep"];
        for on_expiry in &both[..if steps.contains(&Expire) { 2 } else { 1 }] {
            orders += explore(steps, on_expiry, without)?;
        }
    }
    Ok(orders)
}

#[test]
fn units_count_once_and_return_once_in_every_order() {
    let orders = explore_all(None).unwrap();
    assert!(orders > 5_000, "{orders}");
}

#[test]
fn each_guard_is_needed() {
    for without in [
        Guard::EndsFirst,
        Guard::Late,
        Guard::Extension,
        Guard::Room,
        Guard::SeenAgain,
    ] {
        assert!(explore_all(Some(without)).is_err(), "{without:?}");
    }
}

/// The sizes of the parts are those of the code above, so that no pause is lost.
#[test]
fn a_thread_pauses_wherever_another_may_come_in_between() {
    let orders = |steps: &[Step]| explore(steps, "release", None).unwrap();
    assert_eq!(orders(&[Settle(10), Settle(10)]), 4);
    assert_eq!(orders(&[Extend, Take]), 4);
    assert_eq!(orders(&[Reserve, Take]), 4);
    assert_eq!(orders(&[Expire, Take]), 4);
}
