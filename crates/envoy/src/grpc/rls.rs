//! `envoy.service.ratelimit.v3.RateLimitService`.

use crate::pb::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_service_server::RateLimitService,
};
use tidegate_service::decide::{reservations::ReservationError, service::Refusal};
use tonic::{Code, Request, Response, Status};

use super::{Shared, wire};
use crate::descriptors::Unanswered;

#[tonic::async_trait]
impl RateLimitService for Shared {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let id = wire::id(&request);
        let (now, message) = self.begin(request, |message| &message.domain)?;
        let question = wire::question(&message, id.as_deref());
        let answer = self.rates.decide(&question, now).await;
        self.end(now, answer, |answer| answer.is_over, wire::response)
    }
}

pub(super) fn status(error: &Unanswered) -> Status {
    let code = match error {
        Unanswered::NoDomain
        | Unanswered::NoDescriptors
        | Unanswered::Override(_)
        | Unanswered::NotOnce { .. }
        | Unanswered::Refused(
            Refusal::Id { .. }
            | Refusal::Reservation(
                ReservationError::TooManyParts
                | ReservationError::Twice
                | ReservationError::Unknown,
            )
            | Refusal::WaitOnce,
        ) => Code::InvalidArgument,
        Unanswered::Refused(
            Refusal::NoAnswer { .. }
            | Refusal::NotCharged { .. }
            | Refusal::WaitStopped
            | Refusal::Reservation(ReservationError::NoAnswer { .. }),
        ) => Code::Unavailable,
        Unanswered::Refused(
            Refusal::Reservation(ReservationError::TooMany { .. }) | Refusal::TooManyWaiting { .. },
        ) => Code::ResourceExhausted,
        Unanswered::Refused(_) => Code::FailedPrecondition,
    };
    Status::new(code, error.to_string())
}
