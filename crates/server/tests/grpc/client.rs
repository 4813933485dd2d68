//! A client of Envoy's rate limit service.

use std::net::SocketAddr;

use serde_json::Value as Json;
use tidegate_envoy::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus},
            rate_limit_service_client::RateLimitServiceClient,
        },
    },
    google::protobuf::{Struct, UInt64Value, Value, value::Kind},
};
use tokio::runtime::Runtime;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// A gRPC client.
pub struct Client {
    pub runtime: Runtime,
    pub channel: Channel,
    pub rls: RateLimitServiceClient<Channel>,
    health: HealthClient<Channel>,
}

impl Client {
    pub fn of(server: SocketAddr) -> Self {
        Self::at(format!("http://{server}"))
    }

    /// A client of `http://HOST:PORT` or `unix:PATH`.
    pub fn at(address: String) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let channel = runtime
            .block_on(Endpoint::from_shared(address).unwrap().connect())
            .unwrap();
        let rls = RateLimitServiceClient::new(channel.clone());
        Self {
            runtime,
            rls,
            health: HealthClient::new(channel.clone()),
            channel,
        }
    }

    pub fn try_ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let answer = self.runtime.block_on(self.rls.should_rate_limit(request));
        answer.map(tonic::Response::into_inner)
    }

    /// Asks with the id of a request that is safe to repeat, and shows the answer.
    pub fn try_once(
        &mut self,
        id: &str,
        descriptors: Vec<RateLimitDescriptor>,
    ) -> Result<String, Status> {
        let mut asked = tonic::Request::new(request("shop", descriptors));
        asked
            .metadata_mut()
            .insert("tidegate-id", id.parse().unwrap());
        let answer = self.runtime.block_on(self.rls.should_rate_limit(asked));
        answer.map(|answer| shown(&answer.into_inner()))
    }

    pub fn once(&mut self, id: &str, descriptors: Vec<RateLimitDescriptor>) -> String {
        self.try_once(id, descriptors).unwrap()
    }

    pub fn ask(&mut self, descriptors: Vec<RateLimitDescriptor>) -> RateLimitResponse {
        self.try_ask(request("shop", descriptors)).unwrap()
    }

    /// The overall code, and for each descriptor its code and what remains, as in
    /// `OVER: OVER/0 OK/2`.
    pub fn told(&mut self, descriptors: Vec<RateLimitDescriptor>) -> String {
        shown(&self.ask(descriptors))
    }

    pub fn health(&mut self, service: &str) -> Result<i32, Status> {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        let answer = self.runtime.block_on(self.health.check(request));
        answer.map(|answer| answer.into_inner().status)
    }
}

/// Whether a call failed before any of it was sent, because its connection had just ended.
pub fn unsent(status: &Status) -> bool {
    let mut cause = std::error::Error::source(status);
    while let Some(error) = cause {
        if error.downcast_ref().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An answer's dynamic metadata.
pub fn metadata(answer: &RateLimitResponse) -> Json {
    fn json(value: Value) -> Json {
        match value.kind.expect("a value has a kind") {
            Kind::NullValue(_) => Json::Null,
            Kind::NumberValue(number) => number.into(),
            Kind::StringValue(text) => text.into(),
            Kind::BoolValue(is_true) => is_true.into(),
            Kind::StructValue(Struct { fields }) => fields
                .into_iter()
                .map(|(name, value)| (name, json(value)))
                .collect(),
            Kind::ListValue(list) => list.values.into_iter().map(json).collect(),
        }
    }
    let described = answer.dynamic_metadata.clone().expect("it has metadata");
    json(Value {
        kind: Some(Kind::StructValue(described)),
    })
}

pub fn shown(answer: &RateLimitResponse) -> String {
    let code = |code| {
        if code == i32::from(Code::Ok) {
            "OK"
        } else {
            "OVER"
        }
    };
    let status =
        |status: &DescriptorStatus| format!(" {}/{}", code(status.code), status.limit_remaining);
    format!(
        "{}:{}",
        code(answer.overall_code),
        answer.statuses.iter().map(status).collect::<String>()
    )
}

pub fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors,
        hits_addend: 0,
    }
}

pub fn one(key: &str, value: &str) -> RateLimitDescriptor {
    let entries = vec![Entry {
        key: key.to_owned(),
        value: value.to_owned(),
    }];
    RateLimitDescriptor {
        entries,
        ..RateLimitDescriptor::default()
    }
}

pub fn hits(hits: u64, descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor {
        hits_addend: Some(UInt64Value { value: hits }),
        ..descriptor
    }
}

pub fn refund(descriptor: RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor {
        is_negative_hits: true,
        ..descriptor
    }
}
