//! The configurations of nginx and HAProxy in `packaging`, with the real programs in front of a
//! backend.
#![cfg(feature = "servers")]

#[path = "../integration/certificates/mod.rs"]
mod certificates;
mod haproxy;
mod nginx;
#[path = "../integration/program/mod.rs"]
mod program;
mod spoe;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use program::PATIENCE;

/// A client whose connection stays open.
struct Client(BufReader<TcpStream>);

impl Client {
    fn new(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(BufReader::new(stream))
    }

    /// The head of the response to a request, in lower case. Its body must have a length.
    fn get(&mut self, path: &str) -> String {
        self.0
            .get_mut()
            .write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n").as_bytes())
            .unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(
                self.0.read_line(&mut head).unwrap(),
                0,
                "the connection was closed after {head:?}"
            );
        }
        let head = head.to_lowercase();
        let length = head
            .split("content-length: ")
            .nth(1)
            .and_then(|rest| rest.lines().next());
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        self.0.read_exact(&mut body).unwrap();
        head
    }
}

/// The whole response to a request with these header fields, in lower case.
fn get(port: u16, path: &str, fields: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{fields}\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.to_lowercase()
}
