use std::collections::VecDeque;

use super::*;

const START: Nanos = Nanos::from_secs(1_800_000_000);

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % below
}

fn allowed(remaining: u64) -> Decision {
    Decision::allow(Standing {
        limit: 1 << 53,
        room: remaining,
        unit: 1,
        reset_after: 5,
    })
}

#[test]
fn a_full_table_forgets_the_oldest_and_uses_no_more_memory() {
    let repeats = Repeats::default();
    let mark = |number: u64| repeats.mark(&number.to_le_bytes(), []);
    let all = MOST_REMEMBERED as u64 * 3 / 2;
    for number in 0..all {
        let _ = repeats.once(mark(number), START, || Some(allowed(number)));
    }
    assert_eq!(repeats.len(), MOST_REMEMBERED, "every shard is full");
    assert_eq!(repeats.forgotten(), all - MOST_REMEMBERED as u64);
    // A shard has a hundredth more or less than its share, so the newest half is there.
    for number in (all - MOST_REMEMBERED as u64 / 2)..all {
        let again = repeats.once(mark(number), START, || Some(allowed(0)));
        assert_eq!(again.map(|first| first.remaining()), Some(number));
    }
    let asked_again = repeats.once(mark(0), START, || Some(allowed(42)));
    assert_eq!(
        asked_again.map(|first| first.remaining()),
        Some(42),
        "the oldest was forgotten"
    );
    for shard in &repeats.shards {
        let shard = shard.lock().expect("no thread panicked");
        let bytes = size_of::<Kept>() * shard.ring.capacity() + 4 * shard.heads.capacity();
        assert_eq!(bytes, 44 * ROOM);
    }
    let later = START.saturating_add(Nanos::from_secs(REMEMBERED_SECONDS + 1));
    repeats.expire(later);
    assert_eq!(repeats.len(), 0);
}

#[test]
fn threads_that_repeat_one_request_at_a_time_take_once() {
    let repeats = Repeats::default();
    let taken = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..20_000_u64 {
                    let mark = repeats.mark(&number.to_le_bytes(), []);
                    let decision = repeats.once(mark, START, || {
                        taken.fetch_add(1, Ordering::Relaxed);
                        Some(allowed(number))
                    });
                    assert_eq!(decision.map(|first| first.remaining()), Some(number));
                }
            });
        }
    });
    assert_eq!(taken.into_inner(), 20_000);
}

/// A shard remembers exactly the newest answers of the last minute, while its numbers run over and
/// its memory is used again.
#[test]
fn a_shard_remembers_the_newest_answers_and_no_others() {
    let mut shard = Shard::default();
    let mut known: VecDeque<(u64, u64, u64)> = VecDeque::new();
    let (mut seed, mut now) = (0x5EED_u64, START);
    let (mut overran, mut emptied, mut looked_up) = (0, 0, 0_u32);
    for number in 0..400_000_u64 {
        if number.is_multiple_of(1_000) {
            now = now.saturating_add(Nanos::from_secs(match random(&mut seed, 100) {
                0 => 1_000,
                1..=9 => 61,
                _ => random(&mut seed, 6),
            }));
            shard.at(now);
            let second = now.get() / 1_000_000_000;
            let before = known.len();
            known.retain(|&(_, then, _)| second - then <= REMEMBERED_SECONDS);
            emptied += u32::from(before > 0 && known.is_empty());
            assert_eq!(shard.len, known.len());
        }
        // Some share a head: chains are longer than by chance.
        let tag = random(&mut seed, u64::MAX) >> 1 & !0x3FF0_u64 | (number % 64) << 4;
        let tag = if number.is_multiple_of(2) {
            tag
        } else {
            random(&mut seed, u64::MAX) >> 1
        };
        if shard.get(tag).is_none() {
            let was_full = shard.add(tag, &allowed(number));
            assert_eq!(was_full, known.len() == ROOM);
            if was_full {
                let (oldest, ..) = known.pop_front().expect("it is full");
                assert!(shard.get(oldest).is_none(), "the oldest is forgotten");
                overran += 1;
            }
            known.push_back((tag, now.get() / 1_000_000_000, number));
        }
        let at = random(&mut seed, known.len() as u64) as usize;
        let (tag, _, number) = known[at];
        let found = shard.get(tag).map(|first| first.remaining());
        assert_eq!(found, Some(number));
        looked_up += 1;
    }
    assert!(
        overran > 10_000 && emptied > 5 && looked_up > 100_000,
        "{overran} {emptied}"
    );
}
