//! `CL.THROTTLE` replies as redis-cell does.

mod harness;

use std::{collections::HashMap, time::Duration};

use harness::{Resp, Running};
use proptest::prelude::*;
use tidegate_core::Nanos;
use tidegate_server::{
    Options,
    throttle::{Throttle, ThrottleError, ThrottleQuota, reply},
};

/// A transcription of redis-cell's arithmetic (`rate_limit` and the reply of its command), with a
/// map instead of Redis. It omits redis-cell's truncations (times to milliseconds, the remainder to
/// microseconds): see `tidegate_server::throttle`.
#[derive(Default)]
struct RedisCell {
    arrival_times: HashMap<Vec<u8>, i128>,
}

impl RedisCell {
    fn throttle(&mut self, key: &[u8], quota: ThrottleQuota, quantity: i64, now: u64) -> [i64; 5] {
        let now = i128::from(now);
        let interval = i128::from(quota.period) * 1_000_000_000 / i128::from(quota.count);
        let limit = i128::from(quota.max_burst) + 1;
        let tolerance = interval * limit;
        let increment = interval * i128::from(quantity);
        let arrival = self
            .arrival_times
            .get(key)
            .copied()
            .filter(|arrival| *arrival > now)
            .unwrap_or(now);
        let next = arrival + increment;
        let early = next - tolerance - now;
        let (denied, retry_after, left) = if early > 0 {
            let retry = if increment <= tolerance {
                early
            } else {
                -1_000_000_000
            };
            (1, retry, arrival - now)
        } else {
            self.arrival_times.insert(key.to_vec(), next);
            (0, -1_000_000_000, next - now)
        };
        let room = tolerance - left;
        let remaining = if room > -interval { room / interval } else { 0 };
        let seconds =
            |nanos: i128| i64::try_from((nanos + 999_999_999).div_euclid(1_000_000_000)).unwrap();
        [
            denied,
            i64::try_from(limit).unwrap(),
            i64::try_from(remaining).unwrap(),
            seconds(retry_after),
            seconds(left),
        ]
    }
}

fn quota() -> impl Strategy<Value = ThrottleQuota> {
    (0_i64..20, 1_i64..200, 1_i64..100).prop_map(|(max_burst, count, period)| ThrottleQuota {
        max_burst,
        count,
        period,
    })
}

proptest! {
    /// Any keys, limits that change from one request to the next, any pace.
    #[test]
    fn every_answer_is_redis_cells(
        quotas in proptest::collection::vec(quota(), 1..4),
        steps in proptest::collection::vec((0_u8..3, 0_usize..4, 0_i64..8, 0_u64..3_000_000_000), 1..200),
    ) {
        let throttle = Throttle::new(100, None).unwrap();
        let mut cell = RedisCell::default();
        let mut now = 1_700_000_000_000_000_000;
        for (key, quota, quantity, pause) in steps {
            now += pause;
            let quota = quotas[quota % quotas.len()];
            let ours = throttle.acquire(&[key], quota, quantity, Nanos::new(now)).unwrap();
            prop_assert_eq!(reply(&ours), cell.throttle(&[key], quota, quantity, now), "{:?} {}", quota, quantity);
        }
    }

    /// Whatever numbers a client sends, there is an answer or a reason, and never an overflow.
    #[test]
    fn any_numbers_are_answered_or_refused(
        max_burst: i64, count: i64, period: i64, quantity: i64, now: u64,
    ) {
        let throttle = Throttle::new(1, None).unwrap();
        let quota = ThrottleQuota { max_burst, count, period };
        for quota in [quota, ThrottleQuota { max_burst: max_burst & 0xFF, ..quota }] {
            for quantity in [quantity, quantity & 0xFFFF] {
                let _ = throttle.acquire(b"k", quota, quantity, Nanos::new(now)).map(|decision| reply(&decision));
            }
        }
    }
}

#[test]
fn the_documented_example_and_a_bucket_that_runs_dry() {
    let server = Running::start(Options::default());
    let mut client = Resp::connect(server.resp);
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60"), "[0 16 15 -1 2]");
    assert_eq!(
        client.ask("cl.throttle user123 15 30 60 15"),
        "[0 16 0 -1 32]"
    );
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60"), "[1 16 0 2 32]");
    server.advance(Duration::from_millis(500));
    // 1.5 s and 31.5 s, rounded up.
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60"), "[1 16 0 2 32]");
    assert_eq!(
        client.ask("CL.THROTTLE user123 15 30 60 0"),
        "[0 16 0 -1 32]"
    );
    assert_eq!(
        client.ask("CL.THROTTLE user123 15 30 60 17"),
        "[1 16 0 -1 32]"
    );
    server.advance(Duration::from_millis(1500));
    assert_eq!(client.ask("CL.THROTTLE user123 15 30 60"), "[0 16 0 -1 32]");
    // The same words for a key of a limit: the keys are not shared.
    assert!(
        client
            .ask("ACQUIRE per-user user123")
            .starts_with("[0 100 99 -1 ")
    );
}

#[test]
fn errors_have_redis_cells_wording() {
    let server = Running::start(Options::default());
    let mut client = Resp::connect(server.resp);
    for (command, told) in [
        (
            "CL.THROTTLE k 15 0 60",
            "Cell error: Zero rates are not supported",
        ),
        (
            "CL.THROTTLE k 15 30 0",
            "Cell error: Zero rates are not supported",
        ),
        (
            "CL.THROTTLE k 15 30 x",
            "Cell error: Couldn't parse as integer: x",
        ),
        (
            "CL.THROTTLE k 15 30",
            "ERR wrong number of arguments for 'cl.throttle' command",
        ),
        (
            "CL.THROTTLE k -1 30 60",
            "Cell error: max_burst, count, period and quantity must not be negative",
        ),
    ] {
        assert_eq!(client.ask(command), told);
    }
    let throttle = Throttle::new(1, None).unwrap();
    let quota = ThrottleQuota {
        max_burst: 1 << 53,
        count: 1,
        period: 1,
    };
    let refused = throttle.acquire(b"k", quota, 1, Nanos::ZERO);
    assert_eq!(
        refused.map(|decision| reply(&decision)),
        Err(ThrottleError::TooLarge)
    );
}
