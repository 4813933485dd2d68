//! A stand-in for a collector of OpenTelemetry: OTLP over HTTP and gRPC on one port. It keeps what
//! it is sent.

use std::{
    fmt::Debug,
    sync::{Arc, Condvar, Mutex},
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use opentelemetry_proto::tonic::{
    collector::{
        logs::v1::{
            ExportLogsServiceRequest, ExportLogsServiceResponse,
            logs_service_server::{LogsService, LogsServiceServer},
        },
        metrics::v1::{
            ExportMetricsServiceRequest, ExportMetricsServiceResponse,
            metrics_service_server::{MetricsService, MetricsServiceServer},
        },
        trace::v1::{
            ExportTraceServiceRequest, ExportTraceServiceResponse,
            trace_service_server::{TraceService, TraceServiceServer},
        },
    },
    common::v1::{KeyValue, any_value::Value},
    logs::v1::LogRecord,
    metrics::v1::{Metric, metric::Data, number_data_point},
    trace::v1::Span,
};
use prost::Message;
use tokio::{net::TcpListener, runtime::Runtime};
use tonic::{Request, Response, Status};

use crate::program::PATIENCE;

#[derive(Debug, Default)]
pub struct Received {
    /// What has the telemetry, by name.
    pub resources: Vec<(String, String)>,
    pub spans: Vec<Span>,
    pub metrics: Vec<Metric>,
    pub logs: Vec<LogRecord>,
    /// The paths and the tokens that came with exports over HTTP.
    pub asked: Vec<(String, String)>,
}

impl Received {
    pub fn span(&self, name: &str) -> Option<&Span> {
        self.spans.iter().find(|span| span.name == name)
    }

    pub fn log(&self, words: &str) -> Option<&LogRecord> {
        self.logs
            .iter()
            .find(|log| matches!(body(log), Some(text) if text.contains(words)))
    }

    /// The last value of a counter or a gauge, at these attributes.
    pub fn value(&self, name: &str, attributes: &[(&str, &str)]) -> Option<i64> {
        let metrics = self
            .metrics
            .iter()
            .rev()
            .filter(|metric| metric.name == name);
        let points = metrics.flat_map(|metric| match &metric.data {
            Some(Data::Sum(sum)) => sum.data_points.clone(),
            Some(Data::Gauge(gauge)) => gauge.data_points.clone(),
            _ => Vec::new(),
        });
        let has = |point: &[KeyValue]| {
            attributes
                .iter()
                .all(|(name, value)| text(point, name) == *value)
        };
        let mut points = points.filter(|point| has(&point.attributes));
        points.next().and_then(|point| match point.value {
            Some(number_data_point::Value::AsInt(value)) => Some(value),
            _ => None,
        })
    }

    /// How often a histogram has counted at these attributes.
    pub fn count(&self, name: &str, attributes: &[(&str, &str)]) -> Option<u64> {
        let has = |point: &[KeyValue]| {
            attributes
                .iter()
                .all(|(name, value)| text(point, name) == *value)
        };
        self.metrics
            .iter()
            .rev()
            .filter(|metric| metric.name == name)
            .find_map(|metric| match &metric.data {
                Some(Data::Histogram(histogram)) => histogram
                    .data_points
                    .iter()
                    .find(|point| has(&point.attributes))
                    .map(|point| point.count),
                _ => None,
            })
    }
}

fn body(log: &LogRecord) -> Option<&str> {
    match log.body.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// An attribute's value as text; empty if there is none.
pub fn text(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.clone()) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => other.map_or(String::new(), |value| format!("{value:?}")),
    }
}

/// The collector, until it is dropped.
pub struct Collector {
    kept: Kept,
    pub address: String,
    _runtime: Runtime,
}

#[derive(Clone, Default)]
struct Kept(Arc<(Mutex<Received>, Condvar)>);

impl Kept {
    fn add(&self, change: impl FnOnce(&mut Received)) {
        change(&mut self.0.0.lock().unwrap());
        self.0.1.notify_all();
    }

    fn traces(&self, request: ExportTraceServiceRequest) {
        self.add(|kept| {
            for of in request.resource_spans {
                let resource = of.resource.unwrap_or_default().attributes;
                kept.resources.push((
                    text(&resource, "service.name"),
                    text(&resource, "service.version"),
                ));
                kept.spans
                    .extend(of.scope_spans.into_iter().flat_map(|scope| scope.spans));
            }
        });
    }

    fn metrics(&self, request: ExportMetricsServiceRequest) {
        let scopes = request
            .resource_metrics
            .into_iter()
            .flat_map(|of| of.scope_metrics);
        self.add(|kept| kept.metrics.extend(scopes.flat_map(|scope| scope.metrics)));
    }

    fn logs(&self, request: ExportLogsServiceRequest) {
        let scopes = request
            .resource_logs
            .into_iter()
            .flat_map(|of| of.scope_logs);
        self.add(|kept| kept.logs.extend(scopes.flat_map(|scope| scope.log_records)));
    }
}

impl Collector {
    pub fn start() -> Self {
        let kept = Kept::default();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let router = Router::new()
            .route("/v1/traces", over_http(&kept, "/v1/traces", Kept::traces))
            .route(
                "/v1/metrics",
                over_http(&kept, "/v1/metrics", Kept::metrics),
            )
            .route("/v1/logs", over_http(&kept, "/v1/logs", Kept::logs))
            .route_service(
                "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
                TraceServiceServer::new(kept.clone()),
            )
            .route_service(
                "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
                MetricsServiceServer::new(kept.clone()),
            )
            .route_service(
                "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
                LogsServiceServer::new(kept.clone()),
            );
        runtime.spawn(async move { axum::serve(listener, router).await });
        Self {
            kept,
            address,
            _runtime: runtime,
        }
    }

    /// Waits until this finds something in what was received.
    pub fn until<T: Debug>(&self, what: &str, mut find: impl FnMut(&Received) -> Option<T>) -> T {
        let (received, changed) = &*self.kept.0;
        let mut received = received.lock().unwrap();
        loop {
            if let Some(found) = find(&received) {
                return found;
            }
            let (still, wait) = changed.wait_timeout(received, PATIENCE).unwrap();
            received = still;
            assert!(
                !wait.timed_out(),
                "the collector never got {what}: {received:?}"
            );
        }
    }
}

fn over_http<M: Message + Default + 'static>(
    kept: &Kept,
    path: &'static str,
    keep: fn(&Kept, M),
) -> axum::routing::MethodRouter {
    let kept = kept.clone();
    post(async move |headers: HeaderMap, body: Bytes| {
        if headers["content-type"] != "application/x-protobuf" {
            return (StatusCode::UNSUPPORTED_MEDIA_TYPE, Vec::new());
        }
        let token = headers
            .get("x-token")
            .map_or(String::new(), |token| token.to_str().unwrap().to_owned());
        kept.add(|kept| kept.asked.push((path.to_owned(), token)));
        keep(&kept, M::decode(body).unwrap());
        // An empty message is the answer that all was taken.
        (StatusCode::OK, Vec::new())
    })
}

#[tonic::async_trait]
impl TraceService for Kept {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.traces(request.into_inner());
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl MetricsService for Kept {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<Response<ExportMetricsServiceResponse>, Status> {
        self.metrics(request.into_inner());
        Ok(Response::new(ExportMetricsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl LogsService for Kept {
    async fn export(
        &self,
        request: Request<ExportLogsServiceRequest>,
    ) -> Result<Response<ExportLogsServiceResponse>, Status> {
        self.logs(request.into_inner());
        Ok(Response::new(ExportLogsServiceResponse::default()))
    }
}
