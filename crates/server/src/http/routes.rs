//! Which path does what.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, Bytes, HttpBody as _},
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    routing::{MethodFilter, on},
};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    admin, answer,
    ask::{self, Ask, Asks},
    credentials::http_rights,
    descriptors, history, overview,
    problem::{Problem, Refused},
    serve::Certificate,
    top,
};
use crate::{
    access::{Door, Rights, Role},
    envoy::RateLimits,
    metrics::{Events, Metrics},
    pages,
    reload::ReloadOrder,
    service::{self, Act, Service},
    shared::Readiness,
};

/// The longest body, in bytes.
pub const MAX_BODY: usize = 64 * 1024;
/// How long a client may take to send its body.
const BODY_TIME: Duration = Duration::from_secs(10);

/// How long the body of a request is waited for that is refused.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// What the handlers share.
pub(crate) struct App {
    pub service: Arc<Service>,
    /// Decides on descriptors.
    pub rates: Arc<RateLimits>,
    pub metrics: Metrics,
    pub events: Arc<Events>,
    /// What clients may do: of the data plane, and of the control plane.
    pub doors: [Door; 2],
    /// Takes orders to load the rules again.
    pub reload: mpsc::Sender<ReloadOrder>,
    /// Whether new work is welcome: not any more once the server stops.
    pub ready: AtomicBool,
    /// The origins whose web pages may ask.
    pub origins: Vec<String>,
}

/// What a path does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Ask one limit, or several together, and take the cost.
    Acquire,
    /// Ask without taking.
    Peek,
    /// Give back.
    Refund,
    /// Deny a key.
    Block,
    /// Let a blocked key ask again.
    Unblock,
    /// Forget what was used.
    Reset,
    /// The rules in force.
    Rules,
    /// Load the rules again.
    Reload,
    /// Ask one limit in the head of a request, for proxies that ask before they pass a request on.
    Check,
    /// Ask with descriptors, as envoyproxy/ratelimit takes them.
    Json,
    /// Whether it wants requests, as envoyproxy/ratelimit says it.
    HealthCheck,
    /// Which keys ask most, and which are denied most.
    Top,
    /// What a limit decided in each second.
    History,
    /// Every limit with its rule and its counts.
    Limits,
    /// Whether the process lives.
    Health,
    /// Whether it wants requests.
    Ready,
    /// Prometheus.
    Metrics,
    /// The description of all this.
    OpenApi,
}

impl Endpoint {
    /// Whether limits are asked here.
    fn is_asked_limits(self) -> bool {
        matches!(self, Self::Acquire | Self::Peek | Self::Refund | Self::Check | Self::Json)
    }
}

/// The two HTTP listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// `--http`: for programs that ask limits.
    Data,
    /// `--admin`: for operators, their tools and Prometheus.
    Admin,
}

/// Which of the listeners has a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// The data plane alone.
    OnData,
    /// The control plane alone.
    OnAdmin,
    /// Both.
    OnBoth,
}

/// One path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// GET or POST.
    pub method: &'static str,
    /// With `{name}` for a part of the request's choice.
    pub path: &'static str,
    /// What it does.
    pub endpoint: Endpoint,
    /// Where.
    pub served: Served,
}

impl Route {
    /// What a client must be allowed to do. On the control plane GET shows something and POST changes something.
    #[must_use]
    pub fn needs(&self) -> Option<Role> {
        match (self.endpoint, self.served) {
            (Endpoint::Health | Endpoint::HealthCheck | Endpoint::Ready | Endpoint::OpenApi, _) => None,
            (_, Served::OnData | Served::OnBoth) => Some(Role::Decide),
            (_, Served::OnAdmin) if self.method == "GET" => Some(Role::Observe),
            (_, Served::OnAdmin) => Some(Role::Operate),
        }
    }

