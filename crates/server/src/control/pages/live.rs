//! The part of a page that changes, rendered each second and sent as a server-sent event.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Response, StatusCode, Uri},
};
use futures_util::stream;
use maud::Markup;
use tokio::time::Interval;

use super::{Missing, answer as response, flow, limit, overview, page, resource, servers};
use crate::{
    edges::http::{App, Viewer, query_fields},
    serve::background::ticks,
};

const EVERY: Duration = Duration::from_secs(1);

/// The part to render.
enum Part {
    Overview { view: overview::View, viewer: Viewer },
    Limit { name: String, viewer: Viewer },
    Flow { app: String },
    Resource { app: String, resource: String },
    Servers,
}

impl Part {
    async fn render(&self, app: &App) -> Result<Markup, Missing> {
        match self {
            Self::Overview { view, viewer } => Ok(overview::changing(app, view, *viewer)),
            Self::Limit { name, viewer } => limit::changing(app, name, *viewer),
            Self::Flow { app: name } => flow::changing(app, name),
            Self::Resource { app: name, resource: of } => resource::changing(app, name, of),
            Self::Servers => Ok(servers::changing(app).await),
        }
    }
}

pub(super) fn answer(app: Arc<App>, uri: &Uri, viewer: Viewer) -> Response<Body> {
    let part = match query_fields(uri, ["name", "app", "servers", "resource", "q", "sort", "page"]) {
        Ok([_, _, Some(_), ..]) => Part::Servers,
        Ok([_, Some(app), _, Some(resource), ..]) => Part::Resource { app, resource },
        Ok([_, Some(app), ..]) => Part::Flow { app },
        Ok([Some(name), ..]) => Part::Limit { name, viewer },
        Ok(_) => match overview::View::of(uri) {
            Ok(view) => Part::Overview { view, viewer },
            Err(missing) => return page(Err(missing)),
        },
        Err(error) => return page(Err(error.into())),
    };
    let (ticks, access) = (ticks(EVERY), app.access_generation());
    let events = stream::unfold(Going { app, part, ticks, access }, next);
    response(StatusCode::OK, "text/event-stream", Body::from_stream(events))
}

struct Going {
    app: Arc<App>,
    part: Part,
    ticks: Interval,
    /// The number of the access file under which the client was let in.
    access: u64,
}

/// The next event. The stream ends when the server stops, the limit no longer exists, or the access file changes: the browser
/// then connects again with its credentials.
async fn next(mut going: Going) -> Option<(Result<String, Infallible>, Going)> {
    going.ticks.tick().await;
    if !going.app.ready.load(Ordering::Acquire) || going.app.access_generation() != going.access {
        return None;
    }
    let html = going.part.render(&going.app).await.ok()?.into_string();
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
        assert_eq!(event("a\nb\r\nevent: c"), "data: a\ndata: b\ndata: \ndata: event: c\n\n");
    }
}
