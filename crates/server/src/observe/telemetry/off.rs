//! A build without the feature `otlp` has no telemetry.
#![allow(clippy::unused_self, reason = "the same form as with the feature")]

use std::sync::Arc;

use axum::http::{Request, StatusCode};
use tidegate_core::Nanos;

use crate::observe::metrics::MetricSource;

/// The exporters to a collector: a type without values, because this build has none.
#[derive(Debug)]
pub enum Telemetry {}

impl Telemetry {
    pub(crate) fn export(&self, _: &[Arc<dyn MetricSource>]) {
        match *self {}
    }

    pub(crate) fn http_request<B>(&self, _: &'static str, _: &Request<B>) -> Traced<'_> {
        match *self {}
    }

    #[cfg(feature = "grpc")]
    pub(crate) fn call<B>(&self, _: &Request<B>) -> Traced<'_> {
        match *self {}
    }
}

/// A request within its span.
pub(crate) struct Traced<'a>(&'a Telemetry);

impl Traced<'_> {
    pub fn within<F: Future>(&self, _: F) -> F {
        match *self.0 {}
    }

    pub fn answered(self, _: StatusCode, _: Nanos) {
        match *self.0 {}
    }

    #[cfg(feature = "grpc")]
    pub fn ended<B>(self, _: &axum::http::Response<B>, _: Nanos) {
        match *self.0 {}
    }
}
