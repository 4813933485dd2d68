//! The part of a page that changes, rendered each second and sent as a server-sent event.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    http::{Response, StatusCode, Uri},
};
use futures_util::stream;
use maud::Markup;
use tidegate_service::observe::ticks::ticks;
use tokio::time::Interval;

use super::{Missing, answer as response, flow, limit, overview, page, resource, servers};
use crate::{
    control::ControlPlane,
    edges::http::{permit::Viewer, query},
};

const EVERY: Duration = Duration::from_secs(1);

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

pub(super) fn answer(control: Arc<ControlPlane>, uri: &Uri, viewer: Viewer) -> Response<Body> {
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
    let (ticks, access) = (ticks(EVERY), control.app.access_generation());
    let events = stream::unfold(
        Going {
            control,
            part,
            ticks,
            access,
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
