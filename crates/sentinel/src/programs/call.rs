//! One call of a program's command API.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{Request, StatusCode, client::conn::http1, header};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, task::JoinSet, time::timeout};

/// How long a call may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest answer.
pub(super) const MAX_ANSWER: usize = 256 * 1024;

/// Why a call has no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("no answer within {} seconds", PATIENCE.as_secs())]
    Late,
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("{0}")]
    Http(#[from] hyper::Error),
    #[error("the answer is {0}")]
    Status(StatusCode),
    #[error("the answer is longer than {MAX_ANSWER} bytes, or breaks off")]
    Body,
    #[error("the request cannot be written")]
    Request,
}

/// Sends a command, and returns the text of the answer. Its parameters are in the query, or in the
/// body if it `changes` something, as they may be long then. No answer leads to another address: a
/// redirect is an error.
pub(super) async fn call(
    address: SocketAddr,
    command: &str,
    form: String,
    changes: bool,
) -> Result<String, CallError> {
    let (request, body) = if changes {
        (Request::post(format!("/{command}")), form)
    } else {
        (Request::get(format!("/{command}?{form}")), String::new())
    };
    let request = request
        .header(header::HOST, address.to_string())
        .header(
            header::CONTENT_TYPE,
            "application/x-www-form-urlencoded; charset=UTF-8",
        )
        .header(header::CONNECTION, "close")
        .body(Full::new(Bytes::from(body)))
        .map_err(|_| CallError::Request)?;
    let asked = async {
        let stream = TcpStream::connect(address).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        // It ends with this call, also with one that is late.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let answer = sender.send_request(request).await?;
        if answer.status() != StatusCode::OK {
            return Err(CallError::Status(answer.status()));
        }
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        Ok(String::from_utf8_lossy(&body.map_err(|_| CallError::Body)?.to_bytes()).into_owned())
    };
    timeout(PATIENCE, asked)
        .await
        .unwrap_or(Err(CallError::Late))
}
