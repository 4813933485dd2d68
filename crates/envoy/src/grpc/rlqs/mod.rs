//! `envoy.service.rate_limit_quota.v3.RateLimitQuotaService`: Envoy itself decides, with a share of
//! the limit.
//!
//! ```text
//! streams ─ reports ─► assigner ─ each second ─► the limit, as for any other request
//!    ▲                    │  part    what one Envoy may still admit, and what was charged for that
//!    └─── assignments ────┘  terms   who gets how much of a second
//! ```
//!
//! An Envoy is a node with a lease: the units that it may admit in the next second are taken from
//! the limit before they are assigned. The assignment is a token bucket with that many tokens per
//! second. So what all Envoys admit never exceeds what was charged. [`part`] describes where
//! Envoy's own bucket makes this inexact.
//!
//! An Envoy's reports determine how much it gets from then on. If windows are fixed and longer than
//! a second, unused units are given back to the limit.

mod assigner;
mod part;
mod reports;
mod terms;
mod wire;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::pb::envoy::service::rate_limit_quota::v3::{
    RateLimitQuotaResponse, RateLimitQuotaUsageReports,
};
use bytes::Bytes;
use futures_util::{Stream, stream};
use http::{Request, Response, header};
use tidegate_listen::access::Rights;
use tokio::sync::mpsc;
use tonic::{
    Status,
    body::Body,
    codec::{Codec, EncodeBody, SingleMessageCompressionOverride},
    metadata::GRPC_CONTENT_TYPE,
};
use tonic_prost::ProstCodec;

pub(super) use self::assigner::assign;
use self::{assigner::Event, reports::Reports};
use super::messages::Messages;

/// The only method.
const METHOD: &str = "StreamRateLimitQuotas";

/// The maximum number of answers that wait for a stream's client. If there are more, the stream is
/// closed.
const WAITING: usize = 8;
/// The maximum number of unread reports of all streams. A report takes up to 4 MB once it is
/// decoded.
pub(super) const EVENTS: usize = 1;

/// A message from the assigner to one stream.
type Said = Result<RateLimitQuotaResponse, Status>;

/// The service: passes the streams' events to the assigner.
#[derive(Debug)]
pub(super) struct Quotas {
    events: mpsc::Sender<Event>,
    streams: Arc<AtomicU64>,
}

impl Quotas {
    pub fn new(events: mpsc::Sender<Event>) -> Self {
        Self {
            events,
            streams: Arc::default(),
        }
    }
}

impl Quotas {
    /// Answers a call of the service.
    pub async fn call<B>(&self, request: Request<Messages<B>>) -> Response<Body>
    where
        B: hyper::body::Body<Data = Bytes, Error = hyper::Error> + Send + Unpin + 'static,
    {
        if request.uri().path().rsplit('/').next() != Some(METHOD) {
            let what = format!("the service has one method: {METHOD}");
            return Status::unimplemented(what).into_http();
        }
        let answers = match self.open(request).await {
            Ok(answers) => answers,
            Err(status) => return status.into_http(),
        };
        let body = EncodeBody::new_server(
            ProstCodec::<_, RateLimitQuotaUsageReports>::default().encoder(),
            answers,
            None,
            SingleMessageCompressionOverride::default(),
            None,
        );
        let mut response = Response::new(Body::new(body));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, GRPC_CONTENT_TYPE);
        response
    }

    async fn open<B>(
        &self,
        request: Request<Messages<B>>,
    ) -> Result<impl Stream<Item = Said> + Send + 'static, Status>
    where
        B: hyper::body::Body<Data = Bytes, Error = hyper::Error> + Send + Unpin + 'static,
    {
        let id = self.streams.fetch_add(1, Ordering::Relaxed);
        let rights = request.extensions().get::<Arc<Rights>>().cloned();
        let (say, said) = mpsc::channel(WAITING);
        let stopping = |_| Status::unavailable("the server stops");
        let heard = say.downgrade();
        self.events
            .send(Event::Opened { id, say })
            .await
            .map_err(stopping)?;
        tokio::spawn(listen(
            id,
            rights,
            Reports::new(request.into_body()),
            self.events.clone(),
            heard,
        ));
        Ok(stream::unfold(said, async |mut said| {
            Some((said.recv().await?, said))
        }))
    }
}

/// Passes on reports until the stream ends, the assigner drops it, or the server stops.
async fn listen<B>(
    id: u64,
    rights: Option<Arc<Rights>>,
    mut reports: Reports<B>,
    events: mpsc::Sender<Event>,
    heard: mpsc::WeakSender<Said>,
) where
    B: hyper::body::Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    loop {
        let message = tokio::select! {
            message = reports.next() => message,
            // A client that keeps its side open must not keep the server from stopping.
            () = events.closed() => return,
        };
        let (event, refusal) = match message {
            Ok(Some(_)) if heard.upgrade().is_none() => return,
            Ok(Some(report)) if may_ask(rights.as_deref(), &report.domain) => {
                (Event::Reported { id, report }, None)
            }
            Ok(Some(report)) => {
                let what = format!("the client may not ask for the domain `{}`", report.domain);
                (Event::Closed { id }, Some(Status::permission_denied(what)))
            }
            Ok(None) => (Event::Closed { id }, None),
            Err(error) => (Event::Closed { id }, Some(error)),
        };
        if let Some((refusal, say)) = refusal.zip(heard.upgrade()) {
            let _ = say.try_send(Err(refusal));
        }
        let is_over = matches!(event, Event::Closed { .. });
        if events.send(event).await.is_err() || is_over {
            return;
        }
    }
}

/// Without a domain, the assigner uses that of the stream's first report, or refuses the stream.
fn may_ask(rights: Option<&Rights>, domain: &str) -> bool {
    domain.is_empty() || rights.is_some_and(|rights| rights.concern_domain(domain))
}
