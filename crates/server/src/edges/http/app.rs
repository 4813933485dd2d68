//! The state that all handlers share.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use tidegate_envoy::descriptors::DescriptorService;
use tidegate_export::telemetry::Telemetry;
use tidegate_listen::access::Door;
use tidegate_service::{
    decide::service::{Answer, Service},
    observe::once_a_minute::OnceAMinute,
};

use super::{HttpStats, answer, hosts::Hosts, problem::Problem, table::Plane};

/// The state that all handlers share.
pub(crate) struct App {
    pub service: Arc<Service>,
    /// Decides on descriptors.
    pub rates: Arc<DescriptorService>,
    pub stats: Arc<HttpStats>,
    /// The access control of the data plane and of the control plane.
    pub doors: [Door; 2],
    /// Whether clients without credentials may read the metrics.
    pub open_metrics: bool,
    /// Another path of `/metrics`.
    pub metrics_path: Option<String>,
    /// The web origins that may send requests.
    pub origins: Vec<String>,
    /// The names of the control plane, for requests without credentials.
    pub hosts: Hosts,
    /// The address of the dashboard, for clients that look for it on the data plane; `None` without
    /// a control plane.
    pub dashboard: Option<String>,
    /// `None` if OTLP export is off.
    pub telemetry: Option<Arc<Telemetry>>,
    /// For the log line of [`App::without_decision`].
    pub undecided: OnceAMinute,
}

impl App {
    /// The response for one limit.
    pub fn one(&self, answer: &Answer, status: Option<StatusCode>) -> Response<Body> {
        self.for_vendor(std::slice::from_ref(answer), answer::one(answer, status))
    }

    /// The response to a proxy's question that has no decision: a status with which the proxy's
    /// request goes on. The requests by route and status count it.
    pub(super) fn without_decision(&self, problem: &Problem, status: StatusCode) -> Response<Body> {
        if self.undecided.is_due(self.service.now()) {
            tracing::warn!(
                error = problem.detail(),
                "a proxy's request goes on without a decision (errors=admit); at most one line a minute"
            );
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status;
        response
    }

    /// Adds the header fields of the provider of language models, if one is chosen.
    pub fn for_vendor(&self, answers: &[Answer], mut response: Response<Body>) -> Response<Body> {
        if let Some(vendor) = self.rates.vendor {
            let decided = answers
                .iter()
                .map(|answer| (answer.limit.spec().name.as_str(), &answer.decision));
            let headers = response.headers_mut();
            headers.extend(vendor.fields(decided, self.service.now()));
            let denied = answers.iter().filter(|answer| !answer.is_allowed());
            let waits: Vec<_> = denied.map(Answer::retry_after).collect();
            if !waits.is_empty() {
                // No wait helps if none helps at one of them.
                let wait = waits.into_iter().collect::<Option<Vec<_>>>();
                let wait = wait.and_then(|waits| waits.into_iter().max());
                headers.extend(vendor.retry_fields(wait));
            }
        }
        response
    }

    /// Changes with each load of the access file.
    pub fn access_generation(&self) -> u64 {
        self.doors[Plane::Admin as usize].access.generation()
    }
}
