//! One exchange with a server: HTTP/1.0 on a new connection, with TLS or without.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{
    fmt::Display,
    io::{self, BufRead, BufReader, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustls::{
    CertificateError, ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tidegate_core::Nanos;

use crate::{
    output::Unwritten,
    values::{Address, positive},
};

/// The longest response to read.
const MOST_BYTES: u64 = 64 << 20;

/// How to reach a server.
#[derive(Clone, Debug, clap::Args)]
pub struct How {
    /// How long the server may take to reply
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = positive)]
    timeout: Duration,
    /// The token for this client (better as a variable: other users can see a command line)
    #[arg(
        long,
        value_name = "TOKEN",
        env = "TIDEGATE_TOKEN",
        hide_env_values = true
    )]
    token: Option<String>,
    /// With https: the authority of the server's certificate, in PEM [default: those that the
    /// system trusts]
    #[arg(long, value_name = "FILE", env = "TIDEGATE_CA")]
    ca: Option<PathBuf>,
    /// With https: this client's certificate, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "TIDEGATE_CLIENT_CERT",
        requires = "client_key"
    )]
    client_cert: Option<PathBuf>,
    /// With https: the private key of this client's certificate, in PEM
    #[arg(
        long,
        value_name = "FILE",
        env = "TIDEGATE_CLIENT_KEY",
        requires = "client_cert"
    )]
    client_key: Option<PathBuf>,
}

/// The server and how to reach it.
pub struct HttpTarget<'a> {
    pub server: &'a Address,
    pub how: &'a How,
    /// The option of `serve` that sets the address.
    pub option: &'static str,
    /// How long the server may wait with its answer, in addition to the timeout.
    pub waits: Duration,
}

/// Why a request to a server failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("cannot reach {server}: {source}; is a server running there? (--server ADDR)")]
    Unreachable { server: String, source: io::Error },
    #[error(
        "{server} does not reply like a Tidegate server; give --server the address of the server's {option}, \
         as https://HOST:PORT if it has TLS"
    )]
    NoHttp {
        server: String,
        option: &'static str,
    },
    /// The server was not asked, because of what this client was given.
    #[error("{0}")]
    Own(Unusable),
    /// TLS has failed.
    #[error("{server} has a certificate that is not accepted: {why}")]
    Certificate { server: String, why: String },
    #[error(
        "{server} has not replied within {timeout}: raise --timeout, or see what the server does"
    )]
    Late { server: String, timeout: Nanos },
    #[error("{detail}")]
    Refused { detail: String },
    #[error(transparent)]
    Unwritten(#[from] Unwritten),
}

/// The status and the body of a response.
pub struct HttpReply {
    pub status: u16,
    pub body: Value,
}

/// A connection, with TLS or without.
trait Stream: Read + Write {}

impl<S: Read + Write> Stream for S {}

