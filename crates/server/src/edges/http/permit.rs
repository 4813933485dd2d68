//! Decides which requests may be served, by the client's rights and by the origin of the web page
//! that sends them.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header},
    middleware::Next,
};
use tidegate_listen::{
    access::{Rights, Role},
    credentials::{Certificate, http_rights},
};
use tidegate_service::{decide::service::refuse_unknown, rules::THROTTLE};

use super::{
    app::App,
    ask::Ask,
    hosts::{Hosts, host_of},
    problem::Problem,
    table::Plane,
};

/// A browser sends requests for any page that it shows, even to servers that only this machine can
/// reach. It includes the page's origin, and only origins that the operator configured are allowed.
/// The Host field proves nothing: an attacker's domain name that resolves to this machine appears
/// there unchanged.
///
/// For an image or a frame a browser sends no origin, but Sec-Fetch-Site. A proxy may pass that on
/// from its own client, so it is ignored next to a field that only proxies add.
pub(super) fn refuse_foreign_pages<B>(
    app: &App,
    plane: Plane,
    takes: bool,
    request: &Request<B>,
) -> Result<(), Problem> {
    let headers = request.headers();
    let named = |origin: &HeaderValue| {
        app.origins
            .iter()
            .any(|named| named.as_bytes() == origin.as_bytes())
    };
    // Only the control plane has its own pages.
    let is_own =
        |origin: &HeaderValue| plane == Plane::Admin && is_own_page(&app.hosts, origin, request);
    let is_let_in = |origin: &HeaderValue| named(origin) || is_own(origin);
    let mut origins = headers.get_all(header::ORIGIN).iter().peekable();
    let is_foreign = if origins.peek().is_some() {
        !origins.all(is_let_in)
    } else {
        takes && is_from_another_site(headers)
    };
    if !is_foreign {
        return Ok(());
    }
    let detail = "the origin of this web page is not allowed: allow it with --http-origin, or send the request from a program without \
                  the fields Origin and Sec-Fetch-Site";
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "Foreign origin",
        detail,
    ))
}

/// Whether a browser sent this request for a page of another site.
fn is_from_another_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site");
    let is_foreign = site.is_some_and(|site| site != "same-origin" && site != "none");
    let by_proxies = [
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-uri",
        "x-original-uri",
        "x-real-ip",
    ];
    is_foreign && !by_proxies.iter().any(|name| headers.contains_key(*name))
}

/// Whether this server served the page: the page's origin is the host of this request. A domain
/// name could resolve to anything, so it must be a known one.
fn is_own_page<B>(hosts: &Hosts, origin: &HeaderValue, request: &Request<B>) -> bool {
    let Some(host) = host_of(request) else {
        return false;
    };
    let origin = origin.to_str().unwrap_or_default();
    let from = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    hosts.know(host) && from == Some(host)
}

/// Without credentials, only the host in a request keeps foreign pages out of the control plane:
/// see [`Hosts`].
fn refuse_unknown_hosts<B>(app: &App, plane: Plane, request: &Request<B>) -> Result<(), Problem> {
    let is_open = plane == Plane::Admin && !app.doors[plane as usize].access.asks_for_something();
    match host_of(request).filter(|host| is_open && !app.hosts.know(host)) {
        None => Ok(()),
        Some(host) => {
            let detail = format!(
                "without credentials the control plane serves only IP addresses and localhost: allow the name `{}` with \
                 --admin-host, or require credentials (--access)",
                shown(host)
            );
            Err(Problem::new(
                StatusCode::MISDIRECTED_REQUEST,
                "Unknown host",
                detail,
            ))
        }
    }
}

/// Who looks at a page. Pages leave out what this client may not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Viewer {
    pub may_operate: bool,
}

impl Viewer {
    /// The viewer of a page, as [`permit_page`] left it.
    pub(crate) fn of<B>(request: &Request<B>) -> Self {
        request.extensions().get().copied().unwrap_or_default()
    }
}

/// Only clients that may see every limit may use the dashboard.
pub(super) async fn permit_page(
    State(app): State<Arc<App>>,
    mut request: Request<Body>,
    next: Next,
) -> Response<Body> {
    let permitted = permit(&app, Plane::Admin, Role::Observe, None, &request).and_then(|rights| {
        let viewer = Viewer {
            may_operate: rights.may(Role::Operate),
        };
        let what = "see all limits, which the dashboard shows; use /v1/limits instead";
        Caller {
            app: &app,
            rights: Some(rights),
        }
        .permit_all(what)
        .map(|()| viewer)
    });
    match permitted {
        Ok(viewer) => {
            request.extensions_mut().insert(viewer);
            next.run(request).await
        }
        Err(refused) => refused.into_response(),
    }
}

