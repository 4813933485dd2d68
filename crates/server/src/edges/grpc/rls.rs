//! `envoy.service.ratelimit.v3.RateLimitService`.

use std::sync::{Arc, atomic::Ordering};

use envoy_types::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use tonic::{Code, Request, Response, Status};

use super::{Shared, wire};
use crate::{decide::service::Refusal, envoy::Unanswered, listen::access::Rights};

#[tonic::async_trait]
impl RateLimitService for Shared {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let now = self.rates.service().now();
        let rights = request.extensions().get::<Arc<Rights>>().cloned();
        let message = request.into_inner();
        if rights.is_none_or(|rights| !rights.concern_domain(&message.domain)) {
            let what = format!("the client may not ask for the domain `{}`", message.domain);
            return Err(Status::permission_denied(what));
        }
        let answer = self.rates.decide(&wire::question(&message), now).await;
        let [admitted, denied, failed] = &self.stats.requests;
        let counter = match &answer {
            Ok(answer) if answer.is_over => denied,
            Ok(_) => admitted,
            Err(_) => failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.stats.latency.observe(self.rates.service().now().saturating_since(now), 1);
        answer.map(|answer| Response::new(wire::response(answer))).map_err(|error| status(&error))
    }
}

fn status(error: &Unanswered) -> Status {
    let code = match error {
        Unanswered::NoDomain | Unanswered::NoDescriptors | Unanswered::Override(_) => Code::InvalidArgument,
        Unanswered::Refused(Refusal::NoAnswer { .. }) => Code::Unavailable,
        Unanswered::Refused(_) => Code::FailedPrecondition,
    };
    Status::new(code, error.to_string())
}
