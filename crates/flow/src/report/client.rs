//! One HTTP client for all reports.

use std::{fs, io::Read as _, sync::Arc, time::Duration};

use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use ureq::{
    Agent,
    tls::{Certificate, RootCerts, TlsConfig},
};

use super::{Report, ReportError, message::ReportReply};

/// How long a report may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer. Rules are what may be long.
const MAX_ANSWER: u64 = 1 << 20;
/// The longest reason for a refusal that is shown.
const MAX_REASON: u64 = 4096;

pub(super) struct Client {
    agent: Agent,
    server: String,
    url: String,
    authorization: Option<String>,
}

impl Client {
    pub fn new(report: &Report) -> Result<Self, ReportError> {
        let wrong = |why: String| Err(ReportError::Options(why));
        let server = report.url.trim_end_matches('/').to_owned();
        let host = server.strip_prefix("http://").or_else(|| server.strip_prefix("https://"));
        if host.is_none_or(|host| host.is_empty() || host.contains(['/', ' ', '?', '#'])) {
            return wrong(format!("`{}` is not a URL such as http://127.0.0.1:8082", report.url));
        }
        for (what, name) in [("application", &report.app), ("instance", &report.instance)] {
            if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
                return wrong(format!(
                    "the name of the {what} must have 1 to 64 bytes, and no control characters"
                ));
            }
        }
        if report.token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return wrong("the token has a character that no token has".to_owned());
        }
        let trusted = match &report.authority {
            None => rustls_native_certs::load_native_certs().certs,
            Some(path) => {
                let read = fs::read(path).map_err(|error| error.to_string());
                let parse = |pem: Vec<u8>| {
                    let all: Result<Vec<CertificateDer<'static>>, _> =
                        CertificateDer::pem_slice_iter(&pem).collect();
                    all.map_err(|error| error.to_string())
                };
                match read.and_then(parse) {
                    Ok(all) if !all.is_empty() => all,
                    Ok(_) => return wrong(format!("{} has no certificate in PEM", path.display())),
                    Err(why) => return wrong(format!("{}: {why}", path.display())),
                }
            }
        };
        let trusted = trusted.iter().map(|der| Certificate::from_der(der).to_owned()).collect::<Vec<_>>();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(trusted)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_global(Some(PATIENCE))
            .build();
        Ok(Self {
            agent: config.into(),
            url: format!("{server}/v1/flow/report"),
            server,
            authorization: report.token.as_ref().map(|token| format!("Bearer {token}")),
        })
    }

    pub fn send(&self, body: &str) -> Result<ReportReply, ReportError> {
        let away = |why: String| ReportError::Away { url: self.server.clone(), why };
        let mut request = self.agent.post(&self.url).content_type("application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let mut answer = request.send(body).map_err(|error| away(error.to_string()))?;
        let status = answer.status();
        if !status.is_success() {
            let mut why = String::new();
            // An error while reading only shortens the reason.
            let _ = answer.body_mut().as_reader().take(MAX_REASON).read_to_string(&mut why);
            let why = super::message::detail(&why).unwrap_or(why);
            return Err(ReportError::Refused { url: self.server.clone(), status: status.as_u16(), why });
        }
        let read = answer.body_mut().with_config().limit(MAX_ANSWER).read_to_vec();
        let read = read.map_err(|error| away(error.to_string()))?;
        serde_json::from_slice(&read)
            .map_err(|error| away(format!("its answer is not that of tidegate serve: {error}")))
    }
}