/// The client of a request, at the server that it asks.
#[derive(Clone)]
pub(crate) struct Caller<'a> {
    pub app: &'a App,
    /// `None` on a path that needs none.
    pub rights: Option<Arc<Rights>>,
}

impl Caller<'_> {
    /// The client's name for the audit.
    pub fn name(&self) -> &str {
        self.rights.as_ref().map_or("", |rights| &*rights.name)
    }

    /// Whether the client's rights cover the limits, or the application, of this name.
    pub fn concerns(&self, name: &str) -> bool {
        self.rights
            .as_ref()
            .is_none_or(|rights| rights.concern(name.as_bytes()))
    }

    /// Whether they cover every limit.
    pub fn concerns_all(&self) -> bool {
        self.rights
            .as_ref()
            .is_none_or(|rights| rights.concern_all())
    }

    /// Refuses a limit that the client's rights do not cover.
    pub fn permit(&self, limit: &str) -> Result<(), Problem> {
        let Some(rights) = &self.rights else {
            return Ok(());
        };
        if !rights.concern(limit.as_bytes()) {
            let detail = format!("{} may not use the limit `{}`", rights.name, shown(limit));
            return Err(Problem::forbidden(detail));
        }
        Ok(refuse_unknown(
            &self.app.service.limits(),
            limit.as_bytes(),
            &**rights,
        )?)
    }

    /// Refuses a bucket that the request describes, unless the client's rights concern
    /// `CL.THROTTLE`.
    pub(super) fn permit_throttle(&self) -> Result<(), Problem> {
        match &self.rights {
            Some(rights) if !rights.concern(THROTTLE.as_bytes()) => Err(Problem::forbidden(
                format!("{} may not use `{THROTTLE}`", rights.name),
            )),
            _ => Ok(()),
        }
    }

    /// Refuses one of several questions, at its place in the body.
    pub(super) fn permit_each(&self, asks: &[Ask<'_>]) -> Result<(), Problem> {
        asks.iter().enumerate().try_for_each(|(at, ask)| {
            self.permit(&ask.limit)
                .map_err(|problem| problem.under(&format!("#/all/{at}")))
        })
    }

    /// Refuses to do `what`, unless the client's rights cover every limit.
    pub fn permit_all(&self, what: &str) -> Result<(), Problem> {
        if self.concerns_all() {
            return Ok(());
        }
        Err(Problem::forbidden(format!(
            "{} may not {what}",
            self.name()
        )))
    }
}

/// The rights of a client; refused unless they include one of the roles.
pub(super) fn permit<B>(
    app: &App,
    plane: Plane,
    role: Role,
    instead: Option<Role>,
    request: &Request<B>,
) -> Result<Arc<Rights>, Problem> {
    refuse_unknown_hosts(app, plane, request)?;
    let door = &app.doors[plane as usize];
    let names = request
        .extensions()
        .get::<Certificate>()
        .map(|Certificate(names)| &**names);
    let rights = http_rights(door, request.headers(), names).map_err(Problem::stranger)?;
    if rights.may(role) || instead.is_some_and(|instead| rights.may(instead)) {
        return Ok(rights);
    }
    let detail = format!(
        "{} may not do this: it needs the role `{}`",
        rights.name,
        role.name()
    );
    Err(Problem::forbidden(detail))
}

/// A client may give back its permits. Only an operator may refund what a rate has counted.
pub(super) fn refuse_to_refund_rates(caller: &Caller<'_>, ask: &Ask<'_>) -> Result<(), Problem> {
    let limits = caller.app.service.limits();
    let counts_permits = limits
        .limit(ask.limit.as_bytes())
        .is_none_or(|limit| !limit.spec().policy.algorithm.limits_rate());
    let needed = if counts_permits {
        Role::Decide
    } else {
        Role::Operate
    };
    if caller
        .rights
        .as_ref()
        .is_some_and(|rights| rights.may(needed))
    {
        return Ok(());
    }
    let what = if counts_permits {
        "giving a permit back"
    } else {
        "a refund of what a rate has counted"
    };
    Err(Problem::forbidden(format!(
        "{what} needs the role `{}`",
        needed.name()
    )))
}

/// The first characters of a text that a client may have made up.
pub(crate) fn shown(text: &str) -> &str {
    match text.char_indices().nth(64) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
