//! The stream to one control plane. It reconnects when it is lost; until then the last accepted
//! rules stay in force.

use std::{
    convert::Infallible,
    hash::{BuildHasher, RandomState},
    path::Path,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::pb::{
    envoy::{
        config::core::v3::Node,
        service::discovery::v3::{
            DiscoveryRequest, DiscoveryResponse,
            aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
        },
    },
    google::{
        protobuf::{Struct, Value, value::Kind},
        rpc::Status,
    },
};
use tidegate_service::{
    decide::service::Service,
    rules::{
        Keeping,
        reload::{ReloadOrder, Reloaded},
    },
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep},
};
use tonic::{
    Request,
    metadata::{MetadataKey, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use super::{
    ResourceError, XdsSource,
    error::StreamError,
    messages::{TYPE, texts},
};
use crate::{
    config::load::{Text, build},
    xds::{Discovered, XdsStats},
};

/// How long a control plane may take to accept a connection, and to answer that it is there.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two messages that say that a connection is there.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// The pause before a version is refused that was refused already. Some control planes send it
/// again at once.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause after an answer, in the time that it took to put it in force: so any number of answers
/// takes at most a quarter of a processor.
const PAUSE: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// `INVALID_ARGUMENT` of gRPC.
const INVALID: i32 = 3;
/// The longest reason for a refusal, in bytes.
const LONGEST_REASON: usize = 4_096;

/// Follows one control plane.
pub struct Client {
    pub source: XdsSource,
    pub discovered: Arc<Discovered>,
    pub stats: Arc<XdsStats>,
    pub service: Arc<Service>,
    pub reload: mpsc::Sender<ReloadOrder>,
    /// Whether several resources may have descriptors of one domain.
    pub merge_domains: bool,
}

impl Client {
    /// Follows the control plane until the future is dropped.
    pub async fn follow(self) {
        let (first, longest) = self.source.pauses;
        let mut pause = first;
        loop {
            let reason = self.stream(&mut pause).await;
            self.stats.seen_down(self.service.now());
            tracing::warn!(url = self.source.origin, %reason, again_in = ?pause, "no stream from the control plane; its last rules stay in force");
            // Servers that lost the same control plane do not come back all at once.
            let jitter = (RandomState::new().hash_one(pause) % 256) as u32;
            sleep(pause / 2 + pause * jitter / 256).await;
            pause = (pause * 2).min(longest);
        }
    }

    /// Opens a stream, and follows it to its end. An answer that was put in force makes the next
    /// pause the first one again. Returns why it ended.
    async fn stream(&self, pause: &mut Duration) -> StreamError {
        match self.follow_stream(pause).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn follow_stream(&self, pause: &mut Duration) -> Result<Infallible, StreamError> {
        let channel = self.channel().await?;
        let client = AggregatedDiscoveryServiceClient::new(channel);
        let mut client = client.max_decoding_message_size(self.source.max_message);
        let (send, mut requests) = mpsc::channel(1);
        let outgoing = futures_util::stream::poll_fn(move |context| requests.poll_recv(context));
        let mut request = Request::new(outgoing);
        for (name, value) in &self.source.headers {
            let name = MetadataKey::from_bytes(name.to_ascii_lowercase().as_bytes());
            match (name, MetadataValue::try_from(value.as_str())) {
                (Ok(name), Ok(value)) => drop(request.metadata_mut().insert(name, value)),
                _ => return Err(StreamError::Header),
            }
        }
        // Without a version: a control plane that has started again may count its versions from the
        // beginning.
        let _ = send.send(self.question("", "", None)).await;
        let answers = client.stream_aggregated_resources(request).await?;
        let mut answers = answers.into_inner();
        let (mut in_force, mut refused) = (String::new(), None::<(String, Refusal)>);
        let mut next = None;
        loop {
            let answer = match next.take() {
                Some(answer) => answer,
                None => answers.message().await?.ok_or(StreamError::Ended)?,
            };
            self.stats.seen_up(self.service.now());
            if answer.type_url != TYPE {
                self.stats.refused.fetch_add(1, Ordering::Relaxed);
                sleep(AGAIN).await;
                let reason = format!("this server asks for {TYPE} alone");
                let refusal = DiscoveryRequest {
                    type_url: answer.type_url,
                    ..self.question("", &answer.nonce, Some(reason))
                };
                if send.send(refusal).await.is_err() {
                    return Err(StreamError::Ended);
                }
                continue;
            }
            let known = refused
                .take()
                .filter(|(version, _)| *version == answer.version_info);
            let (version, nonce) = (answer.version_info.clone(), answer.nonce.clone());
            let mut started = None;
            let applied = if let Some((_, reason)) = known {
                sleep(AGAIN).await;
                Err(reason)
            } else {
                started = Some(Instant::now());
                self.apply(answer).await
            };
            let request = match applied {
                Ok(()) => {
                    *pause = self.source.pauses.0;
                    self.stats.updates.fetch_add(1, Ordering::Relaxed);
                    in_force = version;
                    self.question(&in_force, &nonce, None)
                }
                Err(reason) => {
                    self.stats.refused.fetch_add(1, Ordering::Relaxed);
                    refused = Some((version, reason.clone()));
                    self.question(&in_force, &nonce, Some(reason.0))
                }
            };
            if send.send(request).await.is_err() {
                return Err(StreamError::Ended);
            }
            // Of the answers that come in the pause only the newest is put in force. Each has all
            // resources.
            let took = started.map_or(Duration::ZERO, |started| started.elapsed());
            let pause = (took * PAUSE).min(LONGEST_PAUSE);
            let mut pause = pin!(sleep(pause));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    answer = answers.message() => match answer? {
                        Some(answer) if answer.type_url == TYPE || next.is_none() => next = Some(answer),
                        Some(_) => {}
                        None => return Err(StreamError::Ended),
                    },
                }
            }
        }
    }

    async fn channel(&self) -> Result<Channel, StreamError> {
        let source = &self.source;
        let mut endpoint = Endpoint::from_shared(source.origin.clone())?;
        endpoint = endpoint
            .connect_timeout(PATIENCE)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(PATIENCE)
            .keep_alive_while_idle(true);
        if source.uses_tls {
            // Read at each connection: certificates are renewed in place.
            let read = |path: &Path| {
                std::fs::read(path).map_err(|source| StreamError::Read {
                    path: path.to_owned(),
                    source,
                })
            };
            let mut tls = ClientTlsConfig::new();
            tls = match &source.ca {
                Some(ca) => tls.ca_certificate(Certificate::from_pem(read(ca)?)),
                None => tls.with_native_roots(),
            };
            if let Some((cert, key)) = &source.identity {
                tls = tls.identity(Identity::from_pem(read(cert)?, read(key)?));
            }
            if let Some(name) = &source.server_name {
                tls = tls.domain_name(name);
            }
            endpoint = endpoint.tls_config(tls)?;
        }
        Ok(endpoint.connect().await?)
    }

    /// A request for all resources, which also accepts or refuses the previous response.
    fn question(&self, version: &str, nonce: &str, reason: Option<String>) -> DiscoveryRequest {
        let text = |text: &String| Value {
            kind: Some(Kind::StringValue(text.clone())),
        };
        let metadata = self
            .source
            .metadata
            .iter()
            .map(|(name, value)| (name.clone(), text(value)));
        let metadata = Struct {
            fields: metadata.collect(),
        };
        let metadata = (!metadata.fields.is_empty()).then_some(metadata);
        DiscoveryRequest {
            version_info: version.to_owned(),
            node: Some(Node {
                id: self.source.node.clone(),
                metadata,
            }),
            type_url: TYPE.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: reason.map(|message| Status {
                code: INVALID,
                message,
            }),
            ..DiscoveryRequest::default()
        }
    }

    /// Puts an answer in force. It is read on a thread that may block.
    ///
    /// # Errors
    /// When the answer is refused. The previous rules stay in force.
    async fn apply(&self, answer: DiscoveryResponse) -> Result<(), Refusal> {
        let DiscoveryResponse {
            version_info: version,
            resources,
            ..
        } = answer;
        let (source, keeping) = (self.source.clone(), self.service.keeping());
        let merges = self.merge_domains;
        let read =
            move || texts(resources, &source).and_then(|texts| checked(texts, keeping, merges));
        let read = tokio::task::spawn_blocking(read).await;
        let new = read
            .map_err(|_| Refusal::new("the server is stopping"))?
            .map_err(|error| Refusal::new(&error.to_string()))
            .inspect_err(|Refusal(reason)| {
                tracing::error!(
                    url = self.source.origin,
                    reason,
                    "rules of the control plane rejected; the previous rules stay active"
                );
            })?;
        let domains = new.len();
        let before = self.discovered.replace(new);
        let (tell, receiver) = oneshot::channel();
        let reason = match self.reload.send(Some(tell)).await {
            Ok(()) => match receiver.await {
                Ok(Reloaded::Loaded { .. } | Reloaded::BuiltIn) => {
                    let url = &self.source.origin;
                    tracing::info!(
                        url,
                        version,
                        domains,
                        "rules of the control plane are in force"
                    );
                    return Ok(());
                }
                Ok(Reloaded::Rejected { problems }) => problems.join("; "),
                Err(_) => "the rules could not be loaded".to_owned(),
            },
            Err(_) => "the server is stopping".to_owned(),
        };
        self.discovered.replace(before);
        Err(Refusal::new(&reason))
    }
}

/// Checks the resources by themselves, so that mistakes are not mixed with those of files.
fn checked(texts: Vec<Text>, keeping: Keeping, merges: bool) -> Result<Vec<Text>, ResourceError> {
    build(texts.iter().cloned().map(Ok), keeping, merges)?;
    Ok(texts)
}

/// The reason for a refusal, as the control plane gets it.
#[derive(Clone)]
struct Refusal(String);

impl Refusal {
    fn new(reason: &str) -> Self {
        Self(reason[..reason.floor_char_boundary(LONGEST_REASON)].to_owned())
    }
}
