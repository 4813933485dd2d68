//! A build without the feature `otlp` has no telemetry.
#![allow(clippy::unused_self, reason = "the same form as with the feature")]

use std::sync::Arc;

use http::{Request, StatusCode};
use tidegate_core::Nanos;
use tidegate_service::observe::metrics::MetricSource;

/// The exporters to a collector: a type without values, because this build has none.
#[derive(Debug)]
pub enum Telemetry {}

impl Telemetry {
    pub fn export(&self, _: &[Arc<dyn MetricSource>]) {
        match *self {}
    }

    pub fn http_request<B>(&self, _: &'static str, _: &Request<B>) -> Traced<'_> {
        match *self {}
    }

    pub fn call<B>(&self, _: &Request<B>) -> Traced<'_> {
        match *self {}
    }
}

/// A request within its span.
pub struct Traced<'a>(&'a Telemetry);

impl Traced<'_> {
    pub fn within<F: Future>(&self, _: F) -> F {
        match *self.0 {}
    }

    pub fn answered(self, _: StatusCode, _: Nanos) {
        match *self.0 {}
    }

    pub fn ended(self, _: &str, _: bool, _: Nanos) {
        match *self.0 {}
    }
}
