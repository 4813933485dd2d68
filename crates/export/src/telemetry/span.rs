//! A span for each request, which continues the trace that its `traceparent` names.

use http::{HeaderMap, Request, StatusCode};
use opentelemetry::{
    Context, KeyValue,
    context::{FutureExt as _, WithContext},
    metrics::Histogram,
    propagation::TextMapPropagator as _,
    trace::{SpanKind, Status, TraceContextExt as _, Tracer as _},
};
use opentelemetry_http::HeaderExtractor;
use tidegate_core::Nanos;

use super::Telemetry;

/// A request within its span. Dropped, it ends the span: the client went away.
pub struct Traced<'a> {
    context: Context,
    duration: &'a Histogram<f64>,
    /// The attributes of both the span and the measurement.
    attributes: Vec<KeyValue>,
}

impl Telemetry {
    /// The span of an HTTP request to one of the server's routes.
    pub fn http_request<B>(&self, route: &'static str, request: &Request<B>) -> Traced<'_> {
        let method = request.method().as_str().to_owned();
        let name = format!("{method} {route}");
        let attributes = vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("http.route", route),
            KeyValue::new("network.protocol.version", version(request)),
        ];
        let of_span = [KeyValue::new("url.path", request.uri().path().to_owned())];
        self.begin(
            name,
            attributes,
            of_span,
            request.headers(),
            &self.http_duration,
        )
    }

    /// The span of a gRPC call. The caller has seen to it that the method is one of the server's.
    pub fn call<B>(&self, request: &Request<B>) -> Traced<'_> {
        let method = request.uri().path().trim_start_matches('/').to_owned();
        let attributes = vec![
            KeyValue::new("rpc.system.name", "grpc"),
            KeyValue::new("rpc.method", method.clone()),
        ];
        self.begin(
            method,
            attributes,
            [],
            request.headers(),
            &self.rpc_duration,
        )
    }

    fn begin<'a>(
        &'a self,
        name: String,
        attributes: Vec<KeyValue>,
        of_span: impl IntoIterator<Item = KeyValue>,
        headers: &HeaderMap,
        duration: &'a Histogram<f64>,
    ) -> Traced<'a> {
        let parent = self
            .propagator
            .extract_with_context(&Context::new(), &HeaderExtractor(headers));
        let all = attributes
            .iter()
            .cloned()
            .chain(of_span)
            .collect::<Vec<_>>();
        let builder = self
            .tracer
            .span_builder(name)
            .with_kind(SpanKind::Server)
            .with_attributes(all);
        let span = self.tracer.build_with_context(builder, &parent);
        Traced {
            context: parent.with_span(span),
            duration,
            attributes,
        }
    }
}

impl Traced<'_> {
    /// Does this within the span, so that what it logs belongs to the trace.
    pub fn within<F: Future>(&self, work: F) -> WithContext<F> {
        work.with_context(self.context.clone())
    }

    /// Ends the span of an HTTP request.
    pub fn answered(self, status: StatusCode, took: Nanos) {
        let attribute = KeyValue::new("http.response.status_code", i64::from(status.as_u16()));
        let failed = status.is_server_error().then(|| status.as_str().to_owned());
        self.end(attribute, failed, took);
    }

    /// Ends the span of a gRPC call with the name of its code.
    pub fn ended(self, code: &str, is_servers_fault: bool, took: Nanos) {
        let name = code.to_ascii_uppercase();
        let attribute = KeyValue::new("rpc.response.status_code", name.clone());
        self.end(attribute, is_servers_fault.then_some(name), took);
    }

    fn end(mut self, status: KeyValue, failed: Option<String>, took: Nanos) {
        let span = self.context.span();
        span.set_attribute(status.clone());
        self.attributes.push(status);
        if let Some(failed) = failed {
            let attribute = KeyValue::new("error.type", failed);
            span.set_attribute(attribute.clone());
            span.set_status(Status::error(""));
            self.attributes.push(attribute);
        }
        span.end();
        self.duration
            .record(took.get() as f64 / 1e9, &self.attributes);
    }
}

fn version<B>(request: &Request<B>) -> &'static str {
    use http::Version;
    match request.version() {
        Version::HTTP_2 => "2",
        Version::HTTP_10 => "1.0",
        _ => "1.1",
    }
}
