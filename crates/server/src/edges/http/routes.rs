//! The handlers of the paths.

use std::{pin::pin, sync::Arc};

use axum::{
    Router,
    body::{Body, HttpBody as _},
    extract::State,
    http::{HeaderValue, Method, Request, Response, StatusCode, header},
    middleware::from_fn_with_state,
};
use futures_util::future::BoxFuture;
use hyper::{body::Incoming, service::Service as _};
use hyper_util::service::TowerToHyperService;
use serde_json::json;
use tidegate_listen::{connections::Responses, drain::drain};
use tidegate_service::{
    decide::{
        service::{self, Act, Readiness, Refusal, health_name},
        throttle::{ThrottleError, ThrottleQuota, throttlecrab_reply},
    },
    rules::MAX_KEY_BYTES,
};

use super::{
    answer::{self, text},
    app::App,
    ask::{self, Ask, Asks, Question},
    body::body,
    descriptors,
    permit::{Caller, permit, permit_page, refuse_foreign_pages, refuse_to_refund_rates, shown},
    problem::{Answered, Problem},
    reserve,
    table::{Endpoint, FoundRoute, Plane, ROUTES, Route, find},
    wait,
};

/// The paths of operators and their tools.
pub(crate) trait ControlPaths: Send + Sync {
    /// The response to a request that the caller may make.
    fn answer<'c>(
        &'c self,
        caller: &'c Caller<'c>,
        endpoint: Endpoint,
        request: Request<Incoming>,
    ) -> BoxFuture<'c, Answered>;
}

/// The paths of a listener.
///
/// The paths of the table are found and called without axum's router, which would add an eighth to
/// the instructions of a request. The router has the pages.
pub(crate) struct Paths {
    app: Arc<App>,
    plane: Plane,
    control: Arc<dyn ControlPaths>,
    pages: TowerToHyperService<Router>,
}

impl Paths {
    /// Whether the server stops soon, so that clients should connect elsewhere.
    pub fn is_stopping(&self) -> bool {
        self.app.service.is_stopping()
    }

    /// Waits until the server stops soon, for connections from before.
    pub fn stops(&self) -> impl Future<Output = ()> + use<> {
        self.app.service.stops()
    }

    /// Whether a path here has a bound for each client.
    pub fn count_clients(&self) -> bool {
        self.plane == Plane::Admin
    }

    /// The control plane also has these pages, for clients that may see every limit.
    pub fn new(
        app: Arc<App>,
        plane: Plane,
        control: Arc<dyn ControlPaths>,
        pages: Router<Arc<App>>,
    ) -> Self {
        let mut router = Router::new();
        if plane == Plane::Admin {
            router = pages.route_layer(from_fn_with_state(Arc::clone(&app), permit_page));
        }
        let not_found = move |State(app): State<Arc<App>>, request: Request<Body>| async move {
            app.stats.refused(404);
            not_found(&app, plane, request.uri().path())
        };
        let wrong_method = async |State(app): State<Arc<App>>, request: Request<Body>| {
            wrong_method(&app, request.method(), request.uri().path(), "GET")
        };
        router = router
            .fallback(not_found)
            .method_not_allowed_fallback(wrong_method);
        let pages = TowerToHyperService::new(router.with_state(Arc::clone(&app)));
        Self {
            app,
            plane,
            control,
            pages,
        }
    }

