//! The configurations of nginx and HAProxy in `packaging`, with the real programs in front of a backend.
#![cfg(feature = "servers")]

#[path = "../certificates/mod.rs"]
mod certificates;
mod haproxy;
mod nginx;
#[path = "../program/mod.rs"]
mod program;
mod spoe;

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use program::PATIENCE;

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