    /// Whether this listener has it.
    #[must_use]
    pub fn is_on(&self, plane: Plane) -> bool {
        match self.served {
            Served::OnBoth => true,
            Served::OnData => plane == Plane::Data,
            Served::OnAdmin => plane == Plane::Admin,
        }
    }
}

const fn get(path: &'static str, endpoint: Endpoint, served: Served) -> Route {
    Route { method: "GET", path, endpoint, served }
}

const fn post(path: &'static str, endpoint: Endpoint, served: Served) -> Route {
    Route { method: "POST", path, endpoint, served }
}

/// All paths of both listeners.
pub const ROUTES: &[Route] = &[
    post("/v1/acquire", Endpoint::Acquire, Served::OnData),
    post("/v1/peek", Endpoint::Peek, Served::OnBoth),
    post("/v1/refund", Endpoint::Refund, Served::OnBoth),
    get("/v1/check/{limit}", Endpoint::Check, Served::OnData),
    post("/json", Endpoint::Json, Served::OnData),
    get("/healthcheck", Endpoint::HealthCheck, Served::OnBoth),
    get("/healthz", Endpoint::Health, Served::OnBoth),
    get("/readyz", Endpoint::Ready, Served::OnBoth),
    get("/openapi.json", Endpoint::OpenApi, Served::OnBoth),
    post("/v1/block", Endpoint::Block, Served::OnAdmin),
    post("/v1/unblock", Endpoint::Unblock, Served::OnAdmin),
    post("/v1/reset", Endpoint::Reset, Served::OnAdmin),
    get("/v1/rules", Endpoint::Rules, Served::OnAdmin),
    post("/v1/reload", Endpoint::Reload, Served::OnAdmin),
    get("/metrics", Endpoint::Metrics, Served::OnAdmin),
    get("/v1/limits", Endpoint::Limits, Served::OnAdmin),
    get("/v1/top", Endpoint::Top, Served::OnAdmin),
    get("/v1/history", Endpoint::History, Served::OnAdmin),
];

/// The routes of a listener, ready to serve.
pub(crate) fn router(app: Arc<App>, plane: Plane) -> Router {
    let mut router = Router::new();
    for route in ROUTES.iter().filter(|route| route.is_on(plane)) {
        let &Route { method, path, .. } = route;
        let filter = if method == "GET" { MethodFilter::GET } else { MethodFilter::POST };
        let handler = move |State(app): State<Arc<App>>, request: Request| async move {
            let started = app.service.now();
            let response = run(&app, plane, route, request).await.unwrap_or_else(Refused::into_response);
            let took = app.service.now().saturating_since(started);
            app.metrics.http_request(path, response.status().as_u16(), took);
            if route.endpoint.is_asked_limits() {
                app.metrics.answers.observe(took, 1);
            }
            response
        };
        router = router.route(path, on(filter, handler));
    }
    if plane == Plane::Admin {
        let permit = from_fn_with_state(Arc::clone(&app), permit_page);
        router = router.merge(pages::add(Router::new()).route_layer(permit));
    }
    let not_found = move |State(app): State<Arc<App>>, request: Request| async move {
        app.metrics.http_request("other", 404, tidegate_core::Nanos::ZERO);
        not_found(plane, request.uri().path())
    };
    router.fallback(not_found).method_not_allowed_fallback(wrong_method).with_state(app)
}

