//! The part of a page that changes, rendered each second and sent as a server-sent event.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{Response, StatusCode, Uri},
};
use futures_util::stream;
use maud::Markup;
use tidegate_listen::peers::{Peer, Peers};
use tidegate_service::observe::ticks::ticks;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::Interval,
};

use super::{Missing, answer as response, flow, limit, overview, page, resource, servers};
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
}

/// A page that gets updates, until it is dropped.
struct OpenStream {
    _of_all: OwnedSemaphorePermit,
    _of_peer: Option<Peer>,
}

impl Default for Streams {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(MOST_STREAMS)),
            of_peers: Peers::new(None, MOST_STREAMS),
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
}

/// The part to render.
enum LivePart {
    Overview {
        view: overview::View,
        viewer: Viewer,
    },
    Limit {
        name: String,
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
}

impl LivePart {
    async fn render(&self, control: &ControlPlane) -> Result<Markup, Missing> {
        match self {
            Self::Overview { view, viewer } => Ok(overview::changing(&control.app, view, *viewer)),
            Self::Limit { name, viewer } => limit::changing(&control.app, name, *viewer),
            Self::Flow { app: name } => flow::changing(control, name),
            Self::Resource {
                app: name,
                resource: of,
            } => resource::changing(control, name, of),
            Self::Servers => Ok(servers::changing(&control.app).await),
        }
    }
}

pub(super) fn answer(
    control: Arc<ControlPlane>,
    uri: &Uri,
    viewer: Viewer,
    client: Option<ClientAddress>,
) -> Response<Body> {
    let part = match query::texts(
        uri,
        ["name", "app", "servers", "resource", "q", "sort", "page"],
    ) {
        Ok([_, _, Some(_), ..]) => LivePart::Servers,
        Ok([_, Some(app), _, Some(resource), ..]) => LivePart::Resource { app, resource },
        Ok([_, Some(app), ..]) => LivePart::Flow { app },
        Ok([Some(name), ..]) => LivePart::Limit { name, viewer },
        Ok(_) => match overview::View::of(uri) {
            Ok(view) => LivePart::Overview { view, viewer },
            Err(missing) => return page(Err(missing)),
        },
        Err(error) => return page(Err(error.into())),
    };
    let Some(open) = control.streams.open(client) else {
        let why = "as many pages get updates as there may be: 64, and half of that for a client on another machine";
        return response(
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain; charset=utf-8",
            why.into(),
        );
    };
    let (ticks, access) = (ticks(EVERY), control.app.access_generation());
    let events = stream::unfold(
        Going {
            control,
            part,
            ticks,
            access,
            _open: open,
        },
        next,
    );
    response(
        StatusCode::OK,
        "text/event-stream",
        Body::from_stream(events),
    )
}

struct Going {
    control: Arc<ControlPlane>,
    part: LivePart,
    ticks: Interval,
    /// The number of the access file under which the client was let in.
    access: u64,
    _open: OpenStream,
}

/// The next event. The stream ends when the server stops, the limit no longer exists, or the access
/// file changes: the browser then connects again with its credentials.
async fn next(mut going: Going) -> Option<(Result<String, Infallible>, Going)> {
    going.ticks.tick().await;
    if going.control.app.service.is_stopping()
        || going.control.app.access_generation() != going.access
    {
        return None;
    }
    let html = going.part.render(&going.control).await.ok()?.into_string();
    Some((Ok(event(&html)), going))
}

/// Each line of the data is a separate field.
fn event(data: &str) -> String {
    let mut lines = String::with_capacity(data.len() + 64);
    for line in data.split(['\n', '\r']) {
        lines.push_str("data: ");
        lines.push_str(line);
        lines.push('\n');
    }
    lines + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_with_line_breaks_stays_one_event() {
        assert_eq!(
            event("a\nb\r\nevent: c"),
            "data: a\ndata: b\ndata: \ndata: event: c\n\n"
        );
    }
}
