//! TLS for all listeners, with certificates from files that are reloaded when they change.
//!
//! A connection keeps its initial configuration, so a change of the files interrupts no connection.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use rustls::{
    RootCertStore, ServerConfig, ServerConnection,
    crypto::{CryptoProvider, ring::default_provider},
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{VerifierBuilderError, WebPkiClientVerifier},
};
use tidegate_service::observe::metrics::{MetricKind, MetricSource, Sink};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::either::Either;

mod expiry;

/// How long a client may take for its handshake.
pub const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The files with certificates and keys, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate and its intermediate certificates.
    pub cert: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authority of client certificates; `None` to request none.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    pub fn paths(&self) -> Vec<PathBuf> {
        [&self.cert, &self.key]
            .into_iter()
            .chain(&self.client_ca)
            .cloned()
            .collect()
    }
}

/// Why the files are rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or lacks PEM of the necessary kind.
    #[error("{what} {}: {source}", path.display())]
    Read {
        /// The expected content of the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        source: rustls::pki_types::pem::Error,
    },
    /// A file has no certificate.
    #[error("{} has no certificate: it must be in PEM, as in -----BEGIN CERTIFICATE-----", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A file has no private key.
    #[error("--tls-key {} has no private key: it must be in PEM, as in -----BEGIN PRIVATE KEY-----", path.display())]
    NoKey {
        /// The file.
        path: PathBuf,
    },
    /// A private key needs a passphrase.
    #[error(
        "--tls-key {path} is encrypted, and the server has no passphrase: write the key without one by \
         openssl pkey -in {path} -out FILE, in a file that only the server may read",
        path = path.display()
    )]
    Encrypted {
        /// The file.
        path: PathBuf,
    },
    /// Certificate and key do not match, or are of an unsupported kind.
    #[error("{} and {}: {source}; check that the key belongs to the certificate", cert.display(), key.display())]
    Unfit {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// The TLS library's error.
        source: rustls::Error,
    },
    /// The authority of client certificates is invalid.
    #[error("{}: {source}", path.display())]
    Authority {
        /// The file.
        path: PathBuf,
        /// The error of the verifier.
        source: VerifierBuilderError,
    },
}

/// The protocol above TLS, by listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Above {
    Http,
    Grpc,
    /// RESP and SPOP, which have no name in ALPN.
    Resp,
}

impl Above {
    /// In the order of their numbers.
    const ALL: [Self; 3] = [Self::Http, Self::Grpc, Self::Resp];

    /// Its names in ALPN.
    const fn names(self) -> &'static [&'static [u8]] {
        match self {
            Self::Http => &[b"h2", b"http/1.1"],
            Self::Grpc => &[b"h2"],
            Self::Resp => &[],
        }
    }
}

/// TLS with the current contents of the files.
#[derive(Debug)]
pub struct Tls {
    pub files: TlsFiles,
    /// When the first certificate of the chain expires, in seconds since 1970; 0 if it does not
    /// say.
    expires: AtomicU64,
    /// By the number of [`Above`].
    configs: [ArcSwap<ServerConfig>; Above::ALL.len()],
}

