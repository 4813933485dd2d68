//! Names and options: what is read, what is printed, and what an error says.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Algorithm, AlgorithmSpec, Denied, Nanos, Penalty, Policy, Quota, Wants,
    algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket},
};

fn policy(text: &str) -> Policy {
    text.parse().unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn every_option_reaches_the_policy() {
    let quota = Quota::per_second(10);
    let window = SlidingWindow::new(quota);
    let wait = Duration::from_millis(500);
    for (text, expected) in [
        ("10/1s", window.into()),
        ("fixed-window 10/1s", FixedWindow::new(quota).into()),
        (
            "fixed-window:first-hit 10/1s",
            FixedWindow::new(quota).first_hit().into(),
        ),
        (
            "fixed-window:first_hit=false:count_denied=false 10/1s",
            FixedWindow::new(quota).into(),
        ),
        (
            "sliding-log:closed 10/1s",
            SlidingLog::new(quota).unwrap().closed().into(),
        ),
        (
            "sliding-window:slots=60:mode=balanced 10/1s",
            window.slots(60).unwrap().balanced().into(),
        ),
        ("sliding-window:mode=strict 10/1s", window.into()),
        (
            "sliding-counter:count-denied 10/1s",
            Policy::sliding_counter(quota).count_denied(),
        ),
        (
            "gcra:burst=20 10/1s",
            TokenBucket::new(quota).burst(20).unwrap().into(),
        ),
        (
            "leaky-bucket:max_wait=500ms 10/1s",
            LeakyBucket::new(quota).max_wait(wait).unwrap().into(),
        ),
        (
            "sliding-counter:block-for=60s,10m,1d:block-after=3:block-within=10m 10/1s",
            Policy::sliding_counter(quota).block_for(
                Penalty::new(&[60, 600, 86_400].map(Duration::from_secs))
                    .unwrap()
                    .after(3, Duration::from_mins(10))
                    .unwrap(),
            ),
        ),
        ("concurrency 10", Policy::concurrency(10)),
        (
            "concurrency:hold=500ms 10",
            Concurrency::new(10).hold(wait).unwrap().into(),
        ),
    ] {
        assert_eq!(policy(text), expected, "{text}");
    }
    assert_eq!(Policy::from(quota), policy("10/1s"));
}

#[test]
fn every_algorithm_and_every_option_that_is_listed_can_be_read() {
    for spec in AlgorithmSpec::all() {
        assert_eq!(spec.name().parse(), Ok(spec));
        for &alias in spec.aliases() {
            assert_eq!(alias.parse(), Ok(spec), "an alias is another name");
        }
        let common = AlgorithmSpec::common().iter().filter(|known| {
            // These two need `block_for`.
            spec.limits_rate() && !["block_after", "block_within"].contains(&known.name)
        });
        for known in spec.known().iter().chain(common) {
            let value = match known.wants {
                Wants::Flag | Wants::Switch => "true",
                Wants::Count { .. } => "7",
                // At least the window, in which fixed windows give units back.
                Wants::Span if known.name == "oversize_wait" => "70d",
                Wants::Span => "7s",
                Wants::Spans => "7s,1m",
                Wants::Zone => "Europe/Berlin",
                Wants::OneOf(words) => words[words.len() - 1],
                other => panic!("{other:?} has no example"),
            };
            let mut spec = spec;
            if known.name == "oversize_wait" && spec.name() == "fixed-window" {
                spec.set("burst", Some("9")).unwrap();
            }
            let mut set = spec;
            set.set(known.name, Some(value)).unwrap();
            assert_ne!(set, spec);
            let quota = "5/30d".parse().unwrap();
            let built = if spec.limits_rate() {
                set.policy(quota)
            } else {
                set.permits(5)
            };
            let plain = if spec.limits_rate() {
                spec.policy(quota)
            } else {
                spec.permits(5)
            };
            assert_ne!(
                built.unwrap(),
                plain.unwrap(),
                "{} reaches the policy",
                known.name
            );
            assert_eq!(
                set.to_string().parse(),
                Ok(set),
                "what is printed is read back"
            );
        }
    }
}

#[test]
fn an_error_names_the_mistake_and_the_known_values() {
    let message = |text: &str| text.parse::<Policy>().unwrap_err().to_string();
    let unknown = message("token_buckt 10/1s");
    assert!(
        unknown.starts_with(
            "no algorithm `token_buckt`; choose from fixed-window, sliding-log, sliding-window"
        ),
        "{unknown}"
    );
    let option = message("token-bucket:busrt=3 10/1s");
    assert!(
        option.contains("no option `busrt`; it has burst, oversize_wait, count_denied"),
        "{option}"
    );
    assert!(
        message("sliding-window:slots=x 10/1s")
            .contains("`slots` wants a whole number from 1 to 3600")
    );
    assert!(message("sliding-window:mode=x 10/1s").contains("`mode` wants strict or balanced"));
    assert!(
        message("concurrency:count-denied 10").contains("no option"),
        "a denied permit is never given back"
    );
    for (text, expected) in [
        (
            "fixed-window:block-for=1us 10/1s",
            "`block-for` wants one to three durations",
        ),
        (
            "fixed-window:block-for=1s,2s,3s,4s 10/1s",
            "`block-for` wants one to three durations",
        ),
        (
            "fixed-window:block-for=60s,10s 10/1s",
            "none shorter than the one before",
        ),
        (
            "fixed-window:block-for 10/1s",
            "`block-for` wants one to three durations",
        ),
        ("fixed-window:block-after=3 10/1s", "need block_for"),
        (
            "fixed-window:block-for=1m:block-after=3 10/1s",
            "block_after needs block_within",
        ),
        (
            "fixed-window:block-for=1m:block-within=3s 10/1s",
            "block_within needs block_after",
        ),
        (
            "fixed-window:block-for=1m:block-after=2:block-within=0s 10/1s",
            "block_within 1ms to 49d",
        ),
        (
            "concurrency:block-for=1m 10",
            "concurrency has no option `block-for`; it has hold",
        ),
    ] {
        assert!(
            message(text).contains(expected),
            "{text}: {}",
            message(text)
        );
    }
    assert!(message("concurrency").contains("as in `concurrency 10`"));
    assert!(message("sliding-log").contains("as in `sliding-log 100/1m`"));
    assert!(message("sliding-log 10").contains("N/duration"));
    assert!(message("sliding-log 2000000/1s").contains("choose sliding-window"));
    assert!(message("concurrency 10/1s").contains("whole number"));
    assert!(message("").contains("100/1m") && message("a b c").contains("token-bucket 100/1m"));
    let spec = AlgorithmSpec::named("concurrency").unwrap();
    assert!(
        spec.policy(Quota::per_second(1))
            .unwrap_err()
            .to_string()
            .contains("permits")
    );
}

#[test]
fn a_decision_displays_as_words() {
    let policy = policy("token-bucket 2/1s");
    let mut state = vec![0; policy.words()];
    let mut ask = |cost| policy.decide(&mut state, Nanos::ZERO, cost);
    assert_eq!(ask(1).to_string(), "allowed, 1 of 2 left");
    assert_eq!(
        ask(1).into_result().map(|decision| decision.remaining()),
        Ok(0)
    );
    let denied: Denied = ask(1).into_result().unwrap_err();
    assert_eq!(
        denied.to_string(),
        "denied, 0 of 2 left, try again in 500ms"
    );
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(500)));
    assert!(denied.decision().is_denied() && !denied.decision().exceeds_limit());
    let large = ask(3);
    assert!(large.is_denied() && large.exceeds_limit());
    assert_eq!(
        large.to_string(),
        "denied, the cost is above the limit of 2"
    );
    assert_eq!(Nanos::from_millis(1_500).to_string(), "1s500ms");
}