    /// The response to a request.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
        responses: &Responses,
    ) -> Response<Body> {
        let (method, path) = (request.method(), request.uri().path());
        match find(self.plane, method, path).or_else(|| self.find_metrics(method, path)) {
            Some(FoundRoute::Route(route)) if request.method() == Method::HEAD => {
                without_body(self.answer_route(route, request, responses).await)
            }
            Some(FoundRoute::Route(route)) => self.answer_route(route, request, responses).await,
            Some(FoundRoute::OtherMethod(allowed)) => {
                wrong_method(&self.app, request.method(), request.uri().path(), allowed)
            }
            None => match Box::pin(self.pages.call(request.map(Body::new))).await {
                Ok(response) => response,
                Err(never) => match never {},
            },
        }
    }

    /// The metrics at their other path.
    fn find_metrics(&self, method: &Method, path: &str) -> Option<FoundRoute> {
        let is_it = self.plane == Plane::Admin && self.app.metrics_path.as_deref() == Some(path);
        is_it
            .then(|| find(self.plane, method, "/metrics"))
            .flatten()
    }

    async fn answer_route(
        &self,
        route: &'static Route,
        request: Request<Incoming>,
        responses: &Responses,
    ) -> Response<Body> {
        let (app, &Route { method, path, .. }) = (&*self.app, route);
        let started = app.service.now();
        let admits_errors = match route.endpoint {
            Endpoint::Check if ask::admits_errors(&request) => Some(StatusCode::NO_CONTENT),
            // Envoy admits with a 200 only.
            Endpoint::CheckPath if ask::admits_errors(&request) => Some(StatusCode::OK),
            _ => None,
        };
        let traced = app
            .telemetry
            .as_deref()
            .map(|telemetry| telemetry.http_request(path, &request));
        // Pinned here, or this future would have room for it in each of the two branches.
        let answer = pin!(async {
            let answer = self.run(route, request, responses).await;
            let response = answer.unwrap_or_else(|refused| match admits_errors {
                Some(status) => app.without_decision(&refused, status),
                None => refused.into_response(),
            });
            tracing::debug!(
                method,
                path,
                status = response.status().as_u16(),
                "answered"
            );
            response
        });
        let response = match &traced {
            None => answer.await,
            Some(traced) => traced.within(answer).await,
        };
        let took = app.service.now().saturating_since(started);
        if let Some(traced) = traced {
            traced.answered(response.status(), took);
        }
        app.stats.answered(route, response.status().as_u16(), took);
        response
    }

    /// Calls the handler of a path. The futures of rare ones are boxed: hyper moves this future for
    /// each request, and it would have room for the largest of them.
    async fn run(
        &self,
        route: &Route,
        request: Request<Incoming>,
        responses: &Responses,
    ) -> Answered {
        let (app, plane) = (&*self.app, self.plane);
        refuse_foreign_pages(app, plane, route.makes_decisions(), &request)?;
        let is_open = app.open_metrics && route.endpoint == Endpoint::Metrics;
        let rights = match route.needs().filter(|_| !is_open) {
            None => None,
            Some(role) => match permit(app, plane, role, route.needs_instead(plane), &request) {
                Ok(rights) => Some(rights),
                Err(refused) => {
                    Box::pin(drain(request.into_body())).await;
                    return Err(refused);
                }
            },
        };
        let (caller, endpoint) = (Caller { app, rights }, route.endpoint);
        match endpoint {
            Endpoint::Health => Ok(answer::json(&json!({"status": "ok"}))),
            Endpoint::Ready => ready(app),
            Endpoint::HealthCheck => {
                ready(app)?;
                Ok(text("OK".to_owned(), "text/plain; charset=utf-8"))
            }
            Endpoint::Check | Endpoint::CheckPath => check(&caller, &request).await,
            Endpoint::Json => {
                let body = body(request).await?;
                Box::pin(descriptors::decide(&caller, &body)).await
            }
            Endpoint::Throttle => {
                caller.permit_throttle()?;
                let body = body(request).await?;
                let asked = ask::read::<ask::Throttle<'_>>(&body)?;
                Box::pin(throttle(app, asked)).await
            }
            Endpoint::OpenApi => Ok(text(
                include_str!("openapi.json").to_owned(),
                "application/json",
            )),
            Endpoint::Acquire | Endpoint::Peek => {
                let body = body(request).await?;
                let question = ask::asks(&body)?;
                match &question.asks {
                    Asks::One(ask) => caller.permit(&ask.limit)?,
                    Asks::All(all) | Asks::Any(all) => caller.permit_each(all)?,
                }
                decide(app, endpoint, question, responses).await
            }
            Endpoint::Reserve | Endpoint::Extend | Endpoint::Settle | Endpoint::Cancel => {
                let body = body(request).await?;
                Box::pin(reserve::run(&caller, endpoint, &body, responses)).await
            }
            Endpoint::Charge | Endpoint::Refund => {
                let body = body(request).await?;
                let ask = ask::read::<Ask<'_>>(&body)?;
                caller.permit(&ask.limit)?;
                let act = if endpoint == Endpoint::Charge {
                    Act::Charge
                } else {
                    Act::Refund
                };
                if act == Act::Refund {
                    refuse_to_refund_rates(&caller, &ask)?;
                }
                let answer = app
                    .service
                    .decide(ask.question(), act, app.service.now())
                    .await?;
                if let (Act::Refund, Some(rights)) = (act, &caller.rights) {
                    app.service
                        .record_refund(&rights.name, &answer.limit, &answer.key, ask.cost);
                }
                Ok(app.one(&answer, Some(StatusCode::OK)))
            }
            _ => self.control.answer(&caller, endpoint, request).await,
        }
    }
}

