//! The reports of one stream. tonic's reader would keep the memory of the largest message for as
//! long as the stream lasts.

use std::{future::poll_fn, pin::Pin};

use bytes::{Buf, Bytes};
use hyper::body::Body;
use prost::Message;
use tonic::Status;

use super::super::messages::Messages;
use crate::pb::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;

pub(super) struct Reports<B> {
    body: Messages<B>,
    /// The messages that have arrived and were not read.
    unread: Bytes,
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Reports<B> {
    pub fn new(body: Messages<B>) -> Self {
        Self {
            body,
            unread: Bytes::new(),
        }
    }

    /// The next report; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<RateLimitQuotaUsageReports>, Status> {
        while self.unread.is_empty() {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context)).await;
            match frame.transpose()? {
                // Trailers say nothing.
                Some(frame) => self.unread = frame.into_data().unwrap_or_default(),
                None => return Ok(None),
            }
        }
        let mut unread = std::mem::take(&mut self.unread);
        let ended = || Status::internal("the stream ended within a message");
        let is_compressed = unread.try_get_u8().map_err(|_| ended())? != 0;
        let length = unread.try_get_u32().map_err(|_| ended())? as usize;
        if is_compressed {
            let what = "the message is compressed; send it without `grpc-encoding`";
            return Err(Status::unimplemented(what));
        }
        if unread.len() < length {
            return Err(ended());
        }
        let message = unread.split_to(length);
        // An empty rest would keep the memory of the whole.
        if !unread.is_empty() {
            self.unread = unread;
        }
        let report = RateLimitQuotaUsageReports::decode(message)
            .map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some(report))
    }
}
