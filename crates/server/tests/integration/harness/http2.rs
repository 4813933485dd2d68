//! HTTP/2: frames byte by byte, and requests.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
};

use axum::http::Request;

use super::PATIENCE;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];

/// Control frames that a client may send as often as it likes, as far as the protocol goes.
pub fn control_frames() -> [(&'static str, Vec<u8>); 5] {
    let frame = |kind: u8, stream: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).unwrap();
        [&[0, 0, length, kind, 0, 0, 0, 0, stream], content].concat()
    };
    [
        ("SETTINGS", frame(4, 0, &[0, 3, 0, 0, 0, 100])),
        ("empty SETTINGS", frame(4, 0, &[])),
        ("PING", frame(6, 0, &[7; 8])),
        ("PRIORITY", frame(2, 1, &[0, 0, 0, 0, 16])),
        ("WINDOW_UPDATE", frame(8, 0, &[0, 0, 0, 1])),
    ]
}

/// The beginning of a connection.
pub fn greeting() -> Vec<u8> {
    [PREFACE, &SETTINGS].concat()
}

/// Reads until the server ends the connection. Returns whether it does so in time.
pub fn is_ended(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => {
                return !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            }
        }
    }
}

/// Sends this frame up to 100,000 times, and reads the server's frames. Returns whether the server
/// ended the connection.
pub fn ends_after_a_flood_of(address: SocketAddr, frame: &[u8]) -> bool {
    let stream = TcpStream::connect(address).unwrap();
    let mut writes = stream.try_clone().unwrap();
    let reads = std::thread::spawn(move || is_ended(&stream));
    writes.write_all(&greeting()).unwrap();
    let many = frame.repeat(100);
    for _ in 0..1_000 {
        if writes.write_all(&many).is_err() {
            break;
        }
    }
    reads.join().unwrap()
}

/// Sends one request on a new connection. Returns the response's status and body.
pub async fn ask(
    address: SocketAddr,
    (method, path): (&str, &str),
    token: Option<&str>,
    body: &str,
) -> (u16, String) {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(format!("http://{address}{path}"));
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let mut client = client.ready().await.unwrap();
    let (answer, mut sends) = client
        .send_request(request.body(()).unwrap(), body.is_empty())
        .unwrap();
    if !body.is_empty() {
        sends.send_data(body.to_owned().into(), true).unwrap();
    }
    let answer = tokio::time::timeout(PATIENCE, answer)
        .await
        .expect("an answer")
        .unwrap();
    let (head, mut data) = answer.into_parts();
    let mut whole = Vec::new();
    while let Some(piece) = data.data().await {
        let piece = piece.unwrap();
        data.flow_control().release_capacity(piece.len()).unwrap();
        whole.extend_from_slice(&piece);
    }
    connection.abort();
    (head.status.as_u16(), String::from_utf8(whole).unwrap())
}
