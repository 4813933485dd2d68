//! `envoy.service.ratelimit.v3.RateLimitService`.

use crate::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use tidegate_service::decide::{reservations::ReservationError, service::Refusal};
use tonic::{Code, Request, Response, Status, body::Body};

use super::{
    Shared,
    unary::{Method, of_size},
    wire,
};
use crate::descriptors::Unanswered;

/// The path of its only method.
pub(super) const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Answers a call of the service whose messages have at most `size` bytes.
pub(super) async fn call<B>(
    shared: &Shared,
    size: usize,
    request: http::Request<B>,
) -> http::Response<Body>
where
    B: hyper::body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    if request.uri().path() != PATH {
        let what = format!("the service's only method is {PATH}");
        return Status::unimplemented(what).into_http();
    }
    let decide = Method(|request: Request<RateLimitRequest>| shared.should_rate_limit(request));
    of_size(size).unary(decide, request).await
}

impl Shared {
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
