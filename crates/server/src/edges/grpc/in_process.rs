//! The services without connections, for the fuzz targets: messages as bytes, on a clock that they move.

use std::{sync::Arc, time::Duration};

use axum::http::Request;
use envoy_types::pb::envoy::service::{
    rate_limit_quota::v3::rate_limit_quota_service_server::RateLimitQuotaServiceServer,
    ratelimit::v3::rate_limit_service_server::RateLimitServiceServer,
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use tidegate_core::{Clock, ManualClock, Nanos};
use tokio::{
    runtime::{Builder, Runtime},
    sync::{mpsc, watch},
};
use tonic::codegen::Service as _;

use super::{
    Shared, kuadrant,
    rlqs::{self, Quotas},
};
use crate::{
    decide::{
        limits::Limits,
        service::{InForce, Service},
        throttle::Throttle,
    },
    envoy,
    envoy::decide::{AnswerFields, Consume, DescriptorService},
    listen::access::{Access, Door, Rights},
    rules::{Keeping, Rules},
};

const RLS: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const RLQS: &str = "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
const START: Nanos = Nanos::from_secs(1_700_049_600);

/// Envoy's services with a configuration.
#[doc(hidden)]
pub struct InProcess {
    runtime: Runtime,
    shared: Shared,
    rls: RateLimitServiceServer<Shared>,
    rlqs: RateLimitQuotaServiceServer<Quotas>,
    clock: Arc<ManualClock>,
    _stop: watch::Sender<bool>,
}

impl InProcess {
    /// # Panics
    /// When the configuration has mistakes.
    pub fn new(config: &str) -> Self {
        let config = envoy::parse(config, 0, Keeping::Memory).expect("a configuration").into_config();
        let rules = Rules { limits: config.limits, ..Rules::default() };
        let limits = Limits::new(rules, 1_000, |_| None, START).expect("memory");
        let clock = Arc::new(ManualClock::new(START));
        let its: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let throttle = Throttle::new(4, None).expect("memory");
        let service = Arc::new(Service::new(InForce::new(limits, config.domains, None), throttle, its));
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (events, reports) = mpsc::channel(rlqs::EVENTS);
        let (stop, stopping) = watch::channel(false);
        runtime.spawn(rlqs::assign(Arc::clone(&service), Arc::default(), reports, stopping));
        let door = Door::new(Arc::new(Access::open(None, false).expect("no file")), true);
        let rates = Arc::new(DescriptorService::new(service, Consume::default(), AnswerFields::RateLimit));
        let shared = Shared { rates, stats: Arc::default(), door, telemetry: None };
        let rls = RateLimitServiceServer::new(shared.clone());
        let rlqs = RateLimitQuotaServiceServer::new(Quotas::new(events));
        Self { runtime, shared, rls, rlqs, clock, _stop: stop }
    }

    /// Moves the clock on.
    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Asks `ShouldRateLimit` with these bytes as its message. Returns the gRPC status and the answer's bytes.
    pub fn should_rate_limit(&mut self, message: &[u8]) -> (i32, Vec<u8>) {
        let request = request(RLS, [message]);
        let answer = self.rls.call(request);
        self.runtime.block_on(read(answer))
    }

    /// Calls a method of Kuadrant's service. Returns the gRPC status and the answer's bytes.
    pub fn kuadrant(&mut self, method: &str, message: &[u8]) -> (i32, Vec<u8>) {
        let path = format!("/{}/{method}", kuadrant::SERVICE_NAME);
        let answer = kuadrant::call(self.shared.clone(), 1 << 20, request(&path, [message]));
        self.runtime.block_on(async { read(async { Ok::<_, std::convert::Infallible>(answer.await) }).await })
    }

    /// Sends these messages over one stream of `StreamRateLimitQuotas`, and reads until it ends.
    pub fn stream_quotas<'m>(&mut self, messages: impl IntoIterator<Item = &'m [u8]>) -> (i32, Vec<u8>) {
        let answer = self.rlqs.call(request(RLQS, messages));
        self.runtime.block_on(read(answer))
    }
}

/// A call of a client that may do everything.
fn request<'m>(path: &str, messages: impl IntoIterator<Item = &'m [u8]>) -> Request<Full<Bytes>> {
    let mut body = Vec::new();
    for message in messages {
        body.push(0);
        body.extend(u32::try_from(message.len()).expect("a short message").to_be_bytes());
        body.extend(message);
    }
    let mut request = Request::new(Full::new(body.into()));
    *request.uri_mut() = path.parse().expect("a path");
    request.headers_mut().insert("content-type", "application/grpc".parse().expect("a header's value"));
    request.extensions_mut().insert(Arc::new(Rights::all("fuzzer")));
    request
}

async fn read<E: std::fmt::Debug>(
    answer: impl Future<Output = Result<axum::http::Response<tonic::body::Body>, E>>,
) -> (i32, Vec<u8>) {
    let (head, body) = answer.await.expect("a service that never fails").into_parts();
    let body = body.collect().await.expect("a body that never fails");
    let status = body.trailers().and_then(|trailers| trailers.get("grpc-status"));
    let status =
        status.or(head.headers.get("grpc-status")).and_then(|status| status.to_str().ok()?.parse().ok());
    (status.expect("every answer has a status"), body.to_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str =
        "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 4}}]";

    #[test]
    fn calls_and_streams_are_answered() {
        let mut services = InProcess::new(CONFIG);
        // Domain `d`, one descriptor with one entry `k` = `v`.
        let asked = b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01k\x12\x01v";
        let (status, answer) = services.should_rate_limit(asked);
        // An overall code of 1: OK.
        assert_eq!((status, &answer[5..7]), (0, &b"\x08\x01"[..]));
        assert_eq!(services.should_rate_limit(b"\x0a\x01d").0, 3, "no descriptor");
        assert_eq!(services.should_rate_limit(b"\x0a\xff").0, 13, "no message");
        // A bucket `k` = `v` of the domain, with one request.
        services.advance(Duration::from_secs(1));
        let report = b"\x0a\x01d\x12\x0c\x0a\x08\x0a\x06\x0a\x01k\x12\x01v\x20\x01";
        let (status, answers) = services.stream_quotas([&report[..], &report[..]]);
        assert_eq!(status, 0);
        assert!(answers.len() > 5, "an assignment");
        assert_eq!(services.stream_quotas([&b""[..]]).0, 3, "no domain");
    }
}
