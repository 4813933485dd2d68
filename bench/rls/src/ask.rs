//! The requests of a protocol, and the meaning of its answers.

use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use prost::Message;

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Envoy's rate limit service v3.
    Envoy,
    /// throttlecrab's own service.
    Throttlecrab,
    /// A proxy that asks one of them.
    Proxy,
}

/// `envoy.service.ratelimit.v3.RateLimitRequest`, as far as it is used here.
#[derive(Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
}

#[derive(Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// `throttlecrab.ThrottleRequest`.
#[derive(Message)]
struct ThrottleRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(int32, tag = "2")]
    max_burst: i32,
    #[prost(int32, tag = "3")]
    count_per_period: i32,
    #[prost(int32, tag = "4")]
    period: i32,
    #[prost(int32, tag = "5")]
    quantity: i32,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Admitted,
    Denied,
    Failed,
}

impl Kind {
    /// The request for one value, and its body if it has one. Everywhere 100 a minute for each
    /// value.
    pub fn request(self, address: &str, value: u64) -> (Request<()>, Option<Bytes>) {
        let body = self.body(value);
        let request = match &body {
            None => Request::get(format!("http://{address}/")).header("x-user", user(value)),
            Some(_) => Request::post(format!("http://{address}{}", self.path()))
                .header("content-type", "application/grpc")
                .header("te", "trailers"),
        };
        (request.body(()).expect("a valid request"), body)
    }

    /// The path of the request.
    pub fn path(self) -> &'static str {
        match self {
            Self::Proxy => "/",
            Self::Envoy => "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            Self::Throttlecrab => "/throttlecrab.RateLimiter/Throttle",
        }
    }

    /// The body of the request for one value.
    pub fn body(self, value: u64) -> Option<Bytes> {
        let value = user(value);
        match self {
            Self::Proxy => None,
            Self::Envoy => {
                let entries = vec![Entry {
                    key: "user".to_owned(),
                    value,
                }];
                let descriptors = vec![Descriptor { entries }];
                Some(framed(&RateLimitRequest {
                    domain: "bench".to_owned(),
                    descriptors,
                }))
            }
            Self::Throttlecrab => Some(framed(&ThrottleRequest {
                key: value,
                max_burst: 100,
                count_per_period: 100,
                period: 60,
                quantity: 1,
            })),
        }
    }

    /// The outcome in an answer's body: both messages begin with it, and leave out fields that are
    /// 0.
    pub fn answer(self, status: u16, grpc_status: Option<&str>, body: &[u8]) -> Answer {
        let outcome = match body.get(5..7) {
            Some([0x08, outcome]) => *outcome,
            _ => 0,
        };
        match (self, status, grpc_status, outcome) {
            (Self::Proxy, 200, ..) | (Self::Envoy | Self::Throttlecrab, 200, Some("0"), 1) => {
                Answer::Admitted
            }
            (Self::Proxy, 429, ..)
            | (Self::Envoy, 200, Some("0"), 2)
            | (Self::Throttlecrab, 200, Some("0"), 0) => Answer::Denied,
            _ => Answer::Failed,
        }
    }
}

fn user(value: u64) -> String {
    format!("user:{value:010}")
}

/// A message as gRPC sends it: not compressed, its length, itself.
fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(5 + length);
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(length).expect("a small message"));
    message.encode(&mut bytes).expect("there is room");
    bytes.freeze()
}
