//! The cluster settings of a rule, which both programs and token servers read.

use serde::Deserialize;

use super::lenient::lenient;

/// The cluster settings of a flow rule or a hot-parameter rule.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClusterConfig {
    #[serde(deserialize_with = "lenient")]
    pub(super) flow_id: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) threshold_type: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) fallback_to_local_when_fail: Option<bool>,
    #[serde(deserialize_with = "lenient")]
    pub(super) sample_count: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) window_interval_ms: Option<i64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) strategy: Option<i64>,
}

/// Whether a rule applies to a program without a token server.
pub(super) fn applies_here(cluster: Option<bool>, config: Option<&ClusterConfig>, usually: bool) -> bool {
    cluster != Some(true) || config.and_then(|config| config.fallback_to_local_when_fail).unwrap_or(usually)
}