/// The response to a HEAD request, which says how long the body would have been.
fn without_body(mut response: Response<Body>) -> Response<Body> {
    if let Some(length) = response.body().size_hint().exact() {
        response
            .headers_mut()
            .insert(header::CONTENT_LENGTH, length.into());
    }
    response.map(|_| Body::empty())
}

/// Decides for a proxy.
async fn check(caller: &Caller<'_>, request: &Request<Incoming>) -> Answered {
    let (app, ask) = (caller.app, ask::in_head(request)?);
    caller.permit(&String::from_utf8_lossy(&ask.limit))?;
    let asked = service::Ask {
        limit: &ask.limit,
        key: ask.key.as_deref(),
        cost: ask.cost,
    };
    let answer = app
        .service
        .decide(asked, Act::Take, app.service.now())
        .await?;
    // A proxy wants only the head: nginx closes a connection on which a body is left.
    let mut response = app.one(&answer, None);
    response.headers_mut().remove(header::CONTENT_TYPE);
    *response.body_mut() = Body::empty();
    if response.status() == StatusCode::TOO_MANY_REQUESTS {
        *response.status_mut() = ask.denied;
    }
    Ok(response)
}

/// Whether the server accepts requests. A store that is down does not make it unready as long as
/// every limit can decide without the store: the other servers use the same store.
fn ready(app: &App) -> Answered {
    let unavailable =
        |title, detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, title, detail);
    match app.service.readiness() {
        Readiness::Stopping => Err(unavailable(
            "Stopping",
            "the server is stopping; use another server".to_owned(),
        )),
        Readiness::Ready => Ok(answer::json(&json!({"status": "ready"}))),
        Readiness::Degraded { health, why } => {
            let store = health_name(health);
            Ok(answer::json(
                &json!({"status": "degraded", "store": store, "detail": why}),
            ))
        }
        Readiness::NoRules => {
            let detail = "there is no rule for Envoy yet (--envoy-await-rules)".to_owned();
            Err(unavailable("No rules", detail))
        }
        Readiness::Closed { limit, why } => {
            let detail = format!(
                "the shared store is down, and limit `{limit}` denies everything until it is up again (on_error: closed): {why}"
            );
            Err(unavailable("Store down", detail))
        }
    }
}

async fn decide(
    app: &App,
    endpoint: Endpoint,
    question: Question<'_>,
    responses: &Responses,
) -> Answered {
    let service = &app.service;
    let takes = endpoint == Endpoint::Acquire;
    let Question {
        asks,
        id,
        wait,
        up_to,
    } = question;
    if let Some(wait) = wait {
        if !takes {
            return Err(Problem::at(
                "#/wait",
                "a peek takes nothing, so it waits for nothing",
            ));
        }
        if up_to {
            return Err(Problem::at(
                "#/wait",
                "a request with `at_most` takes what is there, so it does not wait",
            ));
        }
        if id.is_some() {
            return Err(Problem::from_refusal(Refusal::WaitOnce, "#"));
        }
        return Box::pin(wait::acquire(app, asks, wait, responses)).await;
    }
    if let Some(id) = id {
        if !takes {
            return Err(Problem::at(
                "#/id",
                "a peek takes nothing, so it needs no id",
            ));
        }
        return Box::pin(decide_once(app, asks, id.as_bytes())).await;
    }
    // A peek succeeds also when it denies; 429 is only for denied requests.
    let status = if takes { None } else { Some(StatusCode::OK) };
    match asks {
        Asks::One(_) if up_to && !takes => {
            let detail = "a peek takes nothing; `remaining` of its answer is available";
            Err(Problem::at("#/at_most", detail))
        }
        Asks::One(ask) if up_to => {
            let asked = Box::pin(service.take_up_to(ask.question(), service.now()));
            let (taken, answer) = asked.await?;
            Ok(app.for_vendor(std::slice::from_ref(&answer), answer::up_to(&answer, taken)))
        }
        Asks::One(ask) => {
            let act = if takes { Act::Take } else { Act::Peek };
            let answer = service.decide(ask.question(), act, service.now()).await?;
            Ok(app.one(&answer, status))
        }
        Asks::All(all) => {
            let asks: Vec<_> = all.iter().map(Ask::question).collect();
            let now = service.now();
            let joint = if takes {
                Box::pin(service.acquire_all(&asks, now)).await
            } else {
                Box::pin(service.peek_all(&asks, now)).await
            };
            let joint = joint.map_err(Problem::from_part)?;
            Ok(app.for_vendor(&joint.answers, answer::all(&joint, status)))
        }
        Asks::Any(any) => {
            let asks: Vec<_> = any.iter().map(Ask::question).collect();
            let now = service.now();
            let joint = if takes {
                Box::pin(service.acquire_any(&asks, now)).await
            } else {
                Box::pin(service.peek_any(&asks, now)).await
            };
            let joint = joint.map_err(Problem::from_any)?;
            Ok(app.for_vendor(&joint.answers, answer::all(&joint, status)))
        }
    }
}

