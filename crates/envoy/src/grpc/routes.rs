//! Maps paths to services.

use std::{
    convert::Infallible, future::poll_fn, net::IpAddr, pin::pin, sync::Arc, task::Poll,
    time::Duration,
};

use crate::pb::envoy::service::{
    rate_limit_quota::v3::rate_limit_quota_service_server::SERVICE_NAME as QUOTA,
    ratelimit::v3::rate_limit_service_server::SERVICE_NAME,
};
use http::{HeaderMap, Request, Response, header};
use hyper::body::Incoming;
use hyper_util::service::TowerToHyperService;
use tidegate_core::Nanos;
use tidegate_export::telemetry::Traced;
use tidegate_headers::ceil_secs;
use tidegate_listen::{
    access::{Door, Rights, Role},
    credentials::http_rights,
    drain::drain,
    strangers::Strangers,
};
use tokio::time::timeout;
use tonic::{Code, Status, body::Body};
use tonic_health::pb::health_server::{Health, HealthServer, SERVICE_NAME as HEALTH};

use super::{
    Shared,
    kuadrant::{self, SERVICE_NAME as KUADRANT},
    messages::{Limits, Memory},
    reflection::{Erased, Reflection},
    rlqs::Quotas,
    rls,
    stats::CODES,
    waiting,
};

/// The limits of a request for a decision. Envoy allows 60 KiB of header fields by default and up
/// to 8 MiB, and a descriptor may repeat them. Its parts are descriptors (field 2) and their
/// entries (field 1).
const REQUEST: Limits = Limits {
    size: 4 * 1024 * 1024,
    path: &[2, 1],
    parts: 4_096,
};
/// The limits of a quota report, into which Envoy puts all its buckets. Its parts are usages (field
/// 2), their buckets (field 1) and the buckets' entries (field 1). It is answered with as much.
const REPORT: Limits = Limits {
    size: 2 * 1024 * 1024,
    path: &[2, 1, 1],
    parts: 20_000,
};
/// The limits of other messages: they name a service or a file.
const OTHER: Limits = Limits {
    size: 16 * 1024,
    path: &[],
    parts: 0,
};
/// The time limit of a call, including its arrival. A stream may last longer once it has begun.
const CALL_TIME: Duration = Duration::from_secs(10);

/// The call that is followed by telemetry. Streams of quotas last as long as an Envoy, and clients
/// make up other names.
const FOLLOWED: &str = rls::PATH;

/// The services, ready to be called.
pub(super) struct Routes<H> {
    /// Who gave wrong tokens.
    strangers: Strangers,
    shared: Shared,
    rlqs: Quotas,
    health: TowerToHyperService<HealthServer<H>>,
    reflection: Reflection,
    memory: Memory,
}

/// The service that is called.
enum Called<'s> {
    Rls,
    Rlqs,
    Kuadrant,
    /// A service of reflection, or none.
    Other(Option<&'s Erased>),
}

/// The connection of a call.
#[derive(Clone, Copy)]
pub(super) struct Caller<'a> {
    /// Only health checks are served.
    pub is_spare: bool,
    /// Those in the client's certificate, if any.
    pub names: Option<&'a [String]>,
    pub client: IpAddr,
}

impl<H: Health> Routes<H> {
    pub fn new(
        shared: Shared,
        quotas: Quotas,
        health: HealthServer<H>,
        strangers: Strangers,
    ) -> Self {
        Self {
            strangers,
            shared,
            rlqs: quotas,
            health: TowerToHyperService::new(health),
            reflection: Reflection::new(),
            memory: Memory::default(),
        }
    }

    /// Handles one call, and counts and logs its error.
    pub async fn call(
        &self,
        request: Request<Incoming>,
        caller: Caller<'_>,
    ) -> Result<Response<Body>, Infallible> {
        let service = self.shared.rates.service();
        let telemetry = self
            .shared
            .telemetry
            .as_deref()
            .filter(|_| request.uri().path() == FOLLOWED);
        let traced = telemetry.map(|telemetry| (telemetry.call(&request), service.now()));
        let answer = pin!(self.answer(request, caller));
        let response = match &traced {
            None => answer.await?,
            Some((traced, _)) => traced.within(answer).await?,
        };
        if let Some((traced, started)) = traced {
            let took = service.now().saturating_since(started);
            end(traced, &response, took);
        }
        // The end of a stream comes later; its errors are for the client alone.
        if let Some(status) = Status::from_header_map(response.headers())
            && status.code() != Code::Ok
        {
            self.shared.stats.errors.add(&status, service.now());
        }
        Ok(response)
    }

