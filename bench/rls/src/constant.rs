//! A rate limit service that answers every request alike: what gRPC takes without a decision.
//!
//! ```text
//! rls-constant ADDRESS [DESCRIPTORS=5]
//! ```
//!
//! It decodes Tidegate's generated messages, and its answer has as many fields as Tidegate's.

#[allow(
    dead_code,
    clippy::pedantic,
    reason = "generated; it has more than this needs"
)]
#[path = "../../../crates/envoy/src/pb/mod.rs"]
mod pb;

use std::{env, error::Error};

use pb::{
    envoy::service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit::Unit},
        rate_limit_service_server::{RateLimitService, RateLimitServiceServer},
    },
    google::protobuf::Duration,
};
use tonic::{Request, Response, Status, transport::Server};

struct Constant(RateLimitResponse);

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(self.0.clone()))
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let address = words
        .next()
        .ok_or("name an address, as in 127.0.0.1:8081")?;
    let descriptors = words.next().map_or(Ok(5), |number| number.parse())?;
    let status = DescriptorStatus {
        code: Code::Ok.into(),
        current_limit: Some(RateLimit {
            requests_per_unit: 4_000_000,
            unit: Unit::Hour.into(),
            ..RateLimit::default()
        }),
        limit_remaining: 3_999_999,
        duration_until_reset: Some(Duration {
            seconds: 3_599,
            nanos: 0,
        }),
        ..DescriptorStatus::default()
    };
    let answer = RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![status; descriptors],
        ..RateLimitResponse::default()
    };
    let serve = Server::builder()
        .add_service(RateLimitServiceServer::new(Constant(answer)))
        .serve(address.parse()?);
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?
        .block_on(serve)?;
    Ok(())
}
