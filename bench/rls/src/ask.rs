//! The requests of a protocol, and the meaning of its answers.

use bytes::{BufMut, Bytes, BytesMut};
use http::Request;
use prost::Message;

use crate::below;

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Envoy's rate limit service v3.
    Envoy,
    /// The same with five descriptors.
    Five,
    /// The same, for a rule with `hold`: a question, and then its report.
    Hold,
    /// Questions of such a rule without reports.
    Held,
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
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
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

/// One call: a value, and for a rule with `hold` the id of its request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call {
    pub value: u64,
    pub id: u64,
    pub is_report: bool,
}

impl Call {
    /// The next call: the report of this one, or a question with another value and id.
    pub fn next(self, kind: Kind, random: &mut u64, values: u64) -> Self {
        if kind == Kind::Hold && self.id != 0 && !self.is_report {
            return Self {
                is_report: true,
                ..self
            };
        }
        let value = below(random, values);
        Self {
            value,
            id: *random,
            is_report: false,
        }
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Admitted,
    Denied,
    Failed,
}

impl Kind {
    /// The request of a call, and its body if it has one. Everywhere 100 a minute for each value.
    pub fn request(self, address: &str, call: Call) -> (Request<()>, Option<Bytes>) {
        let body = self.body(call);
        let request = match &body {
            None => Request::get(format!("http://{address}/")).header("x-user", user(call.value)),
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
            Self::Envoy | Self::Five | Self::Hold | Self::Held => {
                "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
            }
            Self::Throttlecrab => "/throttlecrab.RateLimiter/Throttle",
        }
    }

    /// The body of a call's request.
    pub fn body(self, call: Call) -> Option<Bytes> {
        let value = user(call.value);
        let entry = |key: &str, value: String| Entry {
            key: key.to_owned(),
            value,
        };
        let asks = |descriptors, hits_addend| {
            Some(framed(&RateLimitRequest {
                domain: "bench".to_owned(),
                descriptors,
                hits_addend,
            }))
        };
        let envoy = |entries, hits_addend| asks(vec![Descriptor { entries }], hits_addend);
        match self {
            Self::Proxy => None,
            Self::Envoy => envoy(vec![entry("user", value)], 0),
            Self::Five => {
                let descriptor = |at| Descriptor {
                    entries: vec![entry("user", format!("{value}/{at}"))],
                };
                asks((0..5).map(descriptor).collect(), 0)
            }
            Self::Hold | Self::Held => {
                let mut entries = vec![
                    entry("call", value),
                    entry("hold_id", format!("{:016x}", call.id)),
                ];
                if call.is_report {
                    entries.push(entry("hold_report", "1".to_owned()));
                }
                envoy(entries, if call.is_report { 700 } else { 800 })
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
            (Self::Proxy, 200, ..)
            | (
                Self::Envoy | Self::Five | Self::Hold | Self::Held | Self::Throttlecrab,
                200,
                Some("0"),
                1,
            ) => Answer::Admitted,
            (Self::Proxy, 429, ..)
            | (Self::Envoy | Self::Five | Self::Hold | Self::Held, 200, Some("0"), 2)
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