async fn run(app: &App, plane: Plane, route: &Route, request: Request) -> Result<Response<Body>, Refused> {
    refuse_foreign_pages(app, plane, request.headers())?;
    let rights = match route.needs() {
        None => None,
        Some(role) => match permit(app, plane, role, &request) {
            Ok(rights) => Some(rights),
            Err(refused) => {
                drain(request.into_body()).await;
                return Err(refused);
            }
        },
    };
    let permitted = |limit: &str| match &rights {
        Some(rights) if !rights.concern(limit.as_bytes()) => {
            Err(Problem::forbidden(format!("{} may not use the limit `{}`", rights.name, shown(limit))))
        }
        _ => Ok(()),
    };
    let endpoint = route.endpoint;
    match endpoint {
        Endpoint::Health => Ok(answer::json(&json!({"status": "ok"}))),
        Endpoint::Ready => ready(app),
        Endpoint::HealthCheck => {
            ready(app)?;
            Ok(text("OK".to_owned(), "text/plain; charset=utf-8"))
        }
        Endpoint::Check => {
            let ask = ask::in_head(&request)?;
            permitted(ask.limit)?;
            let key = ask.key.as_deref();
            let asked = service::Ask { limit: ask.limit.as_bytes(), key, cost: ask.cost };
            let answer = app.service.decide(asked, Act::Take, app.service.now()).await;
            let answer = answer.map_err(|refusal| Problem::from_refusal(refusal, "#"))?;
            // A proxy wants the head alone: nginx closes a connection on which a body is left.
            let mut response = answer::one(&answer, None);
            response.headers_mut().remove(header::CONTENT_TYPE);
            *response.body_mut() = Body::empty();
            Ok(response)
        }
        Endpoint::Top => top::answer(app, request.uri(), &permitted),
        Endpoint::History => history::answer(app, request.uri(), &permitted),
        Endpoint::Limits => overview::answer(app, request.uri(), rights.as_deref()),
        Endpoint::Json => {
            let body = body(request).await?;
            descriptors::decide(&app.rates, &body, rights.as_deref()).await
        }
        Endpoint::OpenApi => Ok(text(include_str!("openapi.json").to_owned(), "application/json")),
        Endpoint::Acquire | Endpoint::Peek => {
            let asks = ask::asks(&body(request).await?)?;
            match &asks {
                Asks::One(ask) => permitted(&ask.limit)?,
                Asks::All(all) => all.iter().try_for_each(|ask| permitted(&ask.limit))?,
            }
            decide(app, endpoint, asks).await
        }
        Endpoint::Refund => {
            let ask = ask::read::<Ask>(&body(request).await?)?;
            permitted(&ask.limit)?;
            refuse_to_refund_rates(app, &ask, rights.as_deref())?;
            let answer = app.service.decide(question(&ask), Act::Refund, app.service.now()).await;
            let answer = answer.map_err(|refusal| Problem::from_refusal(refusal, "#"))?;
            Ok(answer::one(&answer, Some(StatusCode::OK)))
        }
        Endpoint::Metrics
        | Endpoint::Block
        | Endpoint::Unblock
        | Endpoint::Reset
        | Endpoint::Rules
        | Endpoint::Reload => admin::run(app, endpoint, request, &permitted).await,
    }
}

/// Whether the server wants requests. A store that is down is no reason to send them elsewhere (the others have the same
/// one) as long as every limit has an answer without it.
fn ready(app: &App) -> Result<Response<Body>, Refused> {
    let unavailable = |title, detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, title, detail);
    if !app.ready.load(Ordering::Acquire) {
        return Err(unavailable("Stopping", "the server is stopping; ask another one".to_owned()).into());
    }
    match app.service.readiness() {
        Readiness::Ready => Ok(answer::json(&json!({"status": "ready"}))),
        Readiness::Degraded { health, why } => {
            let store = overview::health_name(health);
            Ok(answer::json(&json!({"status": "degraded", "store": store, "detail": why})))
        }
        Readiness::Closed { limit, why } => {
            let detail = format!(
                "the shared store does not answer, and limit `{limit}` denies everything until it does (on_error: closed): {why}"
            );
            Err(unavailable("Store down", detail).into())
        }
    }
}