impl Tls {
    pub fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let (plain, expires) = load(&files)?;
        let configs = Above::ALL.map(|above| ArcSwap::from_pointee(for_protocol(&plain, above)));
        Ok(Self {
            files,
            expires: expires.into(),
            configs,
        })
    }

    /// Reads the files again. If that fails, the previous ones stay in force.
    pub fn reload(&self) -> Result<(), TlsError> {
        let (plain, expires) = load(&self.files)?;
        self.expires.store(expires, Ordering::Relaxed);
        for above in Above::ALL {
            self.configs[above as usize].store(Arc::new(for_protocol(&plain, above)));
        }
        Ok(())
    }

    /// When the first certificate of the chain in force expires, in seconds since 1970.
    pub fn expires(&self) -> Option<u64> {
        Some(self.expires.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    /// The configuration for a new connection.
    pub fn config(&self, above: Above) -> Arc<ServerConfig> {
        self.configs[above as usize].load_full()
    }
}

fn for_protocol(plain: &ServerConfig, above: Above) -> ServerConfig {
    let mut config = plain.clone();
    config.alpn_protocols = above.names().iter().map(|name| name.to_vec()).collect();
    config
}

fn load(files: &TlsFiles) -> Result<(ServerConfig, u64), TlsError> {
    let provider = Arc::new(default_provider());
    let certificates = read_certificates("--tls-cert", &files.cert)?;
    let key = read_key(&files.key)?;
    let unfit = |source| TlsError::Unfit {
        cert: files.cert.clone(),
        key: files.key.clone(),
        source,
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(unfit)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path, provider)?),
    };
    let expires = certificates
        .iter()
        .filter_map(expires)
        .min()
        .unwrap_or_default();
    Ok((
        builder.with_single_cert(certificates, key).map_err(unfit)?,
        expires,
    ))
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|source| {
        let path = path.to_owned();
        // Both forms of an encrypted key say so in their first lines.
        let is_encrypted =
            std::fs::read(&path).is_ok_and(|text| text.windows(9).any(|word| word == b"ENCRYPTED"));
        match source {
            _ if is_encrypted => TlsError::Encrypted { path },
            pem::Error::NoItemsFound => TlsError::NoKey { path },
            source => TlsError::Read {
                what: "--tls-key",
                path,
                source,
            },
        }
    })
}

/// When a certificate expires, in seconds since 1970.
fn expires(certificate: &CertificateDer<'_>) -> Option<u64> {
    u64::try_from(expiry::not_after(certificate)?).ok()
}

/// A client without a certificate passes the handshake but has no rights, so that the server can
/// answer with an error, or the client can use a token. A certificate from another authority fails
/// the handshake.
fn verifier(
    path: &Path,
    provider: Arc<CryptoProvider>,
) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("--tls-client-ca", path)? {
        // If no certificate is a valid authority, this is detected below.
        let _ = roots.add(certificate);
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .allow_unauthenticated()
        .build()
        .map_err(|source| TlsError::Authority {
            path: path.to_owned(),
            source,
        })
}

fn read_certificates(
    what: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = |source| TlsError::Read {
        what,
        path: path.to_owned(),
        source,
    };
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(read)?
        .collect::<Result<_, _>>()
        .map_err(read)?;
    if certificates.is_empty() {
        return Err(TlsError::Empty {
            path: path.to_owned(),
        });
    }
    Ok(certificates)
}

/// The names in a verified client certificate: DNS names and URIs. `None` without a certificate.
pub fn names_of(connection: &ServerConnection) -> Option<Arc<[String]>> {
    let certificate = connection.peer_certificates()?.first()?;
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(
        parsed
            .valid_dns_names()
            .chain(parsed.valid_uri_names())
            .map(str::to_owned)
            .collect(),
    )
}

/// A connection with or without TLS.
pub type Stream<S> = Either<S, Box<TlsStream<S>>>;

/// Starts a connection, with a handshake if TLS is enabled.
pub async fn begin<S>(stream: S, config: Option<Arc<ServerConfig>>) -> io::Result<Stream<S>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Some(config) = config else {
        return Ok(Either::Left(stream));
    };
    let handshake = TlsAcceptor::from(config).accept(stream);
    let done = tokio::time::timeout(HANDSHAKE_TIME, handshake)
        .await
        .map_err(|_| {
            io::Error::new(
                io::ErrorKind::TimedOut,
                "the client did not complete its TLS handshake",
            )
        })?;
    done.map(|stream| Either::Right(Box::new(stream)))
}

/// The names in the certificate of a connection's client; `None` without one.
pub fn client_names<S>(stream: &Stream<S>) -> Option<Arc<[String]>> {
    match stream {
        Either::Left(_) => None,
        Either::Right(stream) => names_of(stream.get_ref().1),
    }
}

impl MetricSource for Tls {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        let help = "When the first certificate of the server's chain expires";
        let expires = self.expires().map(|expires| ([], expires));
        sink.labelled(
            "certificate_expires_timestamp_seconds",
            help,
            MetricKind::Gauge,
            expires,
        )
    }
}
