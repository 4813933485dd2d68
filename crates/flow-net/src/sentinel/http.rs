//! HTTP: requests for commands, and heartbeats.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use form_urlencoded::Serializer;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Request, Response, StatusCode, Uri,
    body::{Bytes, Incoming},
    header,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, oneshot},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Program, VERSION,
    command::{self, Parameters},
};
use crate::host;

/// How long a request, or a heartbeat, may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest body of a request.
const MAX_BODY: usize = 1 << 20;
/// Requests at the same time. Others wait.
const MAX_CONNECTIONS: usize = 32;
/// How often a heartbeat is sent, and how soon it is repeated while the dashboard does not answer.
const EVERY: Duration = Duration::from_secs(10);

/// Answers commands and sends heartbeats until `stopped`.
pub(super) async fn run(
    program: Arc<Program>,
    listener: TcpListener,
    stopped: oneshot::Receiver<()>,
) {
    for dashboard in program.api.dashboards.clone() {
        tokio::spawn(beat(Arc::clone(&program), dashboard));
    }
    let accept = async {
        let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&room).acquire_owned().await else {
                return;
            };
            let Ok((stream, _)) = listener.accept().await else {
                // No free descriptor, for instance.
                sleep(Duration::from_millis(100)).await;
                continue;
            };
            let program = Arc::clone(&program);
            tokio::spawn(async move {
                let service = service_fn(move |request| answer(Arc::clone(&program), request));
                let mut http = hyper::server::conn::http1::Builder::new();
                http.timer(TokioTimer::new())
                    .header_read_timeout(PATIENCE)
                    .keep_alive(false);
                // The client learns of an error by the end of the connection.
                let _ = timeout(
                    2 * PATIENCE,
                    http.serve_connection(TokioIo::new(stream), service),
                )
                .await;
                drop(place);
            });
        }
    };
    tokio::select! {
        () = accept => {}
        // An error is the sender's drop, which is the same.
        _ = stopped => {}
    }
}

async fn answer(
    program: Arc<Program>,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let done = async {
        if is_from_a_page(&request) {
            return Err((StatusCode::FORBIDDEN, "not from a web page".to_owned()));
        }
        let (head, body) = request.into_parts();
        let body = Limited::new(body, MAX_BODY).collect().await;
        let body = body
            .map_err(|error| (StatusCode::PAYLOAD_TOO_LARGE, error.to_string()))?
            .to_bytes();
        let mut parameters: Parameters = pairs(head.uri.query().unwrap_or_default().as_bytes());
        parameters.extend(pairs(&body));
        let name = head.uri.path().trim_matches('/');
        command::run(&program, name, &parameters)
            .map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))
    };
    let (status, text) = match done.await {
        Ok(text) => (StatusCode::OK, text),
        Err(refused) => refused,
    };
    let answer = Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "text/plain; charset=utf-8");
    answer
        .body(Full::new(text.into()))
        .map_err(io::Error::other)
}

fn pairs(text: &[u8]) -> Parameters {
    form_urlencoded::parse(text).into_owned().collect()
}

/// Whether a browser sent the request for a page: a page may name any address of this machine, or
/// have its own name lead to it.
fn is_from_a_page(request: &Request<Incoming>) -> bool {
    let host = request
        .headers()
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let host: Option<Uri> = host.and_then(|host| host.parse().ok());
    let host = host
        .as_ref()
        .and_then(Uri::host)
        .unwrap_or_default()
        .trim_matches(['[', ']']);
    request.headers().contains_key(header::ORIGIN)
        || host != "localhost" && host.parse::<std::net::IpAddr>().is_err()
}

/// Sends heartbeats to one dashboard.
async fn beat(program: Arc<Program>, dashboard: String) {
    let mut has_failed = false;
    loop {
        let sent = timeout(PATIENCE, heartbeat(&program, &dashboard)).await;
        let sent = sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match &sent {
            Err(error) if !has_failed => {
                tracing::warn!(dashboard, %error, "a heartbeat was not accepted");
            }
            Ok(()) if has_failed => tracing::info!(dashboard, "heartbeats are accepted again"),
            _ => {}
        }
        has_failed = sent.is_err();
        sleep(EVERY).await;
    }
}

async fn heartbeat(program: &Program, dashboard: &str) -> io::Result<()> {
    let stream = TcpStream::connect(dashboard).await?;
    let own = stream.local_addr()?;
    let body = message(program, own);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    let request = Request::post("/registry/machine")
        .header(header::HOST, dashboard)
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(Full::new(Bytes::from(body)))
        .map_err(io::Error::other)?;
    // It ends with this heartbeat, also with one that is late.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let status = sender
        .send_request(request)
        .await
        .map_err(io::Error::other)?
        .status();
    if status.is_success() {
        Ok(())
    } else {
        Err(io::Error::other(format!("the answer is {status}")))
    }
}

fn message(program: &Program, own: SocketAddr) -> String {
    let ip = if program.address.ip().is_unspecified() {
        own.ip()
    } else {
        program.address.ip()
    };
    let ip = program
        .api
        .advertised
        .clone()
        .unwrap_or_else(|| ip.to_string());
    Serializer::new(String::new())
        .append_pair("hostname", &host::name())
        .append_pair("ip", &ip)
        .append_pair("app", &program.api.app)
        .append_pair("app_type", "0")
        .append_pair("port", &program.address.port().to_string())
        .append_pair("v", VERSION)
        .append_pair(
            "version",
            &(program.gate.now().get() / 1_000_000).to_string(),
        )
        .append_pair("pid", &std::process::id().to_string())
        .finish()
}
