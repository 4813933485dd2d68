//! Converts values in Redis to the words of `tidegate-core`.

use tidegate_core::{Algorithm, Decision, DenialReason, MAX_LIMIT, Nanos, Standing, StoredState};

use super::{Plan, ValueLayout};

/// The length of one answer of `log.lua`.
pub(super) const ANSWER: usize = 29;

/// A little-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Not through `Nanos`, because a TAT may lie beyond the latest possible current time.
const fn nanos(micros: u64) -> u64 {
    micros.saturating_mul(1_000)
}

impl Plan {
    /// The words of a value; `None` if it is not a value of this limit.
    pub(super) fn state(&self, value: Option<&[u8]>) -> Option<Vec<u64>> {
        let mut words = vec![0; self.policy.words()];
        let Some(value) = value else {
            return Some(words);
        };
        let (start, rest) = value.split_at_checked(7)?;
        let start = number(start);
        match self.layout {
            ValueLayout::Window { count_bytes } if rest.len() == count_bytes => {
                // A full count of four bytes that is above the limit stands for any number.
                let count = match number(rest) {
                    0xFFFF_FFFF if self.policy.limit() < 0xFFFF_FFFF => MAX_LIMIT + 1,
                    count => count,
                };
                words.copy_from_slice(&[nanos(start), count]);
            }
            ValueLayout::Saving { window, lump } if rest.len() == 14 => {
                let count = number(&rest[..7]);
                let start = start.checked_sub(count.div_ceil(lump).checked_mul(window)?)?;
                words.copy_from_slice(&[nanos(start), count]);
            }
            ValueLayout::Counter { count_bytes } if rest.len() == 2 * count_bytes => {
                let (previous, current) = rest.split_at(count_bytes);
                // A full count of two bytes stands for any number.
                let count = |bytes| match number(bytes) {
                    0xFFFF if count_bytes == 2 => u64::from(u32::MAX),
                    count => count,
                };
                words.copy_from_slice(&[nanos(start), count(previous) << 32 | count(current)]);
            }
            ValueLayout::Slots {
                slot,
                count_bytes,
                span,
            } if rest.len() == (span + 1) * count_bytes => {
                // Skips the sum. Oldest first, as they were recorded. The newest one sets the time
                // even if it is empty.
                for (at, count) in rest[count_bytes..]
                    .chunks_exact(count_bytes)
                    .enumerate()
                    .rev()
                {
                    let count = number(count);
                    let time = Nanos::from_micros(start.checked_sub(at as u64 * slot)?);
                    if count > 0 {
                        self.policy.charge(&mut words, time, count);
                    } else if at == 0 {
                        self.policy.record(&mut words, time, 0);
                    }
                }
            }
            ValueLayout::Bucket {
                part_bytes,
                parts,
                rule_bytes,
            } if rest.len() == part_bytes + rule_bytes => {
                let (start, part) = match (start, number(&rest[..part_bytes])) {
                    (start, part) if part < 1_000 * parts => (start, part),
                    // Another rate wrote it: its fraction of a microsecond is in another unit, and
                    // is rounded up.
                    (start, _) => (start + 1, 0),
                };
                words[0] = nanos(start) + part / parts;
                if let Some(below) = words.get_mut(1) {
                    *below = part % parts;
                }
            }
            _ => return None,
        }
        self.policy.accepts(&words).then_some(words)
    }
}

/// The number of entries that count, in an answer.
pub(super) fn counting(reply: &[u8]) -> u64 {
    number(&reply[1..5])
}

/// The decision at `now` for an answer of `log.lua` (like core's `SlidingLog::peek`, after the
/// search), and the time of the log.
pub(super) fn answer(
    reply: &[u8],
    now: Nanos,
    limit: u64,
    (lifetime, permits): (u64, bool),
    cost: u64,
) -> (Decision, Nanos) {
    let counting = counting(reply);
    let live = counting.min(limit);
    let newest_age = nanos(number(&reply[5..13]));
    let age = nanos(number(&reply[13..21]));
    let seen = Nanos::from_micros(number(&reply[21..29]));
    let room = limit - live;
    // Waits are by the caller's clock, which may be behind the log's.
    let behind = if live == 0 {
        0
    } else {
        seen.saturating_since(now).get()
    };
    // Admitted permits have a unique moment, a microsecond after the newest.
    let own = permits && cost > 0 && cost <= room;
    let behind = if own {
        behind.saturating_sub(1_000)
    } else {
        behind
    };
    let reset = if live == 0 {
        0
    } else {
        lifetime.saturating_sub(newest_age) + behind
    };
    let standing = |room, reset_after| Standing {
        limit,
        room,
        unit: 1,
        reset_after,
    };
    let decision = if cost > limit {
        Decision::too_large(standing(room, reset))
    } else if counting + cost > limit {
        // If the script was asked for more than this request (several requests of one key in one
        // decision), the wait is that of all together.
        Decision::deny(standing(room, reset), lifetime.saturating_sub(age) + behind).because(
            if permits {
                DenialReason::InFlight
            } else {
                DenialReason::Quota
            },
        )
    } else {
        let reset = if cost == 0 { reset } else { lifetime + behind };
        Decision::allow(standing(room.saturating_sub(cost), reset))
    };
    (decision, seen)
}
