//! Envoy's reports, and the actions sent to it.

use std::sync::Arc;

use crate::pb::{
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
/// How many seconds an assignment without a limit lasts. Envoy's reports come every five seconds.
const UNLIMITED: u64 = 60;

/// The identity of a bucket: names and values, in the order of the names. Envoy's map is unordered,
/// and a map takes much memory for the usual one or two names.
pub(super) type Bucket = [(String, String)];

pub(super) fn bucket(id: Option<BucketId>) -> Arc<Bucket> {
    let mut bucket: Vec<_> = id
        .map(|id| id.bucket.into_iter().collect())
        .unwrap_or_default();
    bucket.sort_unstable();
    bucket.into()
}

/// The length of a bucket's names and values, in bytes.
pub(super) fn text_of(bucket: &Bucket) -> usize {
    bucket
        .iter()
        .map(|(name, value)| name.len() + value.len())
        .sum()
}

/// An assignment of `share` tokens per second for `lasting` seconds; 0 tokens deny everything.
pub(super) fn tokens(bucket: &Bucket, share: u64, lasting: u64) -> BucketAction {
    if share == 0 {
        return assignment(bucket, blanket(BlanketRule::DenyAll), lasting);
    }
    let tokens = u32::try_from(share).unwrap_or(u32::MAX);
    // Envoy ignores `requests_per_time_unit`, truncates intervals to whole seconds, and treats
    // assignments as equal if only the interval differs. So the interval is always one second.
    let strategy = Strategy::TokenBucket(TokenBucket {
        max_tokens: tokens,
        tokens_per_fill: Some(UInt32Value { value: tokens }),
        fill_interval: Some(Duration {
            seconds: 1,
            nanos: 0,
        }),
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

/// Whole seconds, because Envoy truncates the time to live. Without one, or below one second, the
/// assignment ends immediately.
fn assignment(bucket: &Bucket, strategy: Strategy, seconds: u64) -> BucketAction {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let assigned = QuotaAssignmentAction {
        assignment_time_to_live: Some(Duration { seconds, nanos: 0 }),
        rate_limit_strategy: Some(RateLimitStrategy {
            strategy: Some(strategy),
        }),
    };
    action(bucket, Action::QuotaAssignmentAction(assigned))
}

fn action(bucket: &Bucket, action: Action) -> BucketAction {
    let id = BucketId {
        bucket: bucket.iter().cloned().collect(),
    };
    BucketAction {
        bucket_id: Some(id),
        bucket_action: Some(action),
    }
}
