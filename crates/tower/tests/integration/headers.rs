//! Header fields that tell the state of limits.

use tidegate_core::{
    Decision, Policy, Quota, Standing,
    algorithm::{Concurrency, SlidingLog, SlidingWindow, TokenBucket},
};
use tidegate_tower::headers::{self, write_policy, write_state};

#[test]
fn every_policy_tells_the_quota_that_it_was_made_from() {
    let quota = |text: &str| text.parse::<Quota>().expect("the quota is well formed");
    let told = |policy: Policy| {
        let mut text = String::new();
        let (quota, per) = headers::quota(&policy);
        write_policy(&mut text, "x", quota, per);
        text
    };
    let whole = quota("100/1m");
    let log = SlidingLog::new(whole).expect("the log is short");
    for policy in [
        Policy::fixed_window(whole),
        log.into(),
        log.closed().into(),
        SlidingWindow::new(whole).into(),
        Policy::sliding_counter(whole),
        Policy::token_bucket(whole),
        Policy::leaky_bucket(whole),
    ] {
        assert_eq!(told(policy), "\"x\";q=100;w=60", "{policy:?}");
    }
    assert_eq!(told(Policy::fixed_window(quota("3/500ms"))), "\"x\";q=3");
    let bucket = TokenBucket::new(whole)
        .burst(10)
        .expect("the burst is small");
    assert_eq!(told(bucket.into()), "\"x\";q=10;w=6");
    let third = TokenBucket::new(quota("3/1s"))
        .burst(1)
        .expect("it is small");
    assert_eq!(told(third.into()), "\"x\";q=1");
    assert_eq!(
        told(Concurrency::new(5).into()),
        "\"x\";q=5;qu=\"concurrent-requests\""
    );
}

#[test]
fn a_list_has_commas_and_times_are_rounded_up() {
    let mut text = String::new();
    write_state(
        &mut text,
        "a",
        &Decision::allow(Standing {
            limit: 5,
            room: 4,
            unit: 1,
            reset_after: 1_000_000_001,
        }),
    );
    write_state(
        &mut text,
        "b",
        &Decision::deny_for_good(Standing {
            limit: 5,
            room: 0,
            unit: 1,
            reset_after: u64::MAX,
        }),
    );
    assert_eq!(text, "\"a\";r=4;t=2, \"b\";r=0");
}

#[cfg(feature = "vendors")]
mod vendors {
    use tidegate_core::{Decision, Nanos, Standing};
    use tidegate_tower::Vendor;

    const fn left(room: u64, reset_after: u64) -> Decision {
        Decision::allow(Standing {
            limit: 100,
            room,
            unit: 1,
            reset_after,
        })
    }

    fn told(vendor: Vendor, limits: &[(&str, Decision)]) -> Vec<String> {
        // 2027-01-15T08:00:00Z.
        let now = Nanos::from_secs(1_800_000_000);
        let fields = vendor.fields(limits.iter().map(|(name, decision)| (*name, decision)), now);
        fields
            .iter()
            .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
            .collect()
    }

    #[test]
    fn a_refusal_steers_the_retries_of_the_vendors_clients() {
        use std::time::Duration;

        let told = |vendor: Vendor, wait: Option<Duration>| {
            let fields = vendor.retry_fields(wait).into_iter();
            let text = |(name, value): (http::HeaderName, http::HeaderValue)| {
                format!("{name}: {}", value.to_str().unwrap())
            };
            fields.map(text).collect::<Vec<_>>().join(", ")
        };
        let ms = |ms: f64| Some(Duration::from_secs_f64(ms / 1_000.0));
        assert_eq!(told(Vendor::OpenAi, ms(400.2)), "retry-after-ms: 401");
        assert_eq!(
            told(Vendor::OpenAi, Some(Duration::ZERO)),
            "retry-after-ms: 1"
        );
        assert_eq!(told(Vendor::OpenAi, ms(60_000.0)), "retry-after-ms: 60000");
        assert_eq!(told(Vendor::OpenAi, ms(60_001.0)), "x-should-retry: false");
        assert_eq!(told(Vendor::OpenAi, None), "x-should-retry: false");
        assert_eq!(
            told(Vendor::Anthropic, ms(90_000.0)),
            "retry-after-ms: 90000"
        );
        let days = Some(Duration::from_hours(24 * 31));
        assert_eq!(told(Vendor::Anthropic, days), "retry-after-ms: 2147483647");
        assert_eq!(told(Vendor::Anthropic, None), "x-should-retry: false");
        assert_eq!(told(Vendor::Aws, ms(400.2)), "x-amz-retry-after: 401");
        assert_eq!(told(Vendor::Aws, None), "");
    }

    #[test]
    fn openais_fields_have_spans_and_anthropics_have_times() {
        let limits = [
            ("requests", left(60, 500_000_000)),
            ("team.tokens", left(40, 360_000_000_000)),
            ("tokens", left(50, 1_000_000_000)),
            ("subtokens", left(1, 1)),
            ("in-flight", left(1, 1)),
        ];
        assert_eq!(
            told(Vendor::OpenAi, &limits),
            [
                "x-ratelimit-limit-requests: 100",
                "x-ratelimit-remaining-requests: 60",
                "x-ratelimit-reset-requests: 500ms",
                "x-ratelimit-limit-tokens: 100",
                "x-ratelimit-remaining-tokens: 40",
                "x-ratelimit-reset-tokens: 6m0s",
            ]
        );
        let limits = [
            ("input-tokens", left(7, 1_500_000_000)),
            ("user_output-tokens", left(8, u64::MAX)),
        ];
        assert_eq!(
            told(Vendor::Anthropic, &limits),
            [
                "anthropic-ratelimit-input-tokens-limit: 100",
                "anthropic-ratelimit-input-tokens-remaining: 7",
                "anthropic-ratelimit-input-tokens-reset: 2027-01-15T08:00:02Z",
                "anthropic-ratelimit-output-tokens-limit: 100",
                "anthropic-ratelimit-output-tokens-remaining: 8",
            ]
        );
        let hours = [("tokens", left(7, 3_661_000_000_001))];
        assert_eq!(
            told(Vendor::OpenAi, &hours)[2],
            "x-ratelimit-reset-tokens: 1h1m2s"
        );
    }
}
