//! Where telemetry goes, from the options and the variables that OpenTelemetry names.

use std::{env, fs, path::PathBuf};

use opentelemetry::KeyValue;
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, SpanExporter, WithExportConfig,
    WithHttpConfig as _, WithTonicConfig as _,
    tonic_types::transport::{Certificate, ClientTlsConfig},
};
use opentelemetry_sdk::{
    Resource,
    logs::SdkLoggerProvider,
    metrics::SdkMeterProvider,
    trace::{Sampler, SdkTracerProvider},
};

use super::client::Client;

/// The default share of requests without a traceparent that get a span.
const SAMPLE: f64 = 0.01;

/// The variables that name a collector. If one is set, telemetry is on.
const ENDPOINTS: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
    "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT",
];

/// The options of telemetry. Defaults come from the variables of OpenTelemetry, such as
/// `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_METRIC_EXPORT_INTERVAL`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OtlpOptions {
    /// The collector, as in `http://127.0.0.1:4318`.
    pub endpoint: Option<String>,
    /// How it is spoken to. Without it: by gRPC on port 4317, else over HTTP.
    pub protocol: Option<Protocol>,
    /// The part of requests that gets a span: of those without a `traceparent`, which decides for
    /// the others.
    pub sample: Option<f64>,
}

impl OtlpOptions {
    /// Whether the options or the variables name a collector, and `OTEL_SDK_DISABLED` does not turn
    /// it all off.
    pub fn is_on(&self) -> bool {
        let is_disabled =
            given("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        !is_disabled
            && (self.endpoint.is_some() || ENDPOINTS.into_iter().any(|name| given(name).is_some()))
    }

    fn protocol(&self) -> Result<Protocol, TelemetryError> {
        if let Some(protocol) = self.protocol {
            return Ok(protocol);
        }
        match given("OTEL_EXPORTER_OTLP_PROTOCOL").as_deref() {
            Some("grpc") => Ok(Protocol::Grpc),
            Some("http/protobuf") => Ok(Protocol::Http),
            Some(other) => Err(TelemetryError::Protocol(other.to_owned())),
            None => {
                let endpoint = self
                    .endpoint
                    .clone()
                    .or_else(|| given(ENDPOINTS[0]))
                    .unwrap_or_default();
                let is_grpc = endpoint.trim_end_matches('/').ends_with(":4317");
                Ok(if is_grpc {
                    Protocol::Grpc
                } else {
                    Protocol::Http
                })
            }
        }
    }
}

/// How a collector is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP, in protobuf.
    Http,
}

/// Why telemetry cannot be sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// An option or a variable that the exporters do not understand.
    #[error("OpenTelemetry: {0}")]
    Exporter(#[from] ExporterBuildError),
    /// The protocol is unknown.
    #[error("OTEL_EXPORTER_OTLP_PROTOCOL: `{0}` is neither grpc nor http/protobuf")]
    Protocol(String),
    /// The collector's certificate authority cannot be used.
    #[error("OTEL_EXPORTER_OTLP_CERTIFICATE: {path}: {why}")]
    Certificate {
        /// The file.
        path: PathBuf,
        /// The error.
        why: String,
    },
}

pub(super) struct Providers {
    pub traces: SdkTracerProvider,
    pub meters: SdkMeterProvider,
    pub logs: SdkLoggerProvider,
}

pub(super) fn connect(options: &OtlpOptions) -> Result<Providers, TelemetryError> {
    let authority = authority()?;
    let endpoint = options.endpoint.as_deref();
    let (spans, metrics, records) = match options.protocol()? {
        Protocol::Grpc => {
            let mut tls = ClientTlsConfig::new();
            tls = match authority {
                Some(pem) => tls.ca_certificate(Certificate::from_pem(pem)),
                None => tls.with_native_roots(),
            };
            (
                at(SpanExporter::builder().with_tonic(), endpoint, "")
                    .with_tls_config(tls.clone())
                    .build()?,
                at(MetricExporter::builder().with_tonic(), endpoint, "")
                    .with_tls_config(tls.clone())
                    .build()?,
                at(LogExporter::builder().with_tonic(), endpoint, "")
                    .with_tls_config(tls)
                    .build()?,
            )
        }
        Protocol::Http => {
            let client = Client::new(authority.as_deref())?;
            let http = opentelemetry_otlp::Protocol::HttpBinary;
            let spans =
                at(SpanExporter::builder().with_http(), endpoint, "/v1/traces").with_protocol(http);
            let metrics = at(
                MetricExporter::builder().with_http(),
                endpoint,
                "/v1/metrics",
            )
            .with_protocol(http);
            let records =
                at(LogExporter::builder().with_http(), endpoint, "/v1/logs").with_protocol(http);
            (
                spans.with_http_client(client.clone()).build()?,
                metrics.with_http_client(client.clone()).build()?,
                records.with_http_client(client).build()?,
            )
        }
    };
    let resource = resource();
    let mut traces = SdkTracerProvider::builder()
        .with_resource(resource.clone())
        .with_batch_exporter(spans);
    if options.sample.is_some() || given("OTEL_TRACES_SAMPLER").is_none() {
        let ratio = Sampler::TraceIdRatioBased(options.sample.unwrap_or(SAMPLE));
        traces = traces.with_sampler(Sampler::ParentBased(Box::new(ratio)));
    }
    let meters = SdkMeterProvider::builder()
        .with_resource(resource.clone())
        .with_periodic_exporter(metrics);
    let logs = SdkLoggerProvider::builder()
        .with_resource(resource)
        .with_batch_exporter(records);
    Ok(Providers {
        traces: traces.build(),
        meters: meters.build(),
        logs: logs.build(),
    })
}

/// The option names the collector; its paths follow.
fn at<T: WithExportConfig>(builder: T, endpoint: Option<&str>, path: &str) -> T {
    match endpoint {
        Some(endpoint) => {
            builder.with_endpoint(format!("{}{path}", endpoint.trim_end_matches('/')))
        }
        None => builder,
    }
}

/// The authority that signed the collector's certificate, in PEM.
fn authority() -> Result<Option<Vec<u8>>, TelemetryError> {
    let Some(path) = given("OTEL_EXPORTER_OTLP_CERTIFICATE").map(PathBuf::from) else {
        return Ok(None);
    };
    let read = fs::read(&path);
    read.map(Some).map_err(|error| TelemetryError::Certificate {
        path,
        why: error.to_string(),
    })
}

fn resource() -> Resource {
    let resource = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let is_named = given("OTEL_SERVICE_NAME").is_some()
        || given("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    if is_named {
        resource.build()
    } else {
        resource.with_service_name("tidegate").build()
    }
}

fn given(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}
