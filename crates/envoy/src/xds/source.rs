//! The address of a control plane, with its options.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use url::Url;

/// The largest answer of a control plane, unless its address says otherwise.
const MAX_MESSAGE: usize = 64 << 20;

/// A control plane, as in
/// `https://envoy-gateway:18001?node=envoy-ratelimit&ca=/certs/ca.crt&cert=/certs/tls.crt&key=/certs/tls.key`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XdsSource {
    /// Scheme, host and port.
    pub origin: String,
    pub uses_tls: bool,
    /// This server's id for the control plane.
    pub node: String,
    /// More about this server for the control plane.
    pub metadata: BTreeMap<String, String>,
    /// Header fields of the stream.
    pub headers: BTreeMap<String, String>,
    /// The authority of the control plane's certificate; `None` for the system's.
    pub ca: Option<PathBuf>,
    /// This server's certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the control plane's certificate, if it is not the host.
    pub server_name: Option<String>,
    /// Options of the limits that have no option of this name in their metadata.
    pub options: BTreeMap<String, String>,
    pub max_message: usize,
    /// The pauses before a lost stream is opened again: the first, and the longest.
    pub pauses: (Duration, Duration),
}

impl XdsSource {
    /// The address without its options.
    pub fn shown(&self) -> String {
        self.origin.clone()
    }
}

/// Why a text is not the address of a control plane.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct XdsSourceError(String);

impl std::str::FromStr for XdsSource {
    type Err = XdsSourceError;

    fn from_str(text: &str) -> Result<Self, XdsSourceError> {
        let refuse = |what: String| Err(XdsSourceError(what));
        let url = match Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => url,
            _ => return refuse("write http://HOST:PORT or https://HOST:PORT".to_owned()),
        };
        let (uses_tls, host) = (url.scheme() == "https", url.host_str().unwrap_or_default());
        let port = url.port().unwrap_or(if uses_tls { 18001 } else { 18000 });
        let mut source = Self {
            origin: format!("{}://{host}:{port}", url.scheme()),
            uses_tls,
            node: "default".to_owned(),
            max_message: MAX_MESSAGE,
            pauses: (Duration::from_secs(1), Duration::from_mins(1)),
            ..Self::default()
        };
        let (mut cert, mut key) = (None, None);
        for (name, value) in url.query_pairs() {
            let pair = |sign| match value.split_once(sign) {
                Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
                _ => Err(XdsSourceError(format!(
                    "{name} is `{value}`; write it as in {name}=NAME{sign}VALUE"
                ))),
            };
            match &*name {
                "node" => source.node = value.into_owned(),
                "metadata" => source.metadata.extend([pair('=')?]),
                "option" => source.options.extend([pair('=')?]),
                "header" => source.headers.extend([pair(':')?]),
                "ca" => source.ca = Some(value.into_owned().into()),
                "cert" => cert = Some(value.into_owned().into()),
                "key" => key = Some(value.into_owned().into()),
                "server_name" => source.server_name = Some(value.into_owned()),
                "max_message" => match value.parse() {
                    Ok(bytes) => source.max_message = bytes,
                    Err(_) => {
                        return refuse(format!(
                            "max_message is `{value}`; write a number of bytes"
                        ));
                    }
                },
                "first_pause" | "longest_pause" => match tidegate_core::parse_duration(&value) {
                    Ok(pause) if name == "first_pause" => source.pauses.0 = pause,
                    Ok(pause) => source.pauses.1 = pause,
                    Err(_) => return refuse(format!("{name} is `{value}`; write it as in 10s")),
                },
                _ => {
                    return refuse(format!(
                        "there is no option `{name}`; the options are node, metadata, option, header, ca, cert, key, server_name, \
                         max_message, first_pause and longest_pause"
                    ));
                }
            }
        }
        source.identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return refuse("a client certificate needs cert and key".to_owned()),
        };
        if !uses_tls
            && (source.ca.is_some() || source.identity.is_some() || source.server_name.is_some())
        {
            return refuse("ca, cert, key and server_name are for https://".to_owned());
        }
        Ok(source)
    }
}
