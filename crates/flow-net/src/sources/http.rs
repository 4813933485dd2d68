//! A key of Consul, etcd, Nacos or Apollo.

use std::{io, path::PathBuf, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use form_urlencoded::byte_serialize;
use serde_json::{Value, json};
use tidegate_flow::sources::{
    RuleSource, RuleUpdate, SourceError,
    sentinel::{self, Kind},
    yaml,
};
use ureq::Agent;

use super::Parse;
use crate::agent::agent;

/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer.
const MAX_BYTES: u64 = 16 << 20;

/// Rules in a configuration service, read over HTTP or HTTPS (feature `http-source`).
///
/// Consul answers as soon as the key changes. The other services are asked each second
/// ([`every`](Self::every)). A missing or empty key is an error, and the previous rules stay
/// active; to remove all rules, set it to `[]` or `{}`.
///
/// ```no_run
/// use tidegate_flow::{Gate, sources::sentinel::Kind};
/// use tidegate_flow_net::sources::HttpSource;
///
/// let gate = Gate::new();
/// let source = HttpSource::nacos("http://127.0.0.1:8848", "shop-flow-rules", "SENTINEL_GROUP").sentinel(Kind::Flow);
/// let _following = gate.follow(source, |loaded| eprintln!("rules: {loaded:?}"))?;
/// # Ok::<(), tidegate_flow::sources::SourceError>(())
/// ```
pub struct HttpSource {
    /// `None` before the first request.
    agent: Option<Agent>,
    authority: Option<PathBuf>,
    service: Service,
    url: String,
    name: String,
    header: Option<(&'static str, String)>,
    every: Duration,
    parse: Parse,
    loaded: Option<String>,
    /// The index of Consul's key when it was read.
    index: Option<String>,
}

#[derive(Clone, Debug)]
enum Service {
    Consul,
    /// The key, in base64.
    Etcd(String),
    Nacos,
    /// The key in the namespace.
    Apollo(String),
}

fn encoded(text: &str) -> String {
    // A blank is `%20` in a path, and everywhere else, too.
    byte_serialize(text.as_bytes())
        .collect::<String>()
        .replace('+', "%20")
}

impl HttpSource {
    fn new(service: Service, base: &str, path: &str, name: &str) -> Self {
        Self {
            agent: None,
            authority: None,
            service,
            url: format!("{}{path}", base.trim_end_matches('/')),
            name: name.to_owned(),
            header: None,
            every: Duration::from_secs(1),
            parse: Box::new(|text| {
                Err(SourceError::Format(format!(
                    "no format was chosen for {} bytes",
                    text.len()
                )))
            }),
            loaded: None,
            index: None,
        }
    }

    /// A key of Consul's store, at an agent such as `http://127.0.0.1:8500`.
    #[must_use]
    pub fn consul(url: &str, key: &str) -> Self {
        let path: Vec<String> = key.split('/').map(encoded).collect();
        Self::new(
            Service::Consul,
            url,
            &format!("/v1/kv/{}?raw", path.join("/")),
            key,
        )
    }

    /// A key of etcd 3.4 or later, by its JSON gateway, as at `http://127.0.0.1:2379`.
    #[must_use]
    pub fn etcd(url: &str, key: &str) -> Self {
        Self::new(
            Service::Etcd(BASE64_STANDARD.encode(key)),
            url,
            "/v3/kv/range",
            key,
        )
    }

    /// A configuration of Nacos, as at `http://127.0.0.1:8848`, in the public namespace.
    #[must_use]
    pub fn nacos(url: &str, data_id: &str, group: &str) -> Self {
        let path = format!(
            "/nacos/v1/cs/configs?dataId={}&group={}",
            encoded(data_id),
            encoded(group)
        );
        Self::new(Service::Nacos, url, &path, data_id)
    }

    /// The namespace of Nacos, by its id.
    #[must_use]
    pub fn tenant(mut self, namespace: &str) -> Self {
        if matches!(self.service, Service::Nacos) {
            self.url = format!("{}&tenant={}", self.url, encoded(namespace));
        }
        self
    }

    /// A key in a namespace of Apollo, at its config service such as `http://127.0.0.1:8080`.
    #[must_use]
    pub fn apollo(url: &str, app: &str, cluster: &str, namespace: &str, key: &str) -> Self {
        let path = format!(
            "/configs/{}/{}/{}",
            encoded(app),
            encoded(cluster),
            encoded(namespace)
        );
        Self::new(Service::Apollo(key.to_owned()), url, &path, key)
    }

    /// Sends this header field with each request, such as `X-Consul-Token`, or `Authorization` with
    /// etcd's token.
    #[must_use]
    pub fn header(self, name: &'static str, value: impl Into<String>) -> Self {
        Self {
            header: Some((name, value.into())),
            ..self
        }
    }

    /// Trusts the certificate authorities in this file (PEM) instead of those of the system, for an
    /// address with `https://`.
    #[must_use]
    pub fn authority(self, file: impl Into<PathBuf>) -> Self {
        Self {
            authority: Some(file.into()),
            ..self
        }
    }

    /// Sets the interval between requests, except for Consul's. Default: one second.
    #[must_use]
    pub fn every(self, every: Duration) -> Self {
        Self { every, ..self }
    }

    /// The value is in a custom format.
    #[must_use]
    pub fn format(
        self,
        parse: impl Fn(&str) -> Result<RuleUpdate, SourceError> + Send + 'static,
    ) -> Self {
        Self {
            parse: Box::new(parse),
            ..self
        }
    }

    /// The value is one kind of rules as JSON, with Sentinel's field names: see
    /// [`sentinel`].
    #[must_use]
    pub fn sentinel(self, kind: Kind) -> Self {
        self.format(move |text| sentinel::parse(kind, text))
    }

    /// The value is rules of all kinds as YAML: see [`yaml`].
    #[must_use]
    pub fn yaml(self) -> Self {
        self.format(|text| yaml::parse(text).map(RuleUpdate::from))
    }

    /// Asks the service for the value.
    fn value(&mut self) -> Result<String, SourceError> {
        let failed = |error: String| SourceError::Read(io::Error::other(error));
        if !self.url.starts_with("http://") && !self.url.starts_with("https://") {
            return Err(failed(format!(
                "{} is not a URL that begins with http:// or https://",
                self.url
            )));
        }
        let agent = match self.agent.take() {
            None => agent(self.authority.as_deref(), PATIENCE)
                .map_err(|error| SourceError::Read(io::Error::other(error)))?,
            Some(agent) => agent,
        };
        let agent = &*self.agent.insert(agent);
        let url = match (&self.service, self.index.take()) {
            // It answers when the index is another one, or after the wait.
            (Service::Consul, Some(index)) => format!("{}&wait=1s&index={index}", self.url),
            _ => self.url.clone(),
        };
        let answer = match (&self.service, &self.header) {
            (Service::Etcd(key), header) => {
                let mut request = agent.post(&url).content_type("application/json");
                if let Some((name, value)) = header {
                    request = request.header(*name, value);
                }
                request.send(json!({"key": key}).to_string())
            }
            (_, Some((name, value))) => agent.get(&url).header(*name, value).call(),
            (_, None) => agent.get(&url).call(),
        };
        let mut answer = answer.map_err(|error| failed(error.to_string()))?;
        let index = answer
            .headers()
            .get("x-consul-index")
            .and_then(|index| index.to_str().ok());
        let (status, index) = (answer.status(), index.map(str::to_owned));
        let text = answer
            .body_mut()
            .with_config()
            .limit(MAX_BYTES)
            .read_to_string();
        let text = text.map_err(|error| failed(error.to_string()))?;
        let missing = || {
            failed(format!(
                "the key {} is missing or empty; to have no rules, set it to [] or {{}}",
                self.name
            ))
        };
        if !status.is_success() {
            return Err(if status.as_u16() == 404 {
                missing()
            } else {
                failed(format!("the answer is {status}"))
            });
        }
        let value = match &self.service {
            Service::Consul | Service::Nacos => Some(text),
            Service::Etcd(_) => {
                let answer: Value =
                    serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
                answer["kvs"][0]["value"]
                    .as_str()
                    .and_then(|value| BASE64_STANDARD.decode(value).ok())
                    .and_then(|value| String::from_utf8(value).ok())
            }
            Service::Apollo(key) => {
                let answer: Value =
                    serde_json::from_str(&text).map_err(|error| failed(error.to_string()))?;
                answer["configurations"][key.as_str()]
                    .as_str()
                    .map(str::to_owned)
            }
        };
        let value = value
            .filter(|value| !value.trim().is_empty())
            .ok_or_else(missing)?;
        self.index = index;
        Ok(value)
    }
}

impl RuleSource for HttpSource {
    fn name(&self) -> String {
        let service = match self.service {
            Service::Consul => "Consul",
            Service::Etcd(_) => "etcd",
            Service::Nacos => "Nacos",
            Service::Apollo(_) => "Apollo",
        };
        format!("the key {} of {service}", self.name)
    }

    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError> {
        let text = self.value()?;
        if self.loaded.as_ref() == Some(&text) {
            return Ok(None);
        }
        // A value with a mistake is read again at once, without Consul's wait.
        let index = self.index.take();
        let update = (self.parse)(&text)?;
        (self.loaded, self.index) = (Some(text), index);
        Ok(Some(update))
    }

    /// Consul itself waits.
    fn pause(&self) -> Duration {
        if matches!(self.service, Service::Consul) {
            Duration::from_millis(100)
        } else {
            self.every
        }
    }
}
