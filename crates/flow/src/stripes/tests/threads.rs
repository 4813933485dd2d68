//! Stripes under many threads.

use std::{
    sync::{Barrier, Mutex, PoisonError},
    thread,
};

use super::*;

const THREADS: usize = 16;

/// The limits of each step; they change before it. All are far at first.
const STEPS: [(u64, u32, u32); 12] = [
    (0, 6_000, 900),
    (100, 6_000, 900),
    (200, 6_000, 900),
    (500, 6_000, 900),
    (900, 1_500, 900),
    (1_000, 1_500, 200),
    (1_300, 1_500, 200),
    (1_700, 12_000, 4_000),
    (1_800, 12_000, 4_000),
    (1_900, 3_000, 4_000),
    (2_800, 3_000, 300),
    (2_900, 3_000, 300),
];

/// Plain entries, entries with an origin, and prioritized ones, on all threads at each step. Calls end on any thread, some of
/// them steps later.
#[test]
fn many_threads_never_pass_a_limit_while_rules_are_reloaded() {
    let rules = |step: usize| limits(STEPS[step].1, STEPS[step].2, u32::MAX);
    let (gate, timer, r) = striped(4, rules(0));
    let inside: Mutex<Vec<OwnedGuard>> = Mutex::default();
    let admitted: Vec<AtomicU64> = STEPS.iter().map(|_| AtomicU64::new(0)).collect();
    let [passed, in_stripes] = [(); 2].map(|()| AtomicU64::new(0));
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (gate, timer, r, inside, admitted, barrier) =
                (&gate, &timer, &r, &inside, &admitted, &barrier);
            let (passed, in_stripes) = (&passed, &in_stripes);
            scope.spawn(move || {
                set_thread_number(thread);
                for (step, (ms, ..)) in STEPS.into_iter().enumerate() {
                    if barrier.wait().is_leader() {
                        timer.set(Nanos::from_millis(START + ms));
                        gate.load(rules(step)).unwrap();
                    }
                    barrier.wait();
                    for call in 0..[40, 40, 400][step % 3] {
                        let entry = r.entry().count(1 + call % 3).inbound();
                        let entry = match call % 50 {
                            7 => entry.origin("o"),
                            9 if step % 4 == 3 => entry.prioritized(),
                            _ => entry,
                        };
                        let Ok(guard) = entry.enter_owned() else { continue };
                        let units = u64::from(1 + call % 3);
                        let at = gate.now().saturating_add(guard.delay().into());
                        let slot = (at.get() / 1_000_000 - START) / 100;
                        passed.fetch_add(units, Ordering::Relaxed);
                        let steps = STEPS.iter().position(|(ms, ..)| ms / 100 == slot);
                        match steps {
                            Some(step) => admitted[step].fetch_add(units, Ordering::Relaxed),
                            None => 0,
                        };
                        let in_flight = r.node().stripes().unwrap().in_flight();
                        in_stripes.fetch_add(u64::from(in_flight > 0), Ordering::Relaxed);
                        if guard.delay() > Duration::ZERO {
                            guard.cancel();
                            passed.fetch_sub(units, Ordering::Relaxed);
                            if let Some(step) = steps {
                                admitted[step].fetch_sub(units, Ordering::Relaxed);
                            }
                            continue;
                        }
                        let mut inside = inside.lock().unwrap_or_else(PoisonError::into_inner);
                        inside.push(guard);
                        let leaves = (inside.len() > 60).then(|| inside.swap_remove(call as usize % 60));
                        drop(inside);
                        drop(leaves);
                    }
                }
            });
        }
    });
    drop(inside);
    let admitted: Vec<u64> = admitted.into_iter().map(AtomicU64::into_inner).collect();
    for (last, &(at, most, _)) in STEPS.iter().enumerate() {
        let in_view = |&(step, _): &(usize, &u64)| step <= last && STEPS[step].0 / 100 + 10 > at / 100;
        let used: u64 = admitted.iter().enumerate().filter(in_view).map(|(_, units)| units).sum();
        assert!(admitted[last] == 0 || used <= most.into(), "{used} units at {at} ms, not {most}");
    }
    assert!(admitted.iter().filter(|&&units| units > 0).count() > 4, "{admitted:?}");
    assert!(in_stripes.into_inner() > 100, "stripes were in use");
    let seconds = r.node().seconds(gate.now());
    assert_eq!(seconds.iter().map(|second| second.counts.pass).sum::<u64>(), passed.load(Ordering::Relaxed));
    assert_eq!(seconds.iter().map(|second| second.counts.success).sum::<u64>(), passed.into_inner());
    assert_eq!(r.node().in_flight() + gate.inbound().in_flight(), 0);
}

/// Slot after slot, so that the stripes open again and again. Threads come and go, and calls end on other threads than their own.
#[test]
fn calls_in_flight_in_stripes_never_exceed_their_bound() {
    const MOST: u64 = 256;
    let (gate, timer, r) = striped(4, limits(u32::MAX, MOST as u32, u32::MAX));
    let [inside, most, in_stripes] = [(); 3].map(|()| AtomicU64::new(0));
    let left: Mutex<Vec<(OwnedGuard, u64)>> = Mutex::default();
    let leave = |(guard, units): (OwnedGuard, u64)| {
        inside.fetch_sub(units, Ordering::SeqCst);
        drop(guard);
    };
    for round in 0..40 {
        timer.advance(Duration::from_millis(100));
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (r, inside, most, in_stripes, left, leave) =
                    (&r, &inside, &most, &in_stripes, &left, &leave);
                scope.spawn(move || {
                    set_thread_number(thread);
                    // Some rounds fill the bound, and others leave most of it free.
                    for call in 0..if round % 4 == 3 { 60 } else { 6 } {
                        let units = 1 + call % 4;
                        if let Ok(guard) = r.entry().count(units as u32).enter_owned() {
                            most.fetch_max(
                                inside.fetch_add(units, Ordering::SeqCst) + units,
                                Ordering::SeqCst,
                            );
                            let striped = r.node().stripes().unwrap().in_flight();
                            in_stripes.fetch_add(u64::from(striped > 0), Ordering::Relaxed);
                            left.lock().unwrap().push((guard, units));
                        }
                        let other = if call % 3 > 0 { left.lock().unwrap().pop() } else { None };
                        other.into_iter().for_each(leave);
                    }
                });
            }
        });
        if round % 4 == 3 {
            std::mem::take(&mut *left.lock().unwrap()).into_iter().for_each(leave);
        }
    }
    let most = most.into_inner();
    assert!((MOST - 8..=MOST).contains(&most), "{most} were in flight");
    assert!(in_stripes.into_inner() > 1_000, "stripes were in use");
    std::mem::take(&mut *left.lock().unwrap()).into_iter().for_each(leave);
    assert_eq!(r.node().in_flight() + gate.inbound().in_flight(), 0);
}
