//! Which path leads to which service.

use std::{convert::Infallible, time::Duration};

use axum::http::{Request, Response};
use envoy_types::pb::envoy::service::{
    rate_limit_quota::v3::rate_limit_quota_service_server::{
        RateLimitQuotaServiceServer, SERVICE_NAME as QUOTA,
    },
    ratelimit::v3::rate_limit_service_server::{RateLimitServiceServer, SERVICE_NAME},
};
use hyper::body::Incoming;
use hyper_util::service::TowerToHyperService;
use tokio::time::timeout;
use tonic::{Status, body::Body};
use tonic_health::pb::health_server::{Health, HealthServer, SERVICE_NAME as HEALTH};

use super::{Shared, rlqs::Quotas};

/// The longest message, in bytes.
const MAX_MESSAGE: usize = 64 * 1024;
/// The longest report of quotas: Envoy puts all its buckets into one.
const MAX_REPORT: usize = 4 * 1024 * 1024;
/// How long a call may take, most of all to arrive. A stream may last, once it has begun.
const CALL_TIME: Duration = Duration::from_secs(10);

/// The services, ready to be called.
pub(super) struct Routes<H> {
    rls: TowerToHyperService<RateLimitServiceServer<Shared>>,
    rlqs: TowerToHyperService<RateLimitQuotaServiceServer<Quotas>>,
    health: TowerToHyperService<HealthServer<H>>,
}

/// By hand, as `H` need not be `Clone`.
impl<H> Clone for Routes<H> {
    fn clone(&self) -> Self {
        Self { rls: self.rls.clone(), rlqs: self.rlqs.clone(), health: self.health.clone() }
    }
}

impl<H: Health> Routes<H> {
    pub fn new(shared: Shared, quotas: Quotas, health: HealthServer<H>) -> Self {
        let rls = RateLimitServiceServer::new(shared).max_decoding_message_size(MAX_MESSAGE);
        let rlqs = RateLimitQuotaServiceServer::new(quotas).max_decoding_message_size(MAX_REPORT);
        Self {
            rls: TowerToHyperService::new(rls),
            rlqs: TowerToHyperService::new(rlqs),
            health: TowerToHyperService::new(health),
        }
    }

    /// Answers one call; on a spare slot only about health.
    pub async fn call(
        &self,
        request: Request<Incoming>,
        is_spare: bool,
    ) -> Result<Response<Body>, Infallible> {
        use hyper::service::Service as _;
        // `/package.Service/Method`
        let name = request.uri().path().split('/').nth(1).unwrap_or_default();
        if name == HEALTH {
            return self.health.call(request).await;
        }
        if is_spare {
            let what = "all connections are in use; ask again later, or raise --max-connections";
            return Ok(Status::resource_exhausted(what).into_http());
        }
        let late = |_| {
            let what = format!("the call took longer than {} seconds", CALL_TIME.as_secs());
            Ok(Status::deadline_exceeded(what).into_http())
        };
        if name == SERVICE_NAME {
            return timeout(CALL_TIME, self.rls.call(request)).await.unwrap_or_else(late);
        }
        if name == QUOTA {
            return timeout(CALL_TIME, self.rlqs.call(request)).await.unwrap_or_else(late);
        }
        let what = format!("the services are {SERVICE_NAME}, {QUOTA} and {HEALTH}");
        Ok(Status::unimplemented(what).into_http())
    }
}
