//! The table of all paths: what each does, and on which listener it is served.

use axum::http::Method;
use tidegate_listen::access::Role;

/// The function of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// Decide on one limit, or on several together, and take the cost.
    Acquire,
    /// Decide without taking.
    Peek,
    /// Take, whether it fits or not.
    Charge,
    /// Take an estimate that is settled after the work.
    Reserve,
    /// Take more for a reservation.
    Extend,
    /// Correct a reservation to what was used.
    Settle,
    /// Return what a reservation took.
    Cancel,
    /// Refund.
    Refund,
    /// Deny a key.
    Block,
    /// End the block of a key.
    Unblock,
    /// Give a key its own quota, or end that.
    Override,
    /// Forget use.
    Reset,
    /// The rules in force.
    Rules,
    /// Operators' actions.
    Audit,
    /// The keys that operators or rules blocked.
    Blocks,
    /// The keys that operators gave a quota.
    Overrides,
    /// Why a key is admitted or denied.
    Explain,
    /// The rules as their file has them.
    RulesFile,
    /// The mistakes in a text, and its differences from the rules file.
    RulesCheck,
    /// Put other rules in the file's place.
    RulesSave,
    /// Load the rules again.
    Reload,
    /// A mark for charts, such as a deployment.
    Mark,
    /// Decide on one limit in the head of a request, for proxies that ask before they forward a
    /// request.
    Check,
    /// [`Check`](Self::Check) with the path of a proxy's client behind it.
    CheckPath,
    /// Decide on descriptors, like envoyproxy/ratelimit.
    Json,
    /// Decide by a bucket in the body, like throttlecrab's server.
    Throttle,
    /// Whether the server accepts requests, in the form of envoyproxy/ratelimit.
    HealthCheck,
    /// The keys with the most requests and the most denials.
    Top,
    /// The keys with the most denials of all limits.
    Denied,
    /// The decisions of a limit in each second.
    History,
    /// Every limit with its rule and its counts.
    Limits,
    /// The servers that share the store.
    Servers,
    /// The resources of programs.
    Flow,
    /// A program's report.
    FlowReport,
    /// Rules for programs.
    FlowRules,
    /// The requests of traced keys.
    Trace,
    /// The decisions of other rules on the traced requests.
    WhatIf,
    /// Whether the process is alive.
    Health,
    /// Whether the server accepts requests.
    Ready,
    /// Metrics for Prometheus.
    Metrics,
    /// The OpenAPI description.
    OpenApi,
}

/// The two HTTP listeners.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plane {
    /// `--http`: for programs that use limits.
    Data,
    /// `--admin`: for operators, their tools and Prometheus.
    Admin,
}

/// Which listeners serve a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Only the data plane.
    OnData,
    /// Only the control plane.
    OnAdmin,
    /// Both.
    OnBoth,
}

/// One path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// GET or POST, or `any`.
    pub method: &'static str,
    /// `{name}` stands for a variable part. `{path}` is last, and may contain slashes.
    pub path: &'static str,
    /// The function that answers.
    pub endpoint: Endpoint,
    /// On which listeners it is served.
    pub served: Served,
}

impl Route {
    /// The role that a client needs. On the control plane, GET reads, and POST changes something or
    /// asks a long question.
    pub fn needs(&self) -> Option<Role> {
        match (self.endpoint, self.served) {
            (Endpoint::Health | Endpoint::HealthCheck | Endpoint::Ready | Endpoint::OpenApi, _) => {
                None
            }
            (Endpoint::FlowReport, _) => Some(Role::Report),
            // It changes nothing: its rules are too long for a query.
            (Endpoint::WhatIf | Endpoint::RulesCheck, _) => Some(Role::Observe),
            (_, Served::OnData | Served::OnBoth) => Some(Role::Decide),
            (_, Served::OnAdmin) if self.method == "GET" => Some(Role::Observe),
            (_, Served::OnAdmin) => Some(Role::Operate),
        }
    }

    /// Whether this path makes decisions.
    pub(crate) fn makes_decisions(&self) -> bool {
        self.needs() == Some(Role::Decide)
    }

    /// Another role that is enough on the control plane: to peek is to observe, and to charge and
    /// refund is to operate.
    pub(super) fn needs_instead(&self, plane: Plane) -> Option<Role> {
        match (plane, self.endpoint) {
            (Plane::Admin, Endpoint::Peek) => Some(Role::Observe),
            (Plane::Admin, Endpoint::Charge | Endpoint::Refund) => Some(Role::Operate),
            _ => None,
        }
    }

    fn has(&self, path: &str) -> bool {
        match self.path.split_once('{') {
            None => path == self.path,
            Some((before, name)) if name.ends_with("/{path}") => path
                .strip_prefix(before)
                .is_some_and(|rest| rest.find('/').is_some_and(|slash| slash > 0)),
            Some((before, _)) => path
                .strip_prefix(before)
                .is_some_and(|rest| !rest.is_empty() && !rest.contains('/')),
        }
    }

