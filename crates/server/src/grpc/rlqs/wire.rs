//! Envoy's reports, and what it is told.

use std::collections::BTreeMap;

use envoy_types::pb::{
    envoy::{
        service::rate_limit_quota::v3::{
            BucketId,
            rate_limit_quota_response::{
                BucketAction,
                bucket_action::{AbandonAction, BucketAction as Action, QuotaAssignmentAction},
            },
        },
        r#type::v3::{
            RateLimitStrategy, TokenBucket,
            rate_limit_strategy::{BlanketRule, Strategy},
        },
    },
    google::protobuf::{Duration, UInt32Value},
};
/// How many seconds an Envoy admits everything that nobody limits, without a word: its reports come every five seconds.
const UNLIMITED: u64 = 60;

/// What Envoy knows a bucket by. Its map has no order; this has.
pub(super) type Bucket = BTreeMap<String, String>;

pub(super) fn bucket(id: Option<BucketId>) -> Bucket {
    id.map(|id| id.bucket.into_iter().collect()).unwrap_or_default()
}

/// So many tokens a second, for so many seconds; none denies.
pub(super) fn tokens(bucket: &Bucket, share: u64, lasting: u64) -> BucketAction {
    if share == 0 {
        return assignment(bucket, blanket(BlanketRule::DenyAll), lasting);
    }
    let tokens = u32::try_from(share).unwrap_or(u32::MAX);
    // Envoy ignores `requests_per_time_unit`, cuts intervals to whole seconds, and takes assignments that differ in nothing
    // else for the same: so it is always one second.
    let strategy = Strategy::TokenBucket(TokenBucket {
        max_tokens: tokens,
        tokens_per_fill: Some(UInt32Value { value: tokens }),
        fill_interval: Some(Duration { seconds: 1, nanos: 0 }),
    });
    assignment(bucket, strategy, lasting)
}

pub(super) fn everything(bucket: &Bucket) -> BucketAction {
    assignment(bucket, blanket(BlanketRule::AllowAll), UNLIMITED)
}

pub(super) fn abandon(bucket: &Bucket) -> BucketAction {
    action(bucket, Action::AbandonAction(AbandonAction {}))
}

fn blanket(rule: BlanketRule) -> Strategy {
    Strategy::BlanketRule(rule.into())
}

/// Whole seconds: Envoy cuts off the rest, and one without a time, or below a second, ends at once.
fn assignment(bucket: &Bucket, strategy: Strategy, seconds: u64) -> BucketAction {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let assigned = QuotaAssignmentAction {
        assignment_time_to_live: Some(Duration { seconds, nanos: 0 }),
        rate_limit_strategy: Some(RateLimitStrategy { strategy: Some(strategy) }),
    };
    action(bucket, Action::QuotaAssignmentAction(assigned))
}

fn action(bucket: &Bucket, action: Action) -> BucketAction {
    let id = BucketId { bucket: bucket.clone().into_iter().collect() };
    BucketAction { bucket_id: Some(id), bucket_action: Some(action) }
}
