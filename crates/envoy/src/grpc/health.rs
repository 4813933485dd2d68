//! `grpc.health.v1`: whether this server accepts requests, the same as `/readyz` over HTTP.

use std::{sync::Arc, time::Duration};

use tidegate_service::decide::service::{Readiness, Service};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tonic_health::{ServingStatus, server::HealthReporter};

/// How often the state is checked.
const EVERY: Duration = Duration::from_secs(1);
/// The service names: the whole process, the services by their Envoy names, and the name that
/// envoyproxy/ratelimit uses.
const NAMES: [&str; 4] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "ratelimit",
];

/// Reports the state until `stop` is set, and then that the server is stopping.
pub(super) async fn report(
    reporter: HealthReporter,
    service: Arc<Service>,
    mut stop: watch::Receiver<bool>,
) {
    let mut looks = interval(EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let status = match service.readiness() {
            Readiness::Ready | Readiness::Degraded { .. } => ServingStatus::Serving,
            Readiness::Stopping | Readiness::NoRules | Readiness::Closed { .. } => {
                ServingStatus::NotServing
            }
        };
        set(&reporter, status).await;
        tokio::select! {
            _ = looks.tick() => {}
            changed = stop.changed() => if changed.is_err() || *stop.borrow() {
                break;
            },
        }
    }
    set(&reporter, ServingStatus::NotServing).await;
}

async fn set(reporter: &HealthReporter, status: ServingStatus) {
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}