/// A browser sends on behalf of any page that it shows, also to servers that only this machine can reach. It tells the
/// page's origin, and only origins that the operator named are let through. The Host field proves nothing: a page whose
/// name is made to lead to this machine has its own name there.
fn refuse_foreign_pages(app: &App, plane: Plane, headers: &HeaderMap) -> Result<(), Refused> {
    let named = |origin: &HeaderValue| app.origins.iter().any(|named| named.as_bytes() == origin.as_bytes());
    // Only the control plane has pages of its own.
    let is_own = |origin: &HeaderValue| plane == Plane::Admin && is_own_page(origin, headers);
    let is_let_in = |origin: &HeaderValue| named(origin) || is_own(origin);
    if headers.get_all(header::ORIGIN).iter().all(is_let_in) {
        return Ok(());
    }
    let detail = "a web page asks whose origin is not allowed: name it with --http-origin, or ask from a program without \
                  an Origin field";
    Err(Problem::new(StatusCode::FORBIDDEN, "Foreign origin", detail).into())
}

/// Whether the page is this server's own: it was loaded from the address that is asked now. A name could lead anywhere, so the
/// address must be an IP address, or `localhost`.
fn is_own_page(origin: &HeaderValue, headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let is_address = host.parse::<std::net::SocketAddr>().is_ok()
        || host.parse::<std::net::Ipv4Addr>().is_ok()
        || host.split(':').next() == Some("localhost");
    let origin = origin.to_str().unwrap_or_default();
    let from = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
    is_address && from == Some(host)
}

/// The dashboard is for clients that may see every limit.
async fn permit_page(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
    let rights = match permit(&app, Plane::Admin, Role::Observe, &request) {
        Ok(rights) => rights,
        Err(refused) => return refused.into_response(),
    };
    if rights.concern_all() {
        return next.run(request).await;
    }
    let detail =
        format!("{} may not see all limits, which the dashboard shows; ask /v1/limits instead", rights.name);
    Refused::from(Problem::forbidden(detail)).into_response()
}

/// What the sender of a request may do; refused if that is not this.
fn permit(app: &App, plane: Plane, role: Role, request: &Request) -> Result<Arc<Rights>, Refused> {
    let door = &app.doors[plane as usize];
    let names = request.extensions().get::<Certificate>().map(|Certificate(names)| &**names);
    let rights = http_rights(door, request.headers(), names).map_err(Problem::stranger)?;
    // Whoever sees what all clients do may also see where one of them stands.
    let may_look = plane == Plane::Admin && role == Role::Decide && rights.may(Role::Observe);
    if rights.may(role) || may_look {
        return Ok(rights);
    }
    let detail = format!("{} may not do this: it needs the role `{}`", rights.name, role.name());
    Err(Problem::forbidden(detail).into())
}

/// A permit is given back by who had it; what a rate counted is an operator's to forget.
fn refuse_to_refund_rates(app: &App, ask: &Ask, rights: Option<&Rights>) -> Result<(), Refused> {
    let limits = app.service.limits();
    let counts_permits =
        limits.limit(ask.limit.as_bytes()).is_none_or(|limit| !limit.spec().policy.algorithm.limits_rate());
    let needed = if counts_permits { Role::Decide } else { Role::Operate };
    if rights.is_some_and(|rights| rights.may(needed)) {
        return Ok(());
    }
    let what = if counts_permits { "giving a permit back" } else { "a refund of what a rate has counted" };
    Err(Problem::forbidden(format!("{what} needs the role `{}`", needed.name())).into())
}

async fn decide(app: &App, endpoint: Endpoint, asks: Asks) -> Result<Response<Body>, Refused> {
    let service = &app.service;
    let takes = endpoint == Endpoint::Acquire;
    // A peek has been answered, whatever the answer is; 429 is for what was turned away.
    let status = if takes { None } else { Some(StatusCode::OK) };
    match asks {
        Asks::One(ask) => {
            let act = if takes { Act::Take } else { Act::Peek };
            let answer = service.decide(question(&ask), act, service.now()).await;
            let answer = answer.map_err(|refusal| Problem::from_refusal(refusal, "#"))?;
            Ok(answer::one(&answer, status))
        }
        Asks::All(all) => {
            let asks: Vec<_> = all.iter().map(question).collect();
            let now = service.now();
            let joint = if takes {
                service.acquire_all(&asks, now).await
            } else {
                service.peek_all(&asks, now).await
            };
            let place = |(at, refusal)| Problem::from_refusal(refusal, &format!("#/all/{at}"));
            Ok(answer::all(&joint.map_err(place)?, status))
        }
    }
}

