//! The cluster settings of a rule, which both programs and token servers read.

use serde::Deserialize;

use super::lenient::Lenient;

/// The cluster settings of a flow rule or a hot-parameter rule.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ClusterConfig {
    pub(super) flow_id: Lenient<i64>,
    pub(super) threshold_type: Lenient<i64>,
    pub(super) fallback_to_local_when_fail: Lenient<bool>,
    pub(super) sample_count: Lenient<i64>,
    pub(super) window_interval_ms: Lenient<i64>,
    pub(super) strategy: Lenient<i64>,
}

/// Whether a rule applies to a program without a token server.
pub(super) fn applies_here(
    cluster: Option<bool>,
    config: Option<&ClusterConfig>,
    usually: bool,
) -> bool {
    cluster != Some(true)
        || config
            .and_then(|config| *config.fallback_to_local_when_fail)
            .unwrap_or(usually)
}
