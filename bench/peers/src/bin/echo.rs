//! A server that does as little as a server can: it receives, counts the commands by their first
//! byte, and sends a fixed answer for each. A request costs it two system calls and the kernel's
//! work for them: no server over TCP with a request in flight for each connection gets below that.
//!
//! `echo ADDRESS`; used by `bench/resp.sh`.

use std::io::{self, ErrorKind, Read, Write};

use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};

/// As long as an answer to `ACQUIRE`.
const ANSWER: &[u8] = b"*5\r\n:0\r\n:100\r\n:99\r\n:-1\r\n:600\r\n";
const LISTENER: Token = Token(usize::MAX);

fn main() -> io::Result<()> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:16381".to_owned());
    let mut listener = TcpListener::bind(address.parse().map_err(io::Error::other)?)?;
    let mut poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    let (mut events, mut streams, mut buffer) =
        (Events::with_capacity(256), Vec::new(), vec![0; 1 << 16]);
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((mut stream, _)) = listener.accept() {
                    stream.set_nodelay(true)?;
                    poll.registry().register(
                        &mut stream,
                        Token(streams.len()),
                        Interest::READABLE,
                    )?;
                    streams.push(Some(stream));
                }
            } else if let Some(place) = streams.get_mut(event.token().0)
                && !place
                    .as_mut()
                    .is_some_and(|stream| answer(stream, &mut buffer).unwrap_or(false))
            {
                *place = None;
            }
        }
    }
}

/// Answers what has come. Returns whether the connection goes on.
fn answer(stream: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    let received = match stream.read(buffer) {
        Ok(0) => return Ok(false),
        Ok(received) => received,
        Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
        Err(error) => return Err(error),
    };
    let commands = buffer[..received]
        .iter()
        .filter(|&&byte| byte == b'*')
        .count();
    // redis-benchmark waits for its answers: they always fit in the socket's buffer.
    stream.write_all(&ANSWER.repeat(commands))?;
    Ok(true)
}
