//! Windows under many threads, and against an oracle that remembers everything.
#![cfg(not(loom))]

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use proptest::prelude::*;
use tidegate_core::{
    Clock, ManualClock, Nanos,
    stats::{Event, Layout, Trailing, Window},
};

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

#[test]
fn no_add_of_64_threads_is_lost_over_slot_turns() {
    const THREADS: u64 = 64;
    const ADDS: u64 = 100_000;
    let window = Window::with_minute(Layout::second()).unwrap();
    let clock = ManualClock::new(ms(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (window, clock) = (&window, &clock);
            scope.spawn(move || {
                for add in 0..ADDS {
                    if (thread * ADDS + add).is_multiple_of(16_384) {
                        clock.advance(ms(100));
                    }
                    window.pass(clock.now(), 1);
                    window.complete(clock.now(), 1, Nanos::from_micros(7), add % 2 == 0);
                }
            });
        }
    });
    // The clock moved on by 391 slots, less than a minute: every second is still kept.
    let mut sums = [0; 4];
    for second in window.seconds(clock.now()) {
        let counts = second.counts;
        let rt = u64::try_from(counts.rt.as_micros()).unwrap();
        for (sum, count) in sums
            .iter_mut()
            .zip([counts.pass, counts.success, counts.exception, rt])
        {
            *sum += count;
        }
        assert!(counts.max_in_flight <= THREADS);
        assert_eq!(counts.min_rt, Some(Duration::from_micros(7)));
    }
    let all = THREADS * ADDS;
    assert_eq!(sums, [all, all, all / 2, all * 7]);
    assert_eq!(window.in_flight(), 0);
}

#[test]
fn ending_a_second_late_does_not_overwrite_a_later_second() {
    const ROUNDS: u64 = 2_000;
    let second = Nanos::from_secs;
    for _ in 0..ROUNDS {
        let window = Window::with_minute(Layout::second()).unwrap();
        window.pass(second(1), 1);
        let barrier = Barrier::new(3);
        // The records of seconds 1 and 2 are used again by 63 and 64, which the last thread goes on
        // to at once.
        thread::scope(|scope| {
            for times in [&[2][..], &[2], &[63, 64, 65]] {
                let (window, barrier) = (&window, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for &time in times {
                        window.pass(second(time), 10);
                    }
                });
            }
        });
        let seconds = window.seconds(second(66));
        let passed: Vec<_> = seconds
            .iter()
            .map(|kept| (kept.start, kept.counts.pass))
            .collect();
        // Who came late counts in the second that was the newest, or in second 2, which is not kept
        // any more.
        assert_eq!(
            passed.iter().map(|(start, _)| *start).collect::<Vec<_>>(),
            [63, 64, 65].map(second)
        );
        let late = passed.iter().map(|(_, passed)| passed - 10).sum::<u64>();
        assert!([0, 10, 20].contains(&late), "{passed:?}");
        assert!(
            passed.iter().all(|(_, passed)| passed % 10 == 0),
            "{passed:?}"
        );
    }
}

/// Everybody stands at the same time, all race to turn the slot, and then the next slot: what was
/// admitted in any `slots` slots is known exactly from outside.
#[test]
fn sixty_four_threads_never_pass_a_limit_in_any_interval() {
    const THREADS: usize = 64;
    const LIMIT: u64 = 1_000;
    let layout = Layout::second();
    let window = Window::new(layout);
    let limit = Trailing::new(layout.whole());
    // Slots are skipped, too.
    let steps: Vec<u64> = (0..60)
        .map(|step| step * 100 + if step % 7 == 0 { 300 } else { 0 })
        .collect();
    let mut steps = steps;
    steps.sort_unstable();
    let admitted: Vec<AtomicU64> = steps.iter().map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for (step, &at) in steps.iter().enumerate() {
                    barrier.wait();
                    // Some steps leave places over, so that windows are part full when they turn.
                    for _ in 0..if step % 3 == 0 { 3 } else { 40 } {
                        let passed = window.pass_if(ms(at), 1, |look| match look.passed(&limit) {
                            Some(used) if used + 1 > LIMIT => Err(()),
                            _ => Ok(()),
                        });
                        if passed.is_ok() {
                            admitted[step].fetch_add(1, Ordering::Relaxed);
                            window.complete(ms(at), 1, Nanos::ZERO, false);
                        }
                    }
                }
            });
        }
    });
    let admitted: Vec<u64> = admitted
        .iter()
        .map(|count| count.load(Ordering::Relaxed))
        .collect();
    for (last, &at) in steps.iter().enumerate() {
        let in_view = steps
            .iter()
            .zip(&admitted)
            .filter(|&(&then, _)| then <= at && at / 100 - then / 100 < 10);
        let sum: u64 = in_view.map(|(_, count)| count).sum();
        assert!(sum <= LIMIT, "{sum} in the second up to {at} ms");
        if last % 3 != 0 {
            // 2,560 asked: all that was free was given.
            assert_eq!(sum, LIMIT, "up to {at} ms");
        }
    }
}

