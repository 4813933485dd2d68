//! HTTP clients of threads that may block.

use std::{sync::Arc, time::Duration};

use rustls::pki_types::CertificateDer;
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

/// The authorities of this machine that can be read. Without any, only TLS fails.
pub(super) fn of_this_machine() -> Vec<CertificateDer<'static>> {
    rustls_native_certs::load_native_certs().certs
}

/// A client that trusts these authorities. Any status is an answer, and no redirect is followed: what
/// is sent reaches the address that the operator gave, or nothing.
pub(super) fn new(trusted: &[CertificateDer<'static>], timeout: Duration) -> Agent {
    let trusted = trusted
        .iter()
        .map(|der| Certificate::from_der(der).to_owned())
        .collect::<Vec<_>>();
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(trusted)))
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_global(Some(timeout))
        .build();
    config.into()
}
