//! The dashboard that the control plane serves at `/`: every limit, one limit with its heavy keys,
//! and the rules.
//!
//! The server renders everything (`overview`, `limit`, `rules`, `chart`, in the frame of `layout`).
//! The changing part of a page is rendered again each second, and what differs is sent as a
//! server-sent event (`live`); `page.js` inserts it, and asks before it blocks a key. `state` is what
//! is wrong with the server as a whole, on every page. `rules.js` is the editor of the
//! rules, `form.js` the form of one limit next to it, which `limits.js` finds and changes in the
//! text. Nothing is loaded from other hosts, and the pages' content security policy forbids it.

mod audit;
mod compress;
mod delta;
mod denied;
mod flow;
mod key;
mod latency;
mod layout;
mod limit;
mod live;
mod orders;
mod overview;
mod resource;
mod rules;
mod servers;
mod shown;
mod state;

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    routing::get,
};

pub(crate) use self::live::Streams;
use super::ControlPlane;
use crate::edges::http::{
    App,
    permit::Viewer,
    query::{self, QueryError},
};

/// The content security policy: a browser may load only what this server sends.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The paths of the files that the pages load, with their types and contents.
const ASSETS: [(&str, &str, &str); 8] = [
    ("/assets/ask.js", SCRIPT, include_str!("ask.js")),
    ("/assets/form.js", SCRIPT, include_str!("form.js")),
    ("/assets/limits.js", SCRIPT, include_str!("limits.js")),
    ("/assets/page.js", SCRIPT, include_str!("page.js")),
    ("/assets/rules.js", SCRIPT, include_str!("rules.js")),
    (
        "/assets/style.css",
        "text/css; charset=utf-8",
        include_str!("style.css"),
    ),
    (
        "/assets/chart.css",
        "text/css; charset=utf-8",
        tidegate_chart::STYLE,
    ),
    (
        "/assets/icon.svg",
        "image/svg+xml",
        include_str!("icon.svg"),
    ),
];

/// The routes of the pages.
pub(crate) fn routes(control: Arc<ControlPlane>) -> Router<Arc<App>> {
    let mut router = Router::new();
    for (path, kind, text) in ASSETS {
        router = router.route(
            path,
            get(move |headers: HeaderMap| async move {
                whole(
                    StatusCode::OK,
                    kind,
                    text.as_bytes().to_vec(),
                    compress::accepted(&headers),
                )
            }),
        );
    }
    for path in [
        "/", "/limit", "/orders", "/rules", "/audit", "/servers", "/flow", "/live",
    ] {
        router = router.route(path, get(show));
    }
    router.with_state(control)
}

async fn show(State(control): State<Arc<ControlPlane>>, request: Request) -> Response<Body> {
    let (viewer, (head, _)) = (Viewer::of(&request), request.into_parts());
    let (uri, app) = (&head.uri, &control.app);
    let compressed = compress::accepted(&head.headers);
    let page = match uri.path() {
        "/" => overview::page(&control, uri, viewer).await,
        "/limit" => limit::page(&control, uri, viewer).await,
        "/orders" => orders::page(app, uri, viewer),
        "/rules" => Ok(rules::page(&control, viewer).await),
        "/audit" => Ok(audit::page(app)),
        "/servers" => Ok(servers::page(app).await),
        "/flow" => match query::texts(uri, ["app", "resource"]) {
            Ok([Some(name), Some(of)]) => resource::page(&control, &name, &of),
            Ok([name, _]) => flow::page(&control, name, viewer),
            Err(error) => Err(error.into()),
        },
        _ => {
            let client = head.extensions.get().copied();
            return live::answer(Arc::clone(&control), uri, viewer, client, compressed);
        }
    };
    let (status, frame) = match page {
        Ok(frame) => (StatusCode::OK, frame),
        Err(missing) => (StatusCode::NOT_FOUND, layout::missing(&missing.0)),
    };
    let html = frame.render(&state::strip(&control)).into_string();
    whole(status, HTML, html.into_bytes(), compressed)
}

const HTML: &str = "text/html; charset=utf-8";

/// The page about what is wrong with a request.
fn error_page(control: &ControlPlane, missing: &Missing) -> Response<Body> {
    let frame = layout::missing(&missing.0);
    let html = frame.render(&state::strip(control)).into_string();
    answer(StatusCode::NOT_FOUND, HTML, html.into())
}

/// A text that is sent at once.
fn whole(
    status: StatusCode,
    kind: &'static str,
    text: Vec<u8>,
    compressed: bool,
) -> Response<Body> {
    if !compressed {
        return answer(status, kind, text.into());
    }
    let mut response = answer(status, kind, compress::gzip(&text).into());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
    response
}

/// Why a page does not exist.
struct Missing(String);

impl From<QueryError> for Missing {
    fn from(error: QueryError) -> Self {
        Self(error.to_string())
    }
}

fn answer(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response
            .headers_mut()
            .insert(name, HeaderValue::from_static(value));
    }
    response
}