#[test]
fn readers_see_whole_slots_while_writers_turn() {
    let layout = Layout::new(5, Duration::from_millis(500)).unwrap();
    let window = Window::new(layout);
    let clock = ManualClock::new(ms(0));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Three in each slot, one slot after the other.
            for _ in 0..20_000 {
                for _ in 0..3 {
                    window.add(clock.now(), Event::Pass, 1);
                }
                clock.advance(ms(100));
            }
        });
        while !writer.is_finished() {
            let slots = window.slots_since(ms(0));
            let Some((_, ended)) = slots.split_last() else {
                continue;
            };
            for slot in ended {
                assert_eq!(slot.counts.pass, 3, "an ended slot is whole");
            }
            let sum = window.sum(clock.now(), Event::Pass, layout.whole());
            assert!(sum <= 15, "{sum}");
        }
    });
}

#[derive(Clone, Debug)]
enum Step {
    Later(u64),
    Earlier(u64),
    Pass(u32),
    Complete(u32, u64),
    Block(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..400_u64).prop_map(Step::Later),
        (0..4_000_u64).prop_map(Step::Later),
        (0..400_u64).prop_map(Step::Earlier),
        (1..9_u32).prop_map(Step::Pass),
        (1..9_u32, 0..9_000_u64).prop_map(|(n, rt)| Step::Complete(n, rt)),
        (1..9_u64).prop_map(Step::Block),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #[test]
    fn a_window_agrees_with_an_oracle_that_keeps_every_event(
        steps in steps(),
        slots in 1..12_u32,
        view in 1..12_u32,
    ) {
        let layout = Layout::new(slots, ms(u64::from(slots) * 100).into()).unwrap();
        let view = layout.view(1, ms(u64::from(view.min(slots)) * 100).into()).unwrap();
        let window = Window::new(layout);
        let (mut now, mut newest) = (5_000_u64, 0_u64);
        // (slot, event, n, rt in µs), each in the newest slot of its time.
        let mut events: Vec<(u64, Event, u64, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Later(by) => now += by,
                Step::Earlier(by) => now = now.saturating_sub(by),
                Step::Pass(n) => {
                    newest = newest.max(now / 100);
                    window.pass(ms(now), n);
                    events.push((newest, Event::Pass, n.into(), 0));
                }
                Step::Complete(n, rt) => {
                    newest = newest.max(now / 100);
                    window.complete(ms(now), n, Nanos::from_micros(rt), false);
                    events.push((newest, Event::Success, n.into(), rt));
                }
                Step::Block(n) => {
                    newest = newest.max(now / 100);
                    window.add(ms(now), Event::Block, n);
                    events.push((newest, Event::Block, n, 0));
                }
            }
            let last = newest.max(now / 100);
            let seen = |&(slot, ..): &(u64, _, _, _)| slot + u64::from(view.slots()) > last;
            for event in [Event::Pass, Event::Success, Event::Block] {
                let of_it = |&&(_, of, ..): &&(_, Event, _, _)| of == event;
                let want: u64 = events.iter().filter(of_it).filter(|e| seen(e)).map(|e| e.2).sum();
                prop_assert_eq!(window.sum(ms(now), event, view), want, "{:?} at {}", event, now);
            }
            let ended = || events.iter().filter(|e| e.1 == Event::Success && seen(e));
            let want = ended().map(|e| Duration::from_micros(e.3)).min();
            prop_assert_eq!(window.min_rt(ms(now), view), want);
            prop_assert_eq!(window.sum(ms(now), Event::Rt, view), ended().map(|e| e.2 * e.3).sum::<u64>());
            let slots = window.slots_since(ms(0));
            prop_assert!(slots.is_sorted_by_key(|slot| slot.start));
            let kept = slots.first().map_or(0, |slot| slot.start.get() / 100_000_000);
            let want: u64 = events.iter().filter(|e| e.1 == Event::Pass && e.0 >= kept).map(|e| e.2).sum();
            prop_assert_eq!(slots.iter().map(|slot| slot.counts.pass).sum::<u64>(), want);
        }
    }

    #[test]
    fn the_wait_for_a_place_is_true_to_the_nanosecond(
        at in prop::collection::vec(0..3_000_u64, 1..60),
        strict in any::<bool>(),
    ) {
        let layout = Layout::second();
        let view = if strict { layout.whole().strict() } else { layout.whole() };
        let limit = Trailing::new(view);
        let window = Window::new(layout);
        let mut at = at;
        at.sort_unstable();
        let mut now = ms(0);
        let mut wait = Duration::ZERO;
        for at in at {
            now = ms(at);
            let _ = window.pass_if(now, 1, |look| match look.passed(&limit) {
                Some(used) if used + 1 > 5 => {
                    wait = look.fits_after(now, view, 4);
                    Err(())
                }
                _ => {
                    wait = Duration::ZERO;
                    Ok(())
                }
            });
        }
        if !wait.is_zero() {
            let free = |after: Duration| window.sum(now.saturating_add(after.into()), Event::Pass, view) < 5;
            prop_assert!(free(wait), "free after {wait:?}");
            prop_assert!(!free(wait.saturating_sub(Duration::from_nanos(1))), "not free before {wait:?}");
        }
    }
}