/// Decides by the bucket in a body, and answers as throttlecrab's server does: 200 also for a
/// denial.
async fn throttle(app: &App, asked: ask::Throttle<'_>) -> Answered {
    let ask::Throttle {
        key,
        max_burst,
        count_per_period,
        period,
        quantity,
    } = asked;
    if key.len() > MAX_KEY_BYTES {
        return Err(Refusal::KeyTooLong { bytes: key.len() }.into());
    }
    let invalid = |error: ThrottleError| Problem::at("#", error.detail());
    let quota = ThrottleQuota::with_burst(max_burst, count_per_period, period).map_err(invalid)?;
    let (service, quantity) = (&app.service, quantity.unwrap_or(1));
    let asked = service.throttle_in_store(key.as_bytes(), quota, quantity, service.now());
    let decision = asked.await.map_err(invalid)?;
    let [allowed, limit, remaining, reset_after, retry_after] = throttlecrab_reply(&decision);
    Ok(answer::json(&json!({
        "allowed": allowed == 1,
        "limit": limit,
        "remaining": remaining,
        "reset_after": reset_after,
        "retry_after": retry_after,
    })))
}

/// Decides once for an id.
async fn decide_once(app: &App, asks: Asks<'_>, id: &[u8]) -> Answered {
    let (service, now) = (&app.service, app.service.now());
    match asks {
        Asks::One(ask) => {
            let joint = service.acquire_all_once(id, &[ask.question()], now).await;
            let joint = joint.map_err(|(_, refusal)| refusal)?;
            Ok(app.one(&joint.into_bound(), None))
        }
        Asks::All(all) | Asks::Any(all) => {
            let asks: Vec<_> = all.iter().map(Ask::question).collect();
            let joint = service.acquire_all_once(id, &asks, now).await;
            let joint = joint.map_err(Problem::from_part)?;
            Ok(app.for_vendor(&joint.answers, answer::all(&joint, None)))
        }
    }
}

fn not_found(app: &App, plane: Plane, path: &str) -> Response<Body> {
    let other = match plane {
        Plane::Data => (Plane::Admin, "the control plane's listener (--admin)"),
        Plane::Admin => (Plane::Data, "the data plane's listener (--http)"),
    };
    let detail = if ROUTES
        .iter()
        .any(|route| route.path == path && route.is_on(other.0))
    {
        format!("{path} is served on {}", other.1)
    } else if plane == Plane::Data && path == "/" {
        let dashboard = match &app.dashboard {
            Some(address) => format!("the dashboard is at {address} (--admin)"),
            None => "this server has no dashboard: its control plane is off (--admin)".to_owned(),
        };
        format!("this is the API for programs, described at /openapi.json; {dashboard}")
    } else {
        let here = ROUTES.iter().filter(|route| route.is_on(plane));
        let paths: Vec<_> = here
            .map(|route| format!("{} {}", route.method, route.path))
            .collect();
        format!(
            "this path does not exist; the paths are: {}",
            paths.join(", ")
        )
    };
    Problem::new(StatusCode::NOT_FOUND, "No such path", detail).into_response()
}

fn wrong_method(app: &App, method: &Method, path: &str, allowed: &'static str) -> Response<Body> {
    let detail = format!(
        "{} is not for {path}; use {allowed}",
        shown(method.as_str())
    );
    app.stats.refused(405);
    let mut response =
        Problem::new(StatusCode::METHOD_NOT_ALLOWED, "Wrong method", detail).into_response();
    response
        .headers_mut()
        .insert(header::ALLOW, HeaderValue::from_static(allowed));
    response
}
