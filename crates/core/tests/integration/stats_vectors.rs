//! The worked examples of window statistics.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Nanos,
    stats::{Counts, Event, Layout, LayoutError, Slot, Window},
};

const fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

fn layout(slots: u32, interval_ms: u64) -> Layout {
    Layout::new(slots, Duration::from_millis(interval_ms)).unwrap()
}

fn starts(slots: &[Slot]) -> Vec<u64> {
    slots
        .iter()
        .map(|slot| slot.start.get() / 1_000_000)
        .collect()
}

#[test]
fn a_time_has_its_slot_and_start() {
    let layout = layout(20, 10_000);
    for (at, index, start) in [
        (1_576_296_044_907, 9, 1_576_296_044_500),
        (1_596_199_310_801, 1, 1_596_199_310_500),
    ] {
        assert_eq!(
            (layout.index(ms(at)), layout.start(ms(at))),
            (index, ms(start))
        );
    }
}

#[test]
fn a_slot_counts_until_the_next_slot_begins() {
    let layout = layout(2, 2_000);
    let window = Window::new(layout);
    let t = 1_576_296_044_000;
    window.add(ms(t), Event::Pass, 1);
    window.add(ms(t), Event::Block, 1);
    window.add(ms(t + 500), Event::Pass, 1);
    let slots = window.slots(ms(t + 1_000), layout.whole());
    let seen: Vec<_> = slots
        .iter()
        .map(|slot| (slot.start, slot.counts.pass, slot.counts.block))
        .collect();
    assert_eq!(seen, [(ms(t), 2, 1), (ms(t + 1_000), 0, 0)]);
}

#[test]
fn a_view_sees_its_own_slots() {
    let layout = layout(20, 10_000);
    let now = 1_578_416_556_900;
    let window = Window::new(layout);
    for at in (now - 9_500..=now).step_by(500) {
        window.add(ms(at), Event::Pass, 1);
    }
    let view = |samples, interval| {
        layout
            .view(samples, Duration::from_millis(interval))
            .unwrap()
    };
    let seen = |view| starts(&window.slots(ms(now), view));
    assert_eq!(
        seen(view(4, 2_000)),
        [
            1_578_416_555_000,
            1_578_416_555_500,
            1_578_416_556_000,
            1_578_416_556_500
        ]
    );
    assert_eq!(seen(view(2, 1_000)), [1_578_416_556_000, 1_578_416_556_500]);
    assert_eq!(window.sum(ms(now), Event::Pass, view(4, 2_000)), 4);
    assert_eq!(window.sum(ms(now), Event::Pass, view(2, 1_000)), 2);
}

#[test]
fn a_view_that_does_not_fit_its_ring_is_refused() {
    let ring = layout(20, 10_000);
    let view = |samples, interval| ring.view(samples, Duration::from_millis(interval));
    assert_eq!(view(4, 2_001), Err(LayoutError::NotOfThisRing));
    assert_eq!(view(2, 2_002), Err(LayoutError::NotOfThisRing));
    assert_eq!(view(4, 200_000), Err(LayoutError::NotOfThisRing));
    assert_eq!(view(0, 0), Err(LayoutError::Slots));
    assert_eq!(
        Layout::new(3, Duration::from_secs(1)),
        Err(LayoutError::Uneven)
    );
    assert_eq!(Layout::new(0, Duration::ZERO), Err(LayoutError::Slots));
    assert_eq!(
        Layout::new(1, Duration::ZERO),
        Err(LayoutError::SlotTooShort)
    );
    assert_eq!(Layout::new(1, Duration::MAX), Err(LayoutError::TooLong));
}

#[test]
fn slots_from_a_time_on() {
    let window = Window::new(layout(4, 2_000));
    for (at, n) in [(500, 1), (1_000, 2), (1_500, 3), (2_000, 4)] {
        window.add(ms(at), Event::Pass, n);
    }
    let passes = |from| {
        window
            .slots_since(ms(from))
            .iter()
            .map(|slot| slot.counts.pass)
            .collect::<Vec<_>>()
    };
    assert_eq!(passes(1_500), [3, 4]);
    assert!(passes(2_500).is_empty());
}

