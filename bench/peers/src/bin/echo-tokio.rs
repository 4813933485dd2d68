//! The server of `echo.rs` with a Tokio task for each connection, on one thread: the cost of the
//! usual way of writing a server, to compare with a reactor, before anything is parsed or decided.
//!
//! `echo-tokio ADDRESS`; used by `bench/resp.sh`.

use std::io;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// As long as an answer to `ACQUIRE`.
const ANSWER: &[u8] = b"*5\r\n:0\r\n:100\r\n:99\r\n:-1\r\n:600\r\n";

#[tokio::main(flavor = "current_thread")]
async fn main() -> io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:16382".to_owned());
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(answer(stream));
    }
}

async fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let received = stream.read(&mut buffer).await?;
        if received == 0 {
            return Ok(());
        }
        let commands = buffer[..received]
            .iter()
            .filter(|&&byte| byte == b'*')
            .count();
        stream.write_all(&ANSWER.repeat(commands)).await?;
    }
}
