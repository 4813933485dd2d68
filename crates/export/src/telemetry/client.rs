//! Sends what goes over HTTP. The threads that export may block.

use std::{fmt, path::PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use ureq::Agent;

use super::TelemetryError;
use crate::agent;

/// The longest answer of a collector that is read.
const MAX_ANSWER: u64 = 64 * 1024;

#[derive(Clone)]
pub(super) struct Client(Agent);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// A client that trusts this authority, or those of the machine.
    pub fn new(authority: Option<&[u8]>) -> Result<Self, TelemetryError> {
        let refused = |why: &str| TelemetryError::Certificate {
            path: PathBuf::from(
                std::env::var_os("OTEL_EXPORTER_OTLP_CERTIFICATE").unwrap_or_default(),
            ),
            why: why.to_owned(),
        };
        let trusted: Vec<CertificateDer<'static>> = match authority {
            Some(pem) => CertificateDer::pem_slice_iter(pem)
                .collect::<Result<_, _>>()
                .map_err(|error| refused(&error.to_string()))?,
            None => agent::of_this_machine(),
        };
        if authority.is_some() && trusted.is_empty() {
            return Err(refused("the file has no certificate in PEM"));
        }
        Ok(Self(agent::new(
            &trusted,
            opentelemetry_otlp::OTEL_EXPORTER_OTLP_TIMEOUT_DEFAULT,
        )))
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let answer = self.0.run(Request::from_parts(head, &body[..]))?;
        let (head, mut body) = answer.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}