    /// Whether this listener serves it.
    pub fn is_on(&self, plane: Plane) -> bool {
        match self.served {
            Served::OnBoth => true,
            Served::OnData => plane == Plane::Data,
            Served::OnAdmin => plane == Plane::Admin,
        }
    }
}

const fn get(path: &'static str, endpoint: Endpoint, served: Served) -> Route {
    Route {
        method: "GET",
        path,
        endpoint,
        served,
    }
}

const fn post(path: &'static str, endpoint: Endpoint, served: Served) -> Route {
    Route {
        method: "POST",
        path,
        endpoint,
        served,
    }
}

/// Stands for every method.
const ANY: &str = "any";

/// All paths of both listeners.
pub const ROUTES: &[Route] = &[
    post("/v1/acquire", Endpoint::Acquire, Served::OnData),
    post("/v1/peek", Endpoint::Peek, Served::OnBoth),
    post("/v1/charge", Endpoint::Charge, Served::OnBoth),
    post("/v1/reserve", Endpoint::Reserve, Served::OnData),
    post("/v1/extend", Endpoint::Extend, Served::OnData),
    post("/v1/settle", Endpoint::Settle, Served::OnData),
    post("/v1/cancel", Endpoint::Cancel, Served::OnData),
    post("/v1/refund", Endpoint::Refund, Served::OnBoth),
    get("/v1/check/{limit}", Endpoint::Check, Served::OnData),
    Route {
        method: ANY,
        path: "/v1/check/{limit}/{path}",
        endpoint: Endpoint::CheckPath,
        served: Served::OnData,
    },
    post("/json", Endpoint::Json, Served::OnData),
    post("/throttle", Endpoint::Throttle, Served::OnData),
    get("/healthcheck", Endpoint::HealthCheck, Served::OnBoth),
    get("/healthz", Endpoint::Health, Served::OnBoth),
    get("/readyz", Endpoint::Ready, Served::OnBoth),
    get("/openapi.json", Endpoint::OpenApi, Served::OnBoth),
    post("/v1/block", Endpoint::Block, Served::OnAdmin),
    post("/v1/unblock", Endpoint::Unblock, Served::OnAdmin),
    post("/v1/override", Endpoint::Override, Served::OnAdmin),
    post("/v1/reset", Endpoint::Reset, Served::OnAdmin),
    get("/v1/rules", Endpoint::Rules, Served::OnAdmin),
    get("/v1/audit", Endpoint::Audit, Served::OnAdmin),
    get("/v1/blocks", Endpoint::Blocks, Served::OnAdmin),
    get("/v1/overrides", Endpoint::Overrides, Served::OnAdmin),
    get("/v1/explain", Endpoint::Explain, Served::OnAdmin),
    get("/v1/rules/file", Endpoint::RulesFile, Served::OnAdmin),
    post("/v1/rules/check", Endpoint::RulesCheck, Served::OnAdmin),
    post("/v1/rules/save", Endpoint::RulesSave, Served::OnAdmin),
    post("/v1/reload", Endpoint::Reload, Served::OnAdmin),
    post("/v1/mark", Endpoint::Mark, Served::OnAdmin),
    get("/metrics", Endpoint::Metrics, Served::OnAdmin),
    get("/v1/limits", Endpoint::Limits, Served::OnAdmin),
    get("/v1/servers", Endpoint::Servers, Served::OnAdmin),
    get("/v1/top", Endpoint::Top, Served::OnAdmin),
    get("/v1/denied", Endpoint::Denied, Served::OnAdmin),
    get("/v1/history", Endpoint::History, Served::OnAdmin),
    get("/v1/flow", Endpoint::Flow, Served::OnAdmin),
    post("/v1/flow/report", Endpoint::FlowReport, Served::OnAdmin),
    post("/v1/flow/rules", Endpoint::FlowRules, Served::OnAdmin),
    get("/v1/trace", Endpoint::Trace, Served::OnAdmin),
    post("/v1/what-if", Endpoint::WhatIf, Served::OnAdmin),
];

/// The result of a look-up in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundRoute {
    Route(&'static Route),
    /// The path is there for this other method.
    OtherMethod(&'static str),
}

/// The route of a path; `None` if the listener does not serve it. A path for GET also answers HEAD.
pub(super) fn find(plane: Plane, method: &Method, path: &str) -> Option<FoundRoute> {
    let method = if method == Method::HEAD {
        "GET"
    } else {
        method.as_str()
    };
    let mut allowed = None;
    for route in ROUTES
        .iter()
        .filter(|route| route.has(path) && route.is_on(plane))
    {
        if [method, ANY].contains(&route.method) {
            return Some(FoundRoute::Route(route));
        }
        allowed = Some(FoundRoute::OtherMethod(route.method));
    }
    allowed
}
