//! `--otlp`: what is sent to a collector of OpenTelemetry.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{sync::Arc, time::Duration};

use clap::ValueEnum;
use tidegate_server::telemetry::{OtlpOptions, Protocol, Telemetry, TelemetryError};

/// How long the last of it may take when the server stops.
const FLUSH: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub struct Sending {
    /// Send metrics, traces and logs to this collector of OpenTelemetry, as in
    /// http://127.0.0.1:4318
    ///
    /// On port 4317 by gRPC, else over HTTP in protobuf. The variables of OpenTelemetry say the
    /// rest, such as OTEL_EXPORTER_OTLP_HEADERS, OTEL_EXPORTER_OTLP_CERTIFICATE, OTEL_SERVICE_NAME
    /// and OTEL_METRIC_EXPORT_INTERVAL. OTEL_EXPORTER_OTLP_ENDPOINT turns it on without this
    /// option, and OTEL_SDK_DISABLED=true turns it off.
    #[arg(long, value_name = "URL", env = "TIDEGATE_OTLP", value_parser = url, hide_short_help = true)]
    otlp: Option<String>,
    /// How to speak to the collector [default: by its port]
    #[arg(
        long,
        value_name = "PROTOCOL",
        env = "TIDEGATE_OTLP_PROTOCOL",
        hide_short_help = true
    )]
    otlp_protocol: Option<ProtocolOption>,
    /// The part of the requests over HTTP and gRPC that is traced, from 0 to 1 [default: 0.01]
    ///
    /// It goes for requests without a `traceparent`: one that has it is traced if its trace is.
    /// Without this option OTEL_TRACES_SAMPLER decides where it is set.
    #[arg(long, value_name = "RATIO", env = "TIDEGATE_OTLP_SAMPLE", value_parser = ratio, hide_short_help = true)]
    otlp_sample: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ProtocolOption {
    /// gRPC
    Grpc,
    /// HTTP with protobuf
    #[value(name = "http/protobuf", alias = "http")]
    Http,
}

fn url(text: &str) -> Result<String, &'static str> {
    let host = text
        .strip_prefix("http://")
        .or_else(|| text.strip_prefix("https://"));
    match host {
        Some(host) if !host.is_empty() && !host.starts_with(['/', ':']) => Ok(text.to_owned()),
        _ => Err(
            "write the collector's URL, as in http://127.0.0.1:4318 or https://otel.example.com:4317",
        ),
    }
}

fn ratio(text: &str) -> Result<f64, &'static str> {
    let ratio = text
        .parse()
        .ok()
        .filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or("write a number from 0 to 1, as in 0.01 for one request of a hundred")
}

impl Sending {
    /// Begins to send, if a collector is named. To be called within the runtime.
    pub fn start(&self) -> Result<Option<Arc<Telemetry>>, TelemetryError> {
        let options = OtlpOptions {
            endpoint: self.otlp.clone(),
            protocol: self.otlp_protocol.map(|protocol| match protocol {
                ProtocolOption::Grpc => Protocol::Grpc,
                ProtocolOption::Http => Protocol::Http,
            }),
            sample: self.otlp_sample,
        };
        if options.is_on() {
            Telemetry::start(&options).map(|telemetry| Some(Arc::new(telemetry)))
        } else {
            Ok(None)
        }
    }

    /// The collector, for people.
    pub fn destination(&self) -> String {
        self.otlp
            .clone()
            .unwrap_or_else(|| "as the OTEL_EXPORTER_OTLP_* variables say".to_owned())
    }
}

/// Sends what is left.
pub fn stop(telemetry: &Telemetry) {
    if !telemetry.stop(FLUSH) {
        tracing::warn!("the collector did not take the last metrics, traces or logs");
    }
}