    async fn answer(
        &self,
        mut request: Request<Incoming>,
        Caller {
            is_spare,
            names,
            client,
        }: Caller<'_>,
    ) -> Result<Response<Body>, Infallible> {
        use hyper::service::Service as _;
        // `/package.Service/Method`
        let name = request.uri().path().split('/').nth(1).unwrap_or_default();
        if name == HEALTH {
            return self.health.call(self.memory.bound(OTHER, request)).await;
        }
        let called = match name {
            SERVICE_NAME => Called::Rls,
            QUOTA => Called::Rlqs,
            KUADRANT => Called::Kuadrant,
            name => Called::Other(self.reflection.service(name)),
        };
        if is_spare {
            let what = "all connections are in use; retry later or raise --max-connections";
            return Ok(Status::resource_exhausted(what).into_http());
        }
        let rights = match permit(&self.shared.door, request.headers(), names) {
            Ok(rights) => rights,
            Err(mut status) => {
                let is_wrong = status.code() == Code::Unauthenticated
                    && request.headers().contains_key(header::AUTHORIZATION);
                if let Some(wait) = is_wrong.then(|| self.strangers.failed(client)).flatten() {
                    status = guesses(wait);
                }
                drain(request.into_body()).await;
                return Ok(status.into_http());
            }
        };
        request.extensions_mut().insert(rights);
        // What is wrong with it is said by the call.
        let waits = waiting::wait(request.headers()).ok().flatten();
        let time = CALL_TIME.saturating_add(waits.map(|wait| wait.span).unwrap_or_default());
        let answered = async {
            match called {
                Called::Rls => {
                    let request = self.memory.bound(REQUEST, request);
                    // In a box: the calls of all services have room for the largest of them.
                    Ok(Box::pin(rls::call(&self.shared, REQUEST.size, request)).await)
                }
                Called::Rlqs => Ok(self.rlqs.call(self.memory.bound(REPORT, request)).await),
                Called::Kuadrant => {
                    let request = self.memory.bound(REQUEST, request);
                    Ok(kuadrant::call(self.shared.clone(), REQUEST.size, request).await)
                }
                Called::Other(Some(reflection)) => {
                    reflection(self.memory.bound(OTHER, request)).await
                }
                Called::Other(None) => Ok(Status::unimplemented(format!(
                    "the services are {SERVICE_NAME}, {KUADRANT}, {QUOTA}, {HEALTH} and grpc.reflection"
                ))
                .into_http()),
            }
        };
        let mut answered = pin!(answered);
        // As nearly always if the limits are in memory. It needs no timer.
        let first = poll_fn(|context| Poll::Ready(answered.as_mut().poll(context))).await;
        if let Poll::Ready(answer) = first {
            return answer;
        }
        timeout(time, answered).await.unwrap_or_else(|_| {
            let what = format!("the call took longer than {} seconds", time.as_secs());
            Ok(Status::deadline_exceeded(what).into_http())
        })
    }
}

/// Ends the span of a call.
fn end(traced: Traced<'_>, response: &Response<Body>, took: Nanos) {
    // A call that fails says so in the head; one that succeeds in the trailers.
    let code = Status::from_header_map(response.headers()).map_or(Code::Ok, |status| status.code());
    let is_servers_fault = matches!(
        code,
        Code::Unknown
            | Code::DeadlineExceeded
            | Code::Unimplemented
            | Code::Internal
            | Code::Unavailable
            | Code::DataLoss
    );
    traced.ended(CODES[code as usize], is_servers_fault, took);
}

/// The client's address has given too many wrong tokens.
fn guesses(wait: Duration) -> Status {
    let seconds = ceil_secs(wait);
    Status::resource_exhausted(format!(
        "too many wrong tokens from this address: the next answer to a wrong one is in {seconds} s; a right one is accepted at once"
    ))
}

/// The rights of the caller, or an error if they do not include decisions.
#[allow(
    clippy::result_large_err,
    reason = "a status is what a call is answered with"
)]
fn permit(
    door: &Door,
    headers: &HeaderMap,
    names: Option<&[String]>,
) -> Result<Arc<Rights>, Status> {
    let rights = http_rights(door, headers, names).map_err(|_| {
        let what = "the call needs a token that the server knows (metadata `authorization: Bearer TOKEN`), or such a client certificate";
        Status::unauthenticated(what)
    })?;
    if rights.may(Role::Decide) {
        return Ok(rights);
    }
    let what = format!(
        "{} may not ask for decisions: it needs the role `decide`",
        rights.name
    );
    Err(Status::permission_denied(what))
}