#[test]
fn a_time_before_the_newest_slot_counts_in_the_newest() {
    let layout = layout(10, 1_000);
    let window = Window::new(layout);
    window.add(ms(5_050), Event::Pass, 1);
    window.add(ms(3_000), Event::Pass, 2);
    window.add(ms(0), Event::Block, 1);
    let slots = window.slots(ms(5_050), layout.whole());
    assert_eq!(starts(&slots), [5_000]);
    assert_eq!((slots[0].counts.pass, slots[0].counts.block), (3, 1));
    // Seen from before it, too, the newest slot is what counts.
    assert_eq!(window.sum(ms(0), Event::Pass, layout.whole()), 3);
}

#[test]
fn the_last_second_expires_slot_by_slot() {
    let layout = Layout::second();
    let window = Window::new(layout);
    for at in (0..1_000).step_by(100) {
        window.add(ms(at), Event::Pass, 1);
    }
    let sum = |at| window.sum(ms(at), Event::Pass, layout.whole());
    assert_eq!(
        (
            sum(999),
            sum(1_000),
            sum(1_099),
            sum(1_500),
            sum(1_899),
            sum(1_900)
        ),
        (10, 9, 9, 4, 1, 0)
    );
    let strict = |at| window.sum(ms(at), Event::Pass, layout.whole().strict());
    assert_eq!(
        (strict(999), strict(1_000), strict(1_099), strict(1_100)),
        (10, 10, 10, 9)
    );
}

#[test]
fn each_slot_keeps_extremes_of_response_time_and_calls_in_flight() {
    let layout = Layout::second();
    let window = Window::new(layout);
    window.pass(ms(0), 1);
    window.pass(ms(10), 2);
    assert_eq!(window.in_flight(), 3);
    window.complete(ms(50), 2, ms(40), false);
    window.complete(ms(150), 1, ms(150), true);
    assert_eq!(window.in_flight(), 0);
    let slots = window.slots(ms(150), layout.whole());
    let first = Counts {
        pass: 3,
        success: 2,
        rt: Duration::from_millis(80),
        min_rt: Some(Duration::from_millis(40)),
        max_in_flight: 3,
        ..Counts::default()
    };
    let second = Counts {
        success: 1,
        exception: 1,
        rt: Duration::from_millis(150),
        min_rt: Some(Duration::from_millis(150)),
        // What the slot began with.
        max_in_flight: 1,
        ..Counts::default()
    };
    assert_eq!(
        slots.iter().map(|slot| slot.counts).collect::<Vec<_>>(),
        [first, second]
    );
    assert_eq!(
        window.min_rt(ms(150), layout.whole()),
        Some(Duration::from_millis(40))
    );
    assert_eq!(
        window.min_rt(ms(1_050), layout.whole()),
        Some(Duration::from_millis(150))
    );
    assert_eq!(window.min_rt(ms(1_150), layout.whole()), None);
    assert_eq!(first.mean_rt(), Duration::from_millis(40));
}

#[test]
fn a_minute_keeps_each_second() {
    let window = Window::with_minute(Layout::second()).unwrap();
    for second in 0..100_u64 {
        for _ in 0..=second {
            window.pass(ms(second * 1_000 + 250), 1);
        }
        window.add(ms(second * 1_000 + 950), Event::Block, 2);
        window.complete(ms(second * 1_000 + 990), 1, ms(second), second % 2 == 0);
    }
    let seconds = window.seconds(ms(99_999));
    assert_eq!(seconds.len(), 60);
    for (second, slot) in (40..100).zip(&seconds) {
        assert_eq!(slot.start, Nanos::from_secs(second));
        assert_eq!(
            (slot.counts.pass, slot.counts.block, slot.counts.success),
            (second + 1, 2, 1)
        );
        assert_eq!(slot.counts.exception, u64::from(second % 2 == 0));
        assert_eq!(slot.counts.rt, Duration::from_millis(second));
        assert_eq!(slot.counts.min_rt, Some(Duration::from_millis(second)));
        // Each second leaves as many in flight as it let in, less one.
        assert_eq!(slot.counts.max_in_flight, (0..=second).sum::<u64>() + 1);
    }
    assert_eq!(window.passed_last_second(ms(99_999)), Some(99));
    assert_eq!(window.passed_last_second(ms(100_000)), Some(100));
    assert_eq!(window.passed_last_second(ms(101_000)), Some(0));
    // A long silence: the minute is empty, and an old second is not mistaken for a new one.
    assert!(window.seconds(ms(99_000 + 61_000)).is_empty());
    window.pass(ms(40_000 + 62_000 * 3), 1);
    let seconds = window.seconds(ms(40_000 + 62_000 * 3));
    assert_eq!(
        seconds
            .iter()
            .map(|slot| slot.counts.pass)
            .collect::<Vec<_>>(),
        [1]
    );
}

