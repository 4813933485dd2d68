//! `kuadrant.service.ratelimit.v1.RateLimitService`: check, report, reserve and commit. The
//! messages are those of the file in `proto`.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::pb::{
    envoy::{
        extensions::common::ratelimit::v3::RateLimitDescriptor,
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::Code as Verdict,
        },
    },
    google::protobuf,
};
use tidegate_core::Nanos;
use tidegate_listen::access::Rights;
use tonic::{Request, Response, Status, body::Body};

use super::{
    Shared,
    rls::status,
    unary::{Method, of_size},
    waiting, wire,
};
use crate::descriptors::{Answer, Question, Unanswered};

pub(super) const SERVICE_NAME: &str = "kuadrant.service.ratelimit.v1.RateLimitService";

/// How long a reservation lives if the request does not say it, and the maximum.
const USUAL_TTL: Duration = Duration::from_mins(1);
const LONGEST_TTL: Duration = Duration::from_hours(24);

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ReserveRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    pub amount: u64,
    #[prost(message, optional, tag = "4")]
    pub ttl: Option<protobuf::Duration>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ReserveResponse {
    #[prost(enumeration = "Verdict", tag = "1")]
    pub code: i32,
    /// Empty for a denial, and if no limit concerns the descriptors.
    #[prost(string, tag = "2")]
    pub reservation_id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CommitRequest {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(string, tag = "3")]
    pub reservation_id: String,
    #[prost(uint64, tag = "4")]
    pub actual_amount: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub(super) struct CommitResponse {
    #[prost(bool, tag = "1")]
    pub reservation_released: bool,
}

/// Answers a call of the service whose messages have at most `size` bytes.
pub(super) async fn call<B>(
    shared: Shared,
    size: usize,
    request: http::Request<B>,
) -> http::Response<Body>
where
    B: hyper::body::Body + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    let method = request
        .uri()
        .path()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let shared = &Arc::new(shared);
    match &*method {
        "CheckRateLimit" => {
            let check = Method(|request: Request<RateLimitRequest>| shared.check(request));
            of_size(size).unary(check, request).await
        }
        "Report" => {
            let report = Method(|request: Request<RateLimitRequest>| shared.report(request));
            of_size(size).unary(report, request).await
        }
        "Reserve" => {
            let reserve = Method(|request: Request<ReserveRequest>| shared.reserve(request));
            of_size(size).unary(reserve, request).await
        }
        "Commit" => {
            let commit = Method(|request: Request<CommitRequest>| shared.commit(request));
            of_size(size).unary(commit, request).await
        }
        _ => Status::unimplemented(format!("{SERVICE_NAME} has no method `{method}`")).into_http(),
    }
}

impl Shared {
    async fn check(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let (now, message) = self.begin(request, |message| &message.domain)?;
        let question = wire::question(&message, None);
        let answer = self.rates.check(&question, now).await;
        self.end(now, answer, |answer| answer.is_over, wire::response)
    }

    async fn report(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let id = wire::id(&request);
        let (now, message) = self.begin(request, |message| &message.domain)?;
        let question = wire::question(&message, id.as_deref());
        let answer = self.rates.report(&question, None, now).await;
        self.end(now, answer, |_: &Answer| false, wire::response)
    }

    async fn reserve(
        &self,
        request: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        let id = wire::id(&request);
        let wait = waiting::wait(request.metadata().as_ref())?;
        let (now, message) = self.begin(request, |message| &message.domain)?;
        let ttl = ttl(message.ttl.as_ref())?;
        let question = question(&message.domain, &message.descriptors, id.as_deref());
        let reserved = self
            .rates
            .reserve(&question, (message.amount, ttl), wait, now)
            .await;
        let response = |id: Option<String>| ReserveResponse {
            code: if id.is_some() {
                Verdict::Ok
            } else {
                Verdict::OverLimit
            }
            .into(),
            reservation_id: id.unwrap_or_default(),
        };
        self.end(now, reserved, Option::is_none, response)
    }

    async fn commit(
        &self,
        request: Request<CommitRequest>,
    ) -> Result<Response<CommitResponse>, Status> {
        let (now, message) = self.begin(request, |message| &message.domain)?;
        let question = question(&message.domain, &message.descriptors, None);
        let reserved = (&*message.reservation_id, message.actual_amount);
        let committed = self.rates.commit(&question, reserved, now).await;
        let response = |reservation_released| CommitResponse {
            reservation_released,
        };
        self.end(now, committed, |_| false, response)
    }

    /// The time and the message, if the client may ask for its domain.
    pub(super) fn begin<M>(
        &self,
        request: Request<M>,
        domain: impl Fn(&M) -> &String,
    ) -> Result<(Nanos, M), Status> {
        let now = self.rates.service().now();
        let rights = request.extensions().get::<Arc<Rights>>().cloned();
        let message = request.into_inner();
        if rights.is_none_or(|rights| !rights.concern_domain(domain(&message))) {
            let what = format!(
                "the client may not ask for the domain `{}`",
                domain(&message)
            );
            return Err(Status::permission_denied(what));
        }
        Ok((now, message))
    }

    /// Counts a call, and makes its response.
    pub(super) fn end<T, M>(
        &self,
        began: Nanos,
        answer: Result<T, Unanswered>,
        is_denied: impl Fn(&T) -> bool,
        response: impl Fn(T) -> M,
    ) -> Result<Response<M>, Status> {
        let [admitted, denied, failed] = &self.stats.requests;
        let counter = match &answer {
            Ok(answer) if is_denied(answer) => denied,
            Ok(_) => admitted,
            Err(_) => failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.stats
            .latency
            .observe(self.rates.service().now().saturating_since(began), 1);
        answer
            .map(|answer| Response::new(response(answer)))
            .map_err(|error| status(&error))
    }
}

fn question<'a>(
    domain: &'a str,
    descriptors: &'a [RateLimitDescriptor],
    id: Option<&'a [u8]>,
) -> Question<'a> {
    Question {
        id,
        domain,
        hits: 0,
        descriptors: descriptors.iter().map(wire::descriptor).collect(),
    }
}

#[allow(
    clippy::result_large_err,
    reason = "a status is what a call is answered with"
)]
fn ttl(given: Option<&protobuf::Duration>) -> Result<Nanos, Status> {
    let Some(given) = given else {
        return Ok(USUAL_TTL.into());
    };
    let ttl = u64::try_from(given.seconds)
        .ok()
        .zip(u32::try_from(given.nanos).ok());
    match ttl.map(|(seconds, nanos)| {
        Duration::from_secs(seconds).saturating_add(Duration::from_nanos(nanos.into()))
    }) {
        Some(Duration::ZERO) => Ok(USUAL_TTL.into()),
        Some(ttl) => Ok(ttl.min(LONGEST_TTL).into()),
        None => Err(Status::invalid_argument("ttl must not be negative")),
    }
}
