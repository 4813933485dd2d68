//! The HTTP client of reports and of configuration services.

use std::{fs, path::Path, sync::Arc, time::Duration};

use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

/// A client that trusts the authorities in this file of PEM, or else those of the system. A request
/// may take `patience`.
pub fn agent(authority: Option<&Path>, patience: Duration) -> Result<Agent, String> {
    let trusted = match authority {
        None => rustls_native_certs::load_native_certs().certs,
        Some(path) => {
            let wrong = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
            let pem = fs::read(path).map_err(|error| wrong(&error))?;
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
            all.map_err(|error| wrong(&error))?
        }
    };
    if let Some(path) = authority.filter(|_| trusted.is_empty()) {
        return Err(format!("{} has no certificate in PEM", path.display()));
    }
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
        .timeout_global(Some(patience))
        .build();
    Ok(config.into())
}
