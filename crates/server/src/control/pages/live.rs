//! The part of a page that changes, rendered each second and sent as a server-sent event.
//!
//! Each part is rendered once for all pages that show the same. An event has only what differs from
//! the event before it (`delta`), and the stream is compressed (`compress`).

use std::{
    convert::Infallible,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, Uri, header},
};
use bytes::Bytes;
use futures_util::stream;
use maud::{Markup, html};
use parking_lot::{Mutex, MutexGuard};
use tidegate_listen::peers::{Peer, Peers};
use tidegate_service::observe::ticks::ticks;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::{
    Missing, answer as response,
    compress::Compressor,
    delta::{self, Pieces},
    error_page, flow, limit, overview, resource, servers, state,
};
use crate::{
    control::ControlPlane,
    edges::http::{ClientAddress, permit::Viewer, query},
};

const EVERY: Duration = Duration::from_secs(1);
/// The maximum number of pages that get updates: a quarter of the connections of the control plane,
/// so that the others stay free for operators and scrapers.
const MOST_STREAMS: usize = 64;

/// The pages that get updates. A client on another machine has at most half of them.
#[derive(Debug)]
pub(crate) struct Streams {
    all: Arc<Semaphore>,
    of_peers: Arc<Peers>,
    /// The parts that are rendered now.
    rendered: Mutex<Vec<(LivePart, Weak<Renderings>)>>,
}

/// A page that gets updates, until it is dropped.
struct OpenStream {
    _of_all: OwnedSemaphorePermit,
    _of_peer: Option<Peer>,
}

/// The renderings of a part, for all pages that show it.
#[derive(Debug, Default)]
struct Renderings {
    latest: watch::Sender<Rendered>,
    /// The number of the rendering that began last. It changes under the lock of all parts.
    begun: AtomicU64,
}

/// A part as it was last rendered.
#[derive(Clone, Debug, Default)]
struct Rendered {
    /// How often it was rendered; 0 for never.
    number: u64,
    html: Arc<str>,
    /// The changes since the rendering before it.
    delta: Arc<str>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MOST_STREAMS)),
            of_peers: Peers::new(None, MOST_STREAMS),
            rendered: Mutex::default(),
        }
    }
}

impl Streams {
    /// `None` if there are as many as there may be.
    fn open(&self, client: Option<ClientAddress>) -> Option<OpenStream> {
        let of_peer = match client {
            Some(ClientAddress(client)) => self.of_peers.enter(client).ok()?,
            None => None,
        };
        Some(OpenStream {
            _of_all: Arc::clone(&self.all).try_acquire_owned().ok()?,
            _of_peer: of_peer,
        })
    }

    fn rendered(&self) -> MutexGuard<'_, Vec<(LivePart, Weak<Renderings>)>> {
        self.rendered.lock()
    }
}

/// The part to render.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LivePart {
    Overview {
        view: overview::View,
        viewer: Viewer,
    },
    Limit {
        name: String,
        key: Option<String>,
        viewer: Viewer,
    },
    Flow {
        app: String,
    },
    Resource {
        app: String,
        resource: String,
    },
    Servers,
    /// Only the state of the server, for pages that stay as they are.
    State,
}

impl LivePart {
    /// The state of the server, and the part below it.
    async fn render(
        &self,
        control: &ControlPlane,
        kept: &mut overview::Kept,
    ) -> Result<Markup, Missing> {
        let body = match self {
            Self::Overview { view, viewer } => {
                overview::changing(control, view, *viewer, kept).await
            }
            Self::Limit { name, key, viewer } => {
                limit::changing(control, name, key.as_deref(), *viewer).await?
            }
            Self::Flow { app: name } => flow::changing(control, name)?,
            Self::Resource {
                app: name,
                resource: of,
            } => resource::changing(control, name, of)?,
            Self::Servers => servers::changing(&control.app).await,
            Self::State => html! {},
        };
        Ok(html! { (state::strip(control)) (body) })
    }
}

/// The renderings of a part from now on, and the number of the one that began before: a page that
/// was just loaded is newer than that.
fn renderings(control: &Arc<ControlPlane>, part: LivePart) -> (watch::Receiver<Rendered>, u64) {
    let mut all = control.streams.rendered();
    all.retain(|(_, renderings)| renderings.strong_count() > 0);
    let same = all.iter().find(|(other, _)| *other == part);
    if let Some(same) = same.and_then(|(_, renderings)| renderings.upgrade()) {
        return (same.latest.subscribe(), same.begun.load(Relaxed));
    }
    let new = Arc::new(Renderings::default());
    all.push((part.clone(), Arc::downgrade(&new)));
    drop(all);
    let receiver = new.latest.subscribe();
    tokio::spawn(render(Arc::clone(control), part, new));
    (receiver, 0)
}