proptest! {
    /// For every algorithm and option, with any numbers.
    #[test]
    fn a_policy_is_read_back_from_what_it_prints(
        limit in 0_u64..2_000, window in 1_u64..31_622_400_000_000_000, slots in 1_u32..3_600, burst in any::<u64>(),
        span in 1_u64..31_622_400_000_000_000, count_denied in any::<bool>(), spans in 0_usize..4, after in 1_u32..4
    ) {
        let quota = Quota::new(limit, Duration::from_nanos(window)).unwrap();
        let (span, millis) = (Duration::from_nanos(span), Duration::from_millis(1 + span % 4_233_600_000));
        let sliding = SlidingWindow::new(quota);
        let bucket = TokenBucket::new(quota);
        let leaky = LeakyBucket::new(quota);
        let log = SlidingLog::new(quota).unwrap();
        let mut policies: Vec<Policy> = vec![
            FixedWindow::new(quota).into(), FixedWindow::new(quota).first_hit().into(), log.into(), log.closed().into(),
            sliding.into(), sliding.balanced().into(), Policy::sliding_counter(quota), bucket.into(),
            leaky.into(), leaky.max_wait(span).unwrap().into(), leaky.max_wait(Duration::ZERO).unwrap().into(),
            Policy::concurrency(limit as u32), Concurrency::new(limit as u32).hold(span).unwrap().into(),
        ];
        policies.extend(sliding.slots(slots).map(Policy::from));
        policies.extend([0, 1, burst % 1_000, burst].into_iter().filter_map(|burst| bucket.burst(burst).ok()).map(Policy::from));
        for policy in policies {
            let policy = if count_denied && policy.spec().limits_rate() { policy.count_denied() } else { policy };
            let penalty = Penalty::new(&[millis, millis, millis.max(Duration::from_secs(1))][..spans]);
            let policy = penalty.map_or(policy, |penalty| policy.block_for(penalty.after(after, millis).unwrap()));
            prop_assert_eq!(policy.to_string().parse(), Ok(policy), "{}", policy);
        }
    }
}

#[cfg(feature = "serde")]
#[test]
fn a_policy_is_the_same_after_a_round_trip_and_a_mistake_is_told() {
    for text in [
        "\"token-bucket:burst=20 10/1s\"",
        "\"sliding-log 5/1m\"",
        "\"concurrency 7\"",
    ] {
        let policy: Policy = serde_json::from_str(text).unwrap();
        let again: Policy = serde_json::from_str(&serde_json::to_string(&policy).unwrap()).unwrap();
        assert_eq!(again, policy, "{text}");
    }
    assert_eq!(
        serde_json::to_string(&Quota::per_minute(5)).unwrap(),
        "\"5/1m\""
    );
    let mistake = serde_json::from_str::<Policy>("\"token-bucket 10\"").unwrap_err();
    assert!(!mistake.to_string().is_empty());
    let number = serde_json::from_str::<Quota>("5").unwrap_err();
    assert!(
        number.to_string().contains("a text such as `10/1s`"),
        "{number}"
    );
}
