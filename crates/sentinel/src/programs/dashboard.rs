//! Heartbeats, as Sentinel's programs send them to their dashboard.

use std::{
    convert::Infallible,
    net::IpAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_listen::{
    access::{Door, Role, Shown},
    connections::{Accepted, Acceptor},
    pages::is_from_a_browser,
};
use tidegate_service::{decide::service::Service, observe::once_a_minute::OnceAMinute};
use tokio::time::timeout;

use super::{Heartbeat, HeartbeatError, Programs};
use crate::stats::DashboardStats;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(10);
const BUFFER: usize = 16 * 1024;
/// The longest heartbeat.
const MAX_BODY: usize = 4 * 1024;

/// Takes heartbeats.
pub struct Dashboard {
    pub programs: Arc<Programs>,
    /// Determines the rights of programs, by their addresses.
    pub door: Door,
    pub service: Arc<Service>,
    /// For the log line about a refused heartbeat.
    pub refused: OnceAMinute,
    pub stats: Arc<DashboardStats>,
}

/// Serves until the acceptor stops, and then until each heartbeat under way is answered.
pub async fn serve(connections: Acceptor, dashboard: Dashboard) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .keep_alive(false)
        .max_buf_size(BUFFER);
    let dashboard = Arc::new(dashboard);
    let serve = |Accepted {
                     io, calls, peer, ..
                 }| {
        let (http, dashboard) = (http.clone(), Arc::clone(&dashboard));
        async move {
            let its = Arc::clone(&calls);
            let answer = service_fn(move |request| {
                let (dashboard, call) = (Arc::clone(&dashboard), its.begin());
                async move {
                    let answer = dashboard.answer(request, peer.ip()).await;
                    drop(call);
                    Ok::<_, Infallible>(answer)
                }
            });
            tokio::select! {
                served = timeout(PATIENCE, http.serve_connection(TokioIo::new(io), answer)) => {
                    if let Ok(Err(error)) = served {
                        tracing::debug!(%peer, %error, "connection ended");
                    }
                }
                () = calls.slot.must_give_way() => tracing::debug!(%peer, "idle connection closed for a new one"),
            }
        }
    };
    connections.serve(serve).await;
}

impl Dashboard {
    async fn answer(&self, request: Request<Incoming>, from: IpAddr) -> Response<Full<Bytes>> {
        let taken = self.take(request, from).await;
        self.stats.heartbeats[usize::from(taken.is_err())].fetch_add(1, Ordering::Relaxed);
        let (status, text) = match taken {
            Ok(()) => (StatusCode::OK, "success".to_owned()),
            Err((status, why)) => {
                if self.refused.is_due(self.service.now()) {
                    tracing::warn!(%from, %why, "a heartbeat was refused; at most one line a minute");
                }
                (status, why)
            }
        };
        let mut answer = Response::new(Full::new(Bytes::from(text)));
        *answer.status_mut() = status;
        answer
    }

    async fn take(
        &self,
        request: Request<Incoming>,
        from: IpAddr,
    ) -> Result<(), (StatusCode, String)> {
        let rights = self
            .door
            .rights(Shown::Address(from))
            .ok()
            .filter(|rights| rights.may(Role::Report));
        let Some(rights) = rights else {
            let why = format!("no client with the role report has the address {from}");
            return Err((StatusCode::FORBIDDEN, why));
        };
        if request.uri().path() != "/registry/machine"
            || ![Method::GET, Method::POST].contains(request.method())
        {
            return Err((
                StatusCode::NOT_FOUND,
                "there is only /registry/machine".to_owned(),
            ));
        }
        if is_from_a_browser(request.headers()) {
            let why = "a browser's page sent it; programs send heartbeats".to_owned();
            return Err((StatusCode::FORBIDDEN, why));
        }
        let (head, body) = request.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await;
        let body = body
            .map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?
            .to_bytes();
        let fields = |text: &[u8]| {
            url::form_urlencoded::parse(text)
                .into_owned()
                .collect::<Vec<_>>()
        };
        let (query, body) = (
            fields(head.uri.query().unwrap_or_default().as_bytes()),
            fields(&body),
        );
        let refused = |error: HeartbeatError| {
            let status = match error {
                HeartbeatError::Field(_) => StatusCode::BAD_REQUEST,
                HeartbeatError::Foreign { .. } => StatusCode::FORBIDDEN,
                HeartbeatError::TooMany => StatusCode::SERVICE_UNAVAILABLE,
            };
            (status, error.to_string())
        };
        let heartbeat = Heartbeat::read(query.into_iter().chain(body)).map_err(refused)?;
        if !rights.concern(heartbeat.app.as_bytes()) {
            let why = format!(
                "{} may not use the application `{}`",
                rights.name, heartbeat.app
            );
            return Err((StatusCode::FORBIDDEN, why));
        }
        self.programs.heard(heartbeat, from).map_err(refused)
    }
}
