//! The HTTP client of reports and of configuration services.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::pki_types::{
    CertificateDer,
    pem::{self, PemObject as _},
};
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

/// Why a file of authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("{}: {error}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("{}: {error}", path.display())]
    Pem {
        path: PathBuf,
        #[source]
        error: pem::Error,
    },
    #[error("{} has no certificate in PEM", .0.display())]
    Empty(PathBuf),
}

/// A client that trusts the authorities in this file of PEM, or else those of the system. A request
/// may take `patience`.
pub fn agent(authority: Option<&Path>, patience: Duration) -> Result<Agent, AuthorityError> {
    let trusted = match authority {
        None => rustls_native_certs::load_native_certs().certs,
        Some(path) => read(path)?,
    };
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

/// The authorities in a file; at least one.
fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, AuthorityError> {
    let text = fs::read(path).map_err(|error| AuthorityError::Read {
        path: path.into(),
        error,
    })?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| AuthorityError::Pem {
        path: path.into(),
        error,
    })?;
    if all.is_empty() {
        return Err(AuthorityError::Empty(path.into()));
    }
    Ok(all)
}
