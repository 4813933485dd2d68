//! The state that all handlers share.

use std::sync::{Arc, atomic::AtomicBool};

use axum::{
    body::Body,
    http::{Response, StatusCode},
};
use tokio::sync::{Semaphore, mpsc};

use super::{answer, hosts::Hosts, problem::Problem, rules_thread::RulesThread, table::Plane};
use crate::{
    control::flow::Flow,
    decide::service::{Answer, Service},
    envoy::decide::DescriptorService,
    listen::access::Door,
    observe::{
        metrics::{Events, Metrics},
        once_a_minute::OnceAMinute,
        telemetry::Telemetry,
    },
    rules::file::RulesFile,
    serve::reload::ReloadOrder,
};

/// The state that all handlers share.
pub(crate) struct App {
    pub service: Arc<Service>,
    /// Decides on descriptors.
    pub rates: Arc<DescriptorService>,
    pub metrics: Metrics,
    pub events: Arc<Events>,
    /// The reports of programs about their resources, and the rules for them.
    pub flow: Arc<Flow>,
    /// The access control of the data plane and of the control plane.
    pub doors: [Door; 2],
    /// The rules file.
    pub rules_file: Arc<RulesFile>,
    /// Receives requests to reload the rules.
    pub reload: mpsc::Sender<ReloadOrder>,
    /// Whether the server accepts new work; false once it is stopping.
    pub ready: AtomicBool,
    /// Has one permit: a reader of the trace needs as much memory as the trace.
    pub trace_readers: Arc<Semaphore>,
    /// Reads the rules that clients send.
    pub rules_thread: RulesThread,
    /// Whether clients without credentials may read the metrics.
    pub open_metrics: bool,
    /// Another path of `/metrics`.
    pub metrics_path: Option<String>,
    /// The web origins that may send requests.
    pub origins: Vec<String>,
    /// The names of the control plane, for requests without credentials.
    pub hosts: Hosts,
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

    /// The response to a proxy's question that has no decision: 204, so the proxy's request goes on. The requests by route and status
    /// count it.
    pub(super) fn without_decision(&self, problem: &Problem) -> Response<Body> {
        if self.undecided.is_due(self.service.now()) {
            tracing::warn!(
                error = problem.detail(),
                "a proxy's request goes on without a decision (errors=admit); at most one line a minute"
            );
        }
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        response
    }

    /// Adds the header fields of the provider of language models, if one is chosen.
    pub fn for_vendor(&self, answers: &[Answer], mut response: Response<Body>) -> Response<Body> {
        if let Some(vendor) = self.rates.vendor {
            let told = answers.iter().map(|answer| (answer.limit.spec().name.as_str(), &answer.decision));
            response.headers_mut().extend(vendor.fields(told, self.service.now()));
        }
        response
    }

    /// Changes with each load of the access file.
    pub fn access_generation(&self) -> u64 {
        self.doors[Plane::Admin as usize].access.generation()
    }
}