fn question(ask: &Ask) -> service::Ask<'_> {
    service::Ask { limit: ask.limit.as_bytes(), key: ask.key.as_deref().map(str::as_bytes), cost: ask.cost }
}

/// The body, whatever its declared type: the JSON in it is checked, and `curl -d` declares a form.
pub(super) async fn body(request: Request) -> Result<Bytes, Refused> {
    let too_large = || {
        let detail = format!("the body is longer than {MAX_BODY} bytes; ask for fewer limits at once");
        Refused::from(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail))
    };
    // Before the body is asked for: a client that waits for `100 Continue` never sends it.
    if request.body().size_hint().lower() > MAX_BODY as u64 {
        return Err(too_large());
    }
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    match tokio::time::timeout(BODY_TIME, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(e)) if e.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(e)) => Err(Problem::bad_json(format!("the body could not be read: {e}")).into()),
        Err(_) => {
            let detail = format!("the body did not arrive within {} seconds", BODY_TIME.as_secs());
            Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "Body too slow", detail).into())
        }
    }
}

/// Reads the rest of a request that is refused all the same, if it comes soon: some clients of HTTP/2 drop an answer that overtakes
/// what they still send.
pub(crate) async fn drain<B>(body: B)
where
    B: hyper::body::Body + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let rest = Limited::new(body, MAX_BODY).collect();
    // Whether it came does not matter any more.
    let _ = tokio::time::timeout(DRAIN_TIME, rest).await;
}

pub(super) fn text(text: String, kind: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

fn not_found(plane: Plane, path: &str) -> Response<Body> {
    let other = match plane {
        Plane::Data => (Plane::Admin, "the control plane's listener (--admin)"),
        Plane::Admin => (Plane::Data, "the data plane's listener (--http)"),
    };
    let detail = if ROUTES.iter().any(|route| route.path == path && route.is_on(other.0)) {
        format!("{path} is served on {}", other.1)
    } else {
        let here = ROUTES.iter().filter(|route| route.is_on(plane));
        let paths: Vec<_> = here.map(|route| format!("{} {}", route.method, route.path)).collect();
        format!("there is no such path; the paths are: {}", paths.join(", "))
    };
    Problem::new(StatusCode::NOT_FOUND, "No such path", detail).into_response()
}

async fn wrong_method(State(app): State<Arc<App>>, request: Request) -> Response<Body> {
    let path = request.uri().path();
    let allowed = ROUTES.iter().find(|route| route.path == path).map_or("GET", |route| route.method);
    let detail = format!("{} is not for {path}; use {allowed}", shown(request.method().as_str()));
    app.metrics.http_request("other", 405, tidegate_core::Nanos::ZERO);
    let mut response = Problem::new(StatusCode::METHOD_NOT_ALLOWED, "Wrong method", detail).into_response();
    response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}

/// The beginning of a text that a client may have made up.
fn shown(text: &str) -> &str {
    match text.char_indices().nth(64) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for() {
        // Time stands still until nothing else is left to do, and then jumps to the next deadline.
        let never = Body::new(http_body_util::StreamBody::new(Silence));
        let refused = body(Request::new(never)).await.unwrap_err();
        assert_eq!(refused.into_response().status(), StatusCode::REQUEST_TIMEOUT);
    }

    /// A client that sends nothing and does not leave.
    struct Silence;

    impl futures_core::Stream for Silence {
        type Item = Result<hyper::body::Frame<Bytes>, std::io::Error>;

        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            _context: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            std::task::Poll::Pending
        }
    }
}
