//! The two ends: clients and the backend.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use crate::program::PATIENCE;

/// Starts a backend that answers every request, and returns its port. The part after `/unused/` or
/// `/report/` in a path is returned in `x-unused`. The part after `/chat/` is the number of tokens
/// of a streamed answer, whose last event names it as providers of language models do. An answer to
/// `/endless` begins and has no end. The status of an answer is the part after `/login/`, and 200 otherwise.
pub fn backend() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    port
}

fn serve(stream: TcpStream) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    let mut answers = stream;
    loop {
        let (line, fields) = head(&mut requests)?;
        let path = line.split(' ').nth(1).unwrap_or_default();
        // A body, such as that of a call of a tool.
        let length = fields.get("content-length");
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        requests.read_exact(&mut body).ok()?;
        if path == "/endless" {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            answers.write_all(head.as_bytes()).ok()?;
            answers.write_all(b"7\r\ndata: 1\r\n").ok()?;
            // Until the other end closes the connection.
            return requests.read_exact(&mut [0]).ok();
        }
        if let Some(tokens) = path.strip_prefix("/chat/") {
            let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
            answers.write_all(head.as_bytes()).ok()?;
            let usage = format!("{{\"choices\":[],\"usage\":{{\"total_tokens\":{tokens}}}}}");
            for event in [
                "{\"choices\":[{\"delta\":{\"content\":\"Hello\"}}]}",
                &usage,
                "[DONE]",
            ] {
                let event = format!("data: {event}\n\n");
                write!(answers, "{:x}\r\n{event}\r\n", event.len()).ok()?;
            }
            answers.write_all(b"0\r\n\r\n").ok()?;
            continue;
        }
        let unused = path
            .strip_prefix("/unused/")
            .or_else(|| path.strip_prefix("/report/"));
        let unused = unused.map_or(String::new(), |unused| format!("x-unused: {unused}\r\n"));
        let status = path.strip_prefix("/login/").unwrap_or("200");
        let answer =
            format!("HTTP/1.1 {status} Status\r\n{unused}content-length: 7\r\n\r\nbackend");
        answers.write_all(answer.as_bytes()).ok()?;
    }
}

/// The first line and the header fields; `None` at the end of the connection.
fn head(from: &mut impl BufRead) -> Option<(String, HashMap<String, String>)> {
    let mut line = || {
        let mut line = String::new();
        let read = from.read_line(&mut line).ok()?;
        (read > 0).then(|| line.trim_end().to_owned())
    };
    let first = line()?;
    let mut fields = HashMap::new();
    loop {
        let field = line()?;
        let Some((name, value)) = field.split_once(':') else {
            return Some((first, fields));
        };
        fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
}

/// One open connection to Envoy.
pub struct Client {
    answers: BufReader<TcpStream>,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub fields: HashMap<String, String>,
    pub body: String,
}

impl Answer {
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.field(name)
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {self:?}"))
    }
}

impl Client {
    pub fn of(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            answers: BufReader::new(stream),
        }
    }

    /// Sends a GET with additional header fields, as in `["x-user: ada"]`.
    pub fn get(&mut self, path: &str, fields: &[&str]) -> Answer {
        self.send("GET", path, fields, "");
        self.answer()
    }

    /// Sends a JSON document.
    pub fn post(&mut self, path: &str, fields: &[&str], body: &str) -> Answer {
        let length = format!("content-length: {}", body.len());
        let kind = "content-type: application/json";
        self.send("POST", path, &[&[kind, &length], fields].concat(), body);
        self.answer()
    }

    fn answer(&mut self) -> Answer {
        let (status, fields) = self.head();
        let mut body = Vec::new();
        if fields.contains_key("transfer-encoding") {
            while self.read_chunk(&mut body) > 0 {}
        } else {
            body.resize(
                fields
                    .get("content-length")
                    .map_or(0, |length| length.parse().unwrap()),
                0,
            );
            self.answers.read_exact(&mut body).unwrap();
        }
        Answer {
            status,
            fields,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    /// Sends a GET, and returns the status once the response has begun.
    pub fn begin(&mut self, path: &str, fields: &[&str]) -> u16 {
        self.send("GET", path, fields, "");
        self.head().0
    }

    fn send(&mut self, method: &str, path: &str, fields: &[&str], body: &str) {
        let fields = [&["host: shop"], fields, &["\r\n"]].concat().join("\r\n");
        let request = format!("{method} {path} HTTP/1.1\r\n{fields}{body}");
        self.answers
            .get_mut()
            .write_all(request.as_bytes())
            .unwrap();
    }

    fn head(&mut self) -> (u16, HashMap<String, String>) {
        let (line, fields) = head(&mut self.answers).expect("Envoy answers");
        let status = line.split(' ').nth(1);
        let status = status.and_then(|status| status.parse().ok());
        (status.expect("a status line"), fields)
    }

    /// Appends a chunk of a body, and returns its length.
    fn read_chunk(&mut self, body: &mut Vec<u8>) -> usize {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        let (start, length) = (
            body.len(),
            usize::from_str_radix(line.trim_end(), 16).expect("a length"),
        );
        body.resize(start + length + 2, 0);
        self.answers.read_exact(&mut body[start..]).unwrap();
        body.truncate(start + length);
        length
    }

    /// The statuses of this many requests.
    pub fn statuses(&mut self, count: usize, path: &str, fields: &[&str]) -> Vec<u16> {
        (0..count).map(|_| self.get(path, fields).status).collect()
    }
}