impl HttpTarget<'_> {
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Result<HttpReply, ClientError> {
        self.exchange(method, path, body, |status, stream| {
            let mut text = String::new();
            match stream.take(MOST_BYTES).read_to_string(&mut text) {
                // A server may close the connection without a TLS closing message; after a complete
                // response this is fine.
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error),
                _ => Ok(serde_json::from_str(&text)
                    .ok()
                    .map(|body| HttpReply { status, body })),
            }
        })
    }

    /// Reads an answer of any length, from the first byte of its body.
    pub fn read<T>(
        &self,
        path: &str,
        read: impl FnOnce(&mut dyn BufRead) -> T,
    ) -> Result<T, ClientError> {
        let answered = self.exchange("GET", path, "", |status, stream| {
            if status == 200 {
                return Ok(Some(Ok(read(stream))));
            }
            let mut text = String::new();
            // An error while reading only shortens the text of the error message.
            let _ = stream.take(64 * 1024).read_to_string(&mut text);
            Ok(serde_json::from_str(&text)
                .ok()
                .map(|body| Err(HttpReply { status, body })))
        });
        answered?.or_else(|refused| Self::accepted(refused).and(Err(self.no_tidegate())))
    }

    /// Sends a request, and passes the status and the body of the answer to `read`, which returns
    /// `None` if a Tidegate server would not answer so. HTTP/1.0, so that the body comes as it is,
    /// up to the end of the connection.
    fn exchange<T>(
        &self,
        method: &str,
        path: &str,
        body: &str,
        read: impl FnOnce(u16, &mut dyn BufRead) -> io::Result<Option<T>>,
    ) -> Result<T, ClientError> {
        let answered = self.send(method, path, body).and_then(|stream| {
            let (mut stream, mut status, mut line) = (BufReader::new(stream), None, String::new());
            loop {
                line.clear();
                if (&mut stream).take(64 * 1024).read_line(&mut line)? == 0 {
                    return Ok(None);
                }
                match status {
                    None => {
                        status = line
                            .strip_prefix("HTTP/1.")
                            .and_then(|rest| rest.get(2..5)?.parse().ok());
                        if status.is_none() {
                            return Ok(None);
                        }
                    }
                    Some(status) if line.trim_end().is_empty() => return read(status, &mut stream),
                    Some(_) => {}
                }
            }
        });
        match answered {
            Ok(answer) => answer.ok_or_else(|| self.no_tidegate()),
            Err(source) => Err(self.failed(source)),
        }
    }

    /// Explains an error on the way to the server.
    fn failed(&self, source: io::Error) -> ClientError {
        let server = self.server.to_string();
        let inner = source.get_ref();
        if let Some(own) = inner.and_then(|inner| inner.downcast_ref::<Unusable>()) {
            return ClientError::Own(own.clone());
        }
        let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::InvalidCertificate(error)) = tls {
            let why = refused_certificate(error);
            return ClientError::Certificate { server, why };
        }
        if matches!(
            source.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ) {
            let timeout = self.how.timeout.saturating_add(self.waits).into();
            return ClientError::Late { server, timeout };
        }
        ClientError::Unreachable { server, source }
    }

    /// Sends a request on a new connection.
    fn send(&self, method: &str, path: &str, body: &str) -> io::Result<Box<dyn Stream>> {
        let server = &self.server.authority;
        let token = match self.how.token.as_deref().filter(|token| !token.is_empty()) {
            Some(token) if token.chars().any(char::is_control) => {
                let what = "the token has a line break or another control character: \
                            give it without, as in TIDEGATE_TOKEN=$(cat FILE)";
                return Err(Unusable::error(what));
            }
            Some(token) => format!("authorization: Bearer {token}\r\n"),
            None => String::new(),
        };
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.0\r\nhost: {server}\r\ncontent-length: {length}\r\n{token}\r\n{body}"
        );
        let mut connected = Err(io::ErrorKind::NotFound.into());
        for address in server.to_socket_addrs()? {
            connected = TcpStream::connect_timeout(&address, self.how.timeout);
            if connected.is_ok() {
                break;
            }
        }
        let stream = connected?;
        stream.set_read_timeout(Some(self.how.timeout.saturating_add(self.waits)))?;
        stream.set_write_timeout(Some(self.how.timeout))?;
        let mut stream: Box<dyn Stream> = if self.server.tls {
            Box::new(self.how.secure(stream, server)?)
        } else {
            Box::new(stream)
        };
        stream.write_all(request.as_bytes())?;
        stream.flush()?;
        Ok(stream)
    }

    /// Gets a resource of the server.
    pub fn get(&self, path: &str) -> Result<Value, ClientError> {
        Self::accepted(self.ask("GET", path, "")?)
    }

    /// The error for a response that is not from a Tidegate server of this version.
    pub fn no_tidegate(&self) -> ClientError {
        ClientError::NoHttp {
            server: self.server.to_string(),
            option: self.option,
        }
    }

    /// Posts a request about a limit. A refusal becomes an error with the server's message.
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, ClientError> {
        Self::accepted(self.ask("POST", path, &body.to_string())?)
    }

    /// The body of a decision. A refusal becomes an error with the server's message.
    pub fn accepted(answer: HttpReply) -> Result<Value, ClientError> {
        match answer.status {
            200 | 429 => Ok(answer.body),
            status => {
                let detail = answer.body["detail"].as_str().unwrap_or("no reason given");
                Err(ClientError::Refused {
                    detail: format!("the server replied {status}: {detail}"),
                })
            }
        }
    }
}

impl How {
    /// Starts TLS.
    fn secure(
        &self,
        stream: TcpStream,
        server: &str,
    ) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let host = server
            .rsplit_once(':')
            .map_or(server, |(host, _)| host)
            .trim_matches(['[', ']']);
        let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
        let mut roots = RootCertStore::empty();
        if let Some(path) = &self.ca {
            for certificate in certificates("--ca", path)? {
                let unusable = |error| Unusable::of("--ca", path, &error);
                roots.add(certificate).map_err(unusable)?;
            }
        } else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        let builder =
            ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .map_err(io::Error::other)?
                .with_root_certificates(roots);
        let config = match (&self.client_cert, &self.client_key) {
            (Some(cert), Some(path)) => {
                let key = PrivateKeyDer::from_pem_file(path)
                    .map_err(|error| Unusable::of("--client-key", path, &error))?;
                builder
                    .with_client_auth_cert(certificates("--client-cert", cert)?, key)
                    .map_err(|error| Unusable::of("--client-cert", cert, &error))?
            }
            _ => builder.with_no_client_auth(),
        };
        let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(connection, stream))
    }
}

fn certificates(option: &str, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let unusable = |error| Unusable::of(option, path, &error);
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .map_err(unusable)?
        .collect::<Result<_, _>>()
        .map_err(unusable)?;
    if found.is_empty() {
        let none = "it has no certificate in PEM, as in -----BEGIN CERTIFICATE-----";
        return Err(Unusable::of(option, path, &none));
    }
    Ok(found)
}

/// Something that this client was given and cannot use.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(String);

impl Unusable {
    fn error(what: &str) -> io::Error {
        io::Error::other(Self(what.to_owned()))
    }

    /// A file of an option.
    fn of(option: &str, path: &Path, why: &dyn Display) -> io::Error {
        Self::error(&format!("{option} {}: {why}", path.display()))
    }
}

/// Why a server's certificate is not accepted, and what helps.
fn refused_certificate(error: &CertificateError) -> String {
    let mend = match error {
        CertificateError::UnknownIssuer => {
            "no authority that is trusted here has signed it; name the file with its authority by --ca"
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired; renew it, and check this machine's clock"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "it is for another name; give --server a name that it has"
        }
        error if format!("{error:?}").contains("CaUsedAsEndEntity") => {
            "it is the certificate of an authority; make the server's with basicConstraints=CA:FALSE"
        }
        error => return error.to_string(),
    };
    mend.to_owned()
}
