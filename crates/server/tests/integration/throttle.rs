//! `CL.THROTTLE` replies as redis-cell does, and `THROTTLE` as throttlecrab's server.

use crate::harness;

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
            "ERR wrong number of arguments for 'cl.throttle' command; usage: CL.THROTTLE key max_burst count period [quantity]",
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

/// Requests to throttlecrab-server 0.4.40, and its answers: 1 allowed, the limit, what remains,
/// and the wait in seconds, cut off. The real server took some milliseconds in between.
const THROTTLECRAB: [(&str, [i64; 4]); 15] = [
    ("a 10 100 60", [1, 10, 9, 0]),
    ("a 10 100 60", [1, 10, 8, 0]),
    ("u 3 1 3600", [1, 3, 2, 0]),
    ("u 3 1 3600", [1, 3, 1, 0]),
    ("u 3 1 3600 0", [1, 3, 1, 0]),
    ("u 3 1 3600", [1, 3, 0, 0]),
    ("u 3 1 3600", [0, 3, 0, 3599]),
    ("u 3 1 3600 0", [1, 3, 0, 0]),
    ("w 5 1 3600 5", [1, 5, 0, 0]),
    ("w 5 1 3600", [0, 5, 0, 3599]),
    ("p 3 1 3600 0", [1, 3, 3, 0]),
    ("v 5 1 3600 3", [1, 5, 2, 0]),
    ("v 5 1 3600 3", [0, 5, 2, 3599]),
    ("v 5 1 3600 2", [1, 5, 0, 0]),
    ("one 1 1 3600", [1, 1, 0, 0]),
];

/// The answer of `POST /throttle` to the words of a command, in the order of the command.
fn over_http(server: &Running, words: &str) -> [i64; 5] {
    let words: Vec<&str> = words.split(' ').collect();
    let quantity = words.get(4).copied().unwrap_or("null");
    let body = format!(
        r#"{{"key":"{}","max_burst":{},"count_per_period":{},"period":{},"quantity":{quantity}}}"#,
        words[0], words[1], words[2], words[3]
    );
    let response = server
        .connect_for("/throttle")
        .send("POST", "/throttle", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    let told = response.json();
    let number = |name: &str| told[name].as_i64().unwrap();
    [
        i64::from(told["allowed"].as_bool().unwrap()),
        number("limit"),
        number("remaining"),
        number("reset_after"),
        number("retry_after"),
    ]
}

fn over_resp(client: &mut Resp, words: &str) -> [i64; 5] {
    let told = client.ask(&format!("THROTTLE {words}"));
    let numbers = told.trim_matches(['[', ']']).split(' ');
    let numbers: Vec<i64> = numbers.map(|number| number.parse().expect(&told)).collect();
    numbers.try_into().unwrap()
}

#[test]
fn a_client_of_throttlecrabs_server_gets_its_answers() {
    let servers = [(); 2].map(|()| Running::start(Options::default()));
    let mut client = Resp::connect(servers[0].resp);
    for (words, [allowed, limit, remaining, wait]) in THROTTLECRAB {
        let told = over_resp(&mut client, words);
        assert_eq!(told, over_http(&servers[1], words), "{words}");
        assert_eq!(told[..3], [allowed, limit, remaining], "{words}");
        // Rounded up here: after the truncated wait the request would be denied again.
        assert!((wait..=wait + 1).contains(&told[4]), "{words}: {told:?}");
    }
    // throttlecrab's server admits each request to a bucket of one.
    assert_eq!(
        over_resp(&mut client, "one 1 1 3600"),
        [0, 1, 0, 3600, 3600]
    );
    // It never fits: throttlecrab's server answers with a wait that does not help.
    assert_eq!(over_resp(&mut client, "big 5 1 3600 6"), [0, 5, 5, 0, 0]);
    // After 8.5 idle seconds the bucket of ten is full. throttlecrab's server then admits 17.
    assert_eq!(over_resp(&mut client, "idle 10 10 10"), [1, 10, 9, 1, 0]);
    servers[0].advance(Duration::from_millis(8500));
    let admitted = (0..30)
        .filter(|_| over_resp(&mut client, "idle 10 10 10")[0] == 1)
        .count();
    assert_eq!(admitted, 10);
    // `CL.THROTTLE` means the same bucket, without the request itself.
    assert_eq!(client.ask("CL.THROTTLE idle 9 10 10"), "[1 10 0 1 10]");
}

#[test]
fn a_wrong_question_of_a_client_of_throttlecrabs_server_is_explained() {
    let server = Running::start(Options::default());
    let mut client = Resp::connect(server.resp);
    for (command, told) in [
        (
            "THROTTLE k 0 1 60",
            "ERR max_burst must be at least 1, because it counts the request itself",
        ),
        ("THROTTLE k 1 0 60", "ERR Zero rates are not supported"),
        (
            "THROTTLE k 1 1 60 -1",
            "ERR max_burst, count, period and quantity must not be negative",
        ),
        ("THROTTLE k x 1 60", "ERR Couldn't parse as integer: x"),
        (
            "THROTTLE k 1 1",
            "ERR wrong number of arguments for 'throttle' command; usage: THROTTLE key max_burst count period [quantity]",
        ),
    ] {
        assert_eq!(client.ask(command), told);
    }
    let long = "k".repeat(1_025);
    for (body, told) in [
        (r#"{"key":"k"}"#.to_owned(), "max_burst"),
        (
            r#"{"key":"k","max_burst":0,"count_per_period":1,"period":60}"#.to_owned(),
            "max_burst must be at least 1",
        ),
        (
            r#"{"key":"k","max_burst":1,"count_per_period":0,"period":60}"#.to_owned(),
            "Zero rates are not supported",
        ),
        (
            r#"{"key":"k","max_burst":1,"count_per_period":1,"period":60,"burst":1}"#.to_owned(),
            "burst",
        ),
        (
            format!(r#"{{"key":"{long}","max_burst":1,"count_per_period":1,"period":60}}"#),
            "key",
        ),
        ("{".to_owned(), "JSON"),
    ] {
        let response = server
            .connect_for("/throttle")
            .send("POST", "/throttle", &body);
        assert_eq!(response.status, 400, "{body}: {}", response.body);
        assert!(response.body.contains(told), "{body}: {}", response.body);
    }
}