/// Renders a part each second, until no page shows it, it no longer exists, or the server stops.
async fn render(control: Arc<ControlPlane>, part: LivePart, renderings: Arc<Renderings>) {
    let mut ticks = ticks(EVERY);
    let (mut pieces, mut kept) = (Pieces::default(), overview::Kept::default());
    for number in 1.. {
        ticks.tick().await;
        // A page that comes now finds either these renderings or none.
        let all = control.streams.rendered();
        if renderings.latest.receiver_count() == 0 || control.app.service.is_stopping() {
            drop(renderings);
            return;
        }
        renderings.begun.store(number, Relaxed);
        drop(all);
        kept.forget_at(number);
        let Ok(html) = part.render(&control, &mut kept).await else {
            return;
        };
        let html: Arc<str> = html.into_string().into();
        let next = Pieces::of(Arc::clone(&html));
        let delta = next.since(&pieces).into();
        pieces = next;
        renderings.latest.send_replace(Rendered {
            number,
            html,
            delta,
        });
    }
}

pub(super) fn answer(
    control: Arc<ControlPlane>,
    uri: &Uri,
    viewer: Viewer,
    client: Option<ClientAddress>,
    compressed: bool,
) -> Response<Body> {
    let fields = [
        "name", "key", "app", "servers", "state", "resource", "q", "sort", "page",
    ];
    let part = match query::texts(uri, fields) {
        Ok([_, _, _, _, Some(_), ..]) => LivePart::State,
        Ok([_, _, _, Some(_), ..]) => LivePart::Servers,
        Ok([_, _, Some(app), _, _, Some(resource), ..]) => LivePart::Resource { app, resource },
        Ok([_, _, Some(app), ..]) => LivePart::Flow { app },
        Ok([Some(name), key, ..]) => LivePart::Limit { name, key, viewer },
        Ok(_) => match overview::View::of(uri) {
            Ok(view) => LivePart::Overview { view, viewer },
            Err(missing) => return error_page(&control, &missing),
        },
        Err(error) => return error_page(&control, &error.into()),
    };
    let Some(open) = control.streams.open(client) else {
        let why = "as many pages get updates as there may be: 64, and half of that for a client on another machine";
        return response(
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain; charset=utf-8",
            why.into(),
        );
    };
    let access = control.app.access_generation();
    let (renderings, before) = renderings(&control, part);
    let events = stream::unfold(
        Going {
            control,
            renderings,
            before,
            last: 0,
            access,
            compressor: compressed.then(Compressor::default),
            _open: open,
        },
        next,
    );
    let mut response = response(
        StatusCode::OK,
        "text/event-stream",
        Body::from_stream(events),
    );
    if compressed {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

struct Going {
    control: Arc<ControlPlane>,
    renderings: watch::Receiver<Rendered>,
    /// The number of the rendering that began before the page asked.
    before: u64,
    /// The number of the last rendering that was sent; 0 if none was.
    last: u64,
    /// The number of the access file under which the client was let in.
    access: u64,
    compressor: Option<Compressor>,
    _open: OpenStream,
}

/// The next event. The stream ends when the server stops, the limit no longer exists, or the access
/// file changes: the browser then connects again with its credentials.
async fn next(mut going: Going) -> Option<(Result<Bytes, Infallible>, Going)> {
    let event = loop {
        going.renderings.changed().await.ok()?;
        if going.control.app.service.is_stopping()
            || going.control.app.access_generation() != going.access
        {
            return None;
        }
        let rendered = going.renderings.borrow_and_update().clone();
        if rendered.number <= going.before {
            continue;
        }
        let follows = going.last > 0 && rendered.number == going.last + 1;
        going.last = rendered.number;
        let data = if follows {
            rendered.delta.to_string()
        } else {
            delta::whole(&rendered.html)
        };
        break format!("data: {data}\n\n");
    };
    let bytes = match &mut going.compressor {
        Some(compressor) => compressor.flushed(event.as_bytes()),
        None => event.into(),
    };
    Some((Ok(bytes), going))
}
