//! `grpc.health.v1`: whether this server wants requests, as `/readyz` says it over HTTP.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tonic_health::{ServingStatus, server::HealthReporter};

use crate::service::{Readiness, Service};

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(1);
/// What is served: the process as a whole, the services by their names in Envoy, and the name that envoyproxy/ratelimit uses.
const NAMES: [&str; 4] = [
    "",
    "envoy.service.ratelimit.v3.RateLimitService",
    "envoy.service.rate_limit_quota.v3.RateLimitQuotaService",
    "ratelimit",
];

/// Reports until `stop` says so, and then that the server stops.
pub(super) async fn report(reporter: HealthReporter, service: Arc<Service>, mut stop: watch::Receiver<bool>) {
    let mut looks = interval(EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let status = match service.readiness() {
            Readiness::Ready | Readiness::Degraded { .. } => ServingStatus::Serving,
            Readiness::Closed { .. } => ServingStatus::NotServing,
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
