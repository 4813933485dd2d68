//! Which requests may be served: by the sender's rights, and by the web page that sends them.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, HeaderValue, Response, StatusCode, header},
    middleware::Next,
};

use super::{
    app::App,
    ask::Ask,
    credentials::http_rights,
    problem::{Problem, Refused},
    serve::Certificate,
    table::Plane,
};
use crate::access::{Rights, Role};

/// A browser sends on behalf of any page that it shows, also to servers that only this machine can reach. It tells the
/// page's origin, and only origins that the operator named are let through. The Host field proves nothing: a page whose
/// name is made to lead to this machine has its own name there.
pub(super) fn refuse_foreign_pages(app: &App, plane: Plane, headers: &HeaderMap) -> Result<(), Refused> {
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
pub(super) async fn permit_page(State(app): State<Arc<App>>, request: Request, next: Next) -> Response<Body> {
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
pub(super) fn permit(app: &App, plane: Plane, role: Role, request: &Request) -> Result<Arc<Rights>, Refused> {
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
pub(super) fn refuse_to_refund_rates(app: &App, ask: &Ask, rights: Option<&Rights>) -> Result<(), Refused> {
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
