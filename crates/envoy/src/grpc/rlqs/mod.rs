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
mod terms;
mod wire;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::pb::envoy::service::rate_limit_quota::v3::{
    RateLimitQuotaResponse, RateLimitQuotaUsageReports,
    rate_limit_quota_service_server::RateLimitQuotaService,
};
use futures_util::{Stream, stream};
use tidegate_listen::access::Rights;
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming};

use self::assigner::Event;
pub(super) use self::assigner::assign;

/// The maximum number of answers that wait for a stream's client. If there are more, the stream is
/// closed.
const WAITING: usize = 8;
/// The maximum number of unread reports of all streams. A report takes up to 5 MB once it is
/// decoded.
pub(super) const EVENTS: usize = 4;

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

#[tonic::async_trait]
impl RateLimitQuotaService for Quotas {
    type StreamRateLimitQuotasStream = Pin<Box<dyn Stream<Item = Said> + Send>>;

    async fn stream_rate_limit_quotas(
        &self,
        request: Request<Streaming<RateLimitQuotaUsageReports>>,
    ) -> Result<Response<Self::StreamRateLimitQuotasStream>, Status> {
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
            request.into_inner(),
            self.events.clone(),
            heard,
        ));
        let answers = stream::unfold(said, async |mut said| Some((said.recv().await?, said)));
        Ok(Response::new(Box::pin(answers)))
    }
}

/// Passes on reports until the stream ends, the assigner drops it, or the server stops.
async fn listen(
    id: u64,
    rights: Option<Arc<Rights>>,
    mut reports: Streaming<RateLimitQuotaUsageReports>,
    events: mpsc::Sender<Event>,
    heard: mpsc::WeakSender<Said>,
) {
    loop {
        let message = tokio::select! {
            message = reports.message() => message,
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
