//! OpenTelemetry: metrics, logs and a span for each request, sent over OTLP.
//!
//! `exporters` reads the options and the standard variables and connects; `client` sends what goes
//! over HTTP. `span` follows requests, `metrics` exports what `/metrics` shows. Threads of the SDK
//! collect and send, so a collector that is slow or gone never delays an answer: what finds no room
//! is dropped.

mod client;
mod exporters;
mod metrics;
mod span;

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use opentelemetry::{
    InstrumentationScope,
    metrics::{Histogram, Meter, MeterProvider as _},
    trace::TracerProvider as _,
};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::{
    error::{OTelSdkError, OTelSdkResult},
    logs::SdkLoggerProvider,
    metrics::SdkMeterProvider,
    propagation::TraceContextPropagator,
    trace::{SdkTracer, SdkTracerProvider},
};
use tidegate_core::Clock as _;
use tidegate_limiter::SystemClock;
use tracing_subscriber::{
    Layer,
    filter::{LevelFilter, filter_fn},
    registry::LookupSpan,
};

pub use exporters::{OtlpOptions, Protocol, TelemetryError};
pub use span::Traced;
use tidegate_service::observe::{latency::BOUNDS, metrics::MetricSource};

/// The name of what makes the spans and metrics.
const SCOPE: &str = "tidegate";

/// The exporters to a collector.
#[derive(Debug)]
pub struct Telemetry {
    traces: SdkTracerProvider,
    meters: SdkMeterProvider,
    logs: SdkLoggerProvider,
    tracer: SdkTracer,
    meter: Meter,
    http_duration: Histogram<f64>,
    rpc_duration: Histogram<f64>,
    propagator: TraceContextPropagator,
}

impl Telemetry {
    /// Begins to send, in the background. To be called within a tokio runtime; a collector need not
    /// be there yet.
    ///
    /// # Errors
    /// If an option or a variable is malformed, or a certificate cannot be read.
    pub fn start(options: &OtlpOptions) -> Result<Self, TelemetryError> {
        let exporters::Providers {
            traces,
            meters,
            logs,
        } = exporters::connect(options)?;
        let scope = InstrumentationScope::builder(SCOPE)
            .with_version(env!("CARGO_PKG_VERSION"))
            .build();
        let tracer = traces.tracer_with_scope(scope.clone());
        let meter = meters.meter_with_scope(scope);
        let duration = |name, help| {
            let builder = meter
                .f64_histogram(name)
                .with_unit("s")
                .with_description(help);
            // Finer than the conventions' boundaries, which begin with 5 ms.
            builder
                .with_boundaries(BOUNDS.map(|nanos| nanos as f64 / 1e9).to_vec())
                .build()
        };
        let http_duration = duration(
            "http.server.request.duration",
            "Duration of HTTP server requests",
        );
        let rpc_duration = duration("rpc.server.call.duration", "Duration of incoming calls");
        let propagator = TraceContextPropagator::new();
        Ok(Self {
            traces,
            meters,
            logs,
            tracer,
            meter,
            http_duration,
            rpc_duration,
            propagator,
        })
    }

    /// The layer that sends the log up to this level, with the trace that an event belongs to.
    pub fn log_layer<S>(&self, level: LevelFilter) -> impl Layer<S> + use<S>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    {
        // The exporters' own log must not be exported: each export would cause another.
        const OWN: [&str; 6] = ["opentelemetry", "hyper", "h2", "tonic", "tower", "ureq"];
        let wanted = move |about: &tracing::Metadata<'_>| {
            *about.level() <= level && !OWN.iter().any(|own| about.target().starts_with(own))
        };
        OpenTelemetryTracingBridge::new(&self.logs)
            .with_filter(filter_fn(wanted).with_max_level_hint(level))
    }

    /// Exports what these sources count.
    pub fn export(&self, sources: &[Arc<dyn MetricSource>]) {
        metrics::export(&self.meter, sources);
    }

    /// Sends what is left, for at most this long. Blocks; what comes later is dropped.
    ///
    /// Returns false if something could not be sent in time.
    pub fn stop(&self, within: Duration) -> bool {
        let (traces, meters, logs) = (self.traces.clone(), self.meters.clone(), self.logs.clone());
        let steps: [Box<dyn FnOnce() -> OTelSdkResult + Send>; 3] = [
            Box::new(move || traces.shutdown_with_timeout(within)),
            Box::new(move || meters.shutdown_with_timeout(within)),
            Box::new(move || logs.shutdown_with_timeout(within)),
        ];
        let (sender, ended) = mpsc::channel();
        // Side by side, on threads that end with the process if a collector hangs.
        for step in steps {
            let sender = sender.clone();
            thread::spawn(move || sender.send(step()));
        }
        drop(sender);
        let clock = SystemClock::new();
        let until = clock.now().saturating_add(within.into());
        (0..3).all(|_| {
            let left = until.saturating_since(clock.now());
            matches!(
                ended.recv_timeout(left.into()),
                Ok(Ok(()) | Err(OTelSdkError::AlreadyShutdown))
            )
        })
    }
}
