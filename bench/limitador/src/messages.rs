//! The messages of `kuadrant.service.ratelimit.v1`, whose field numbers are those of Kuadrant's RFC
//! 0021.

use tidegate_envoy::pb::{
    envoy::extensions::common::ratelimit::v3::RateLimitDescriptor, google::protobuf,
};
use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct Reserve {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(uint64, tag = "3")]
    pub amount: u64,
    #[prost(message, optional, tag = "4")]
    pub ttl: Option<protobuf::Duration>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Reserved {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub reservation_id: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Commit {
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    #[prost(string, tag = "3")]
    pub reservation_id: String,
    #[prost(uint64, tag = "4")]
    pub actual_amount: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Committed {
    #[prost(bool, tag = "1")]
    pub reservation_released: bool,
}