#[test]
fn the_minute_ring_works_at_the_ends_of_time() {
    let window = Window::with_minute(Layout::second()).unwrap();
    for second in [2_000_000_000, 2_200_000_000, 4_300_000_000, 4_611_000_000] {
        window.pass(Nanos::from_secs(second), 3);
        window.pass(Nanos::from_secs(second + 1), 4);
        assert_eq!(
            window.passed_last_second(Nanos::from_secs(second + 1)),
            Some(3)
        );
    }
    window.pass(Nanos::MAX, 1);
    assert_eq!(
        window.sum(Nanos::MAX, Event::Pass, Layout::second().whole()),
        1
    );
}

#[test]
fn a_minute_needs_whole_slots_in_a_second() {
    assert!(Window::with_minute(layout(2, 1_000)).is_ok());
    assert!(Window::with_minute(layout(10, 3_000)).is_err());
    assert!(Window::with_minute(layout(5, 500)).is_err());
}

#[test]
fn a_revoked_admission_leaves_no_trace_in_its_slot() {
    let layout = Layout::second();
    let window = Window::new(layout);
    let passed = window.pass_if(ms(0), 3, |_| Ok::<_, ()>(())).unwrap();
    window.take_back(3, passed);
    assert_eq!(
        (
            window.sum(ms(0), Event::Pass, layout.whole()),
            window.in_flight()
        ),
        (0, 0)
    );
    // After its slot the pass stays, and nobody is in flight.
    let passed = window.pass_if(ms(0), 3, |_| Ok::<_, ()>(())).unwrap();
    window.pass(ms(100), 1);
    window.take_back(3, passed);
    assert_eq!(
        (
            window.sum(ms(100), Event::Pass, layout.whole()),
            window.in_flight()
        ),
        (4, 1)
    );
}

proptest! {
    /// The minute's memory comes with the second of two seconds that lie within a minute: whatever
    /// the gaps, nothing is missing.
    #[test]
    fn a_minute_shows_what_was_counted_in_each_of_the_last_60_seconds(
        steps in proptest::collection::vec((prop_oneof![0..900_u64, 900..130_000_u64, 58_000..62_000_u64], 1..9_u32, 0..3_u64), 1..40),
        start in prop_oneof![Just(0), Just(1_700_000_000_000_u64)],
        slots in prop_oneof![Just((10, 1_000)), Just((1, 1_000)), Just((8, 2_000))],
    ) {
        let window = Window::with_minute(layout(slots.0, slots.1)).unwrap();
        let mut now = start;
        let mut all: Vec<(u64, u64, u64)> = Vec::new();
        for (gap, pass, block) in steps {
            now += gap;
            window.pass(ms(now), pass);
            window.add(ms(now), Event::Block, block);
            let second = now / 1_000;
            match all.last_mut() {
                Some(last) if last.0 == second => (last.1, last.2) = (last.1 + u64::from(pass), last.2 + block),
                _ => all.push((second, pass.into(), block)),
            }
            for later in [now, now + 1_000, now + 59_000, now + 61_000] {
                let told = window.seconds(ms(later));
                let told: Vec<_> = told
                    .iter()
                    .map(|slot| (slot.start.get() / 1_000_000_000, slot.counts.pass, slot.counts.block))
                    .filter(|(_, pass, _)| *pass > 0)
                    .collect();
                let shown = (later / 1_000).saturating_sub(59)..=later / 1_000;
                let expected: Vec<_> = all.iter().copied().filter(|(second, ..)| shown.contains(second)).collect();
                prop_assert_eq!(told, expected);
            }
        }
    }
}

#[test]
fn a_time_before_the_newest_slot_is_taken_for_its_start() {
    let window = Window::new(layout(2, 1_000));
    assert_eq!(window.turn(ms(1_700)), ms(1_700));
    assert_eq!(window.turn(ms(1_200)), ms(1_500));
}
