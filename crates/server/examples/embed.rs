//! A program that serves its limits itself: other programs ask it over HTTP, and it stops the server
//! when its own work is done.
//!
//! ```console
//! cargo run -p tidegate-server --example embed
//! ```

use std::{error::Error, net::SocketAddr, path::Path};

use tidegate_server::{Ended, Options, Order, Server};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

/// Asks three times, as another program would, and returns the status codes of the answers.
pub(crate) async fn run() -> Result<Vec<String>, Box<dyn Error>> {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/embed.yaml");
    let server = Server::start(Options {
        http: Some("127.0.0.1:0".to_owned()),
        resp: None,
        rules: Some(rules),
        ..Options::default()
    })
    .await?;
    let address = server.address("http").ok_or("HTTP is off")?;
    println!("http://{address}");
    // A program that only serves takes its orders from `tidegate_server::signals`.
    let (orders, receiver) = mpsc::channel(1);
    let running = tokio::spawn(server.run(receiver));
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(ask(address, "mails", "alice").await?);
    }
    orders.send(Order::Stop).await?;
    match running.await? {
        Ended::Complete => Ok(answers),
        ended => Err(format!("the server ended as {ended:?}").into()),
    }
}

/// The status code of the answer on one unit of a limit.
async fn ask(address: SocketAddr, limit: &str, key: &str) -> Result<String, Box<dyn Error>> {
    let body = format!(r#"{{"limit": "{limit}", "key": "{key}"}}"#);
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    println!("{}", answer.lines().next_back().unwrap_or_default());
    let status = answer.split(' ').nth(1).ok_or("it is no answer of HTTP")?;
    Ok(status.to_owned())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    println!("the answers: {}", run().await?.join(", "));
    Ok(())
}
