//! A client of HTTP/2 that costs next to nothing, so that the server's speed is measured and not
//! the client's: requests are written as bytes, and of an answer only the frames are looked at.
//!
//! It counts an answer by the message in it. An answer without one (an error) has failed, with any
//! header fields.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    time::{Duration, Instant},
};

use mio::{Events, Interest, Poll, Token, net::TcpStream};

use crate::{
    Figures, Run, WARM,
    ask::{Answer, Call, Kind},
};

/// How long a number of calls may take: a server under valgrind is slow.
const ALL_CALLS: Duration = Duration::from_secs(600);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GO_AWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

struct Connection {
    socket: TcpStream,
    input: Vec<u8>,
    output: VecDeque<u8>,
    streams: Vec<Stream>,
    next_id: u32,
    /// How many bytes of requests the server still takes.
    window: i64,
    random: u64,
}

struct Stream {
    id: u32,
    asked: Instant,
    answer: Answer,
    call: Call,
}

/// Asks with every stream of every connection, again as soon as it is answered.
pub fn all(run: &Run) -> io::Result<Figures> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1_024);
    let start = Instant::now();
    let (first, end) = match run.calls {
        Some(_) => (start, start + ALL_CALLS),
        None => (
            start + WARM,
            start + WARM + Duration::from_secs(run.seconds),
        ),
    };
    let mut left = run.calls.unwrap_or(u64::MAX);
    let mut connections = Vec::new();
    for number in 0..run.connections {
        let mut connection = Connection::open(run, number, &mut left)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        poll.registry()
            .register(&mut connection.socket, Token(connections.len()), interest)?;
        connections.push(connection);
    }
    let mut figures = Figures::default();
    while Instant::now() < end
        && run
            .calls
            .is_none_or(|calls| figures.nanos.len() as u64 != calls)
    {
        poll.poll(&mut events, Some(WARM))?;
        for event in &events {
            connections[event.token().0].turn(run, &mut figures, (first, end), &mut left)?;
        }
    }
    figures.nanos.sort_unstable();
    Ok(figures)
}

impl Connection {
    fn open(run: &Run, number: u64, left: &mut u64) -> io::Result<Self> {
        let socket = std::net::TcpStream::connect(&run.address)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let mut connection = Self {
            socket: TcpStream::from_std(socket),
            input: Vec::new(),
            output: VecDeque::new(),
            streams: Vec::new(),
            next_id: 1,
            window: 65_535,
            random: number + 1,
        };
        connection
            .output
            .extend(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        connection.frame(SETTINGS, 0, 0, &[]);
        // As many bytes of answers as there may be, so that the server never waits for the client.
        connection.frame(WINDOW_UPDATE, 0, 0, &(u32::MAX / 2 - 65_535).to_be_bytes());
        for _ in 0..run.streams {
            connection.streams.push(Stream {
                id: 0,
                asked: Instant::now(),
                answer: Answer::Failed,
                call: Call::default(),
            });
            connection.ask(run, connection.streams.len() - 1, left);
        }
        Ok(connection)
    }

    /// Sends the next request of this stream, if one is left.
    fn ask(&mut self, run: &Run, stream: usize, left: &mut u64) {
        let Some(after) = left.checked_sub(1) else {
            return;
        };
        *left = after;
        let call = self.streams[stream].call;
        let call = call.next(run.kind, &mut self.random, run.values);
        let body = run.kind.body(call).expect("a kind of gRPC");
        let mut fields = Vec::new();
        if self.next_id == 1 {
            // POST, http, and four fields that the server remembers.
            fields.extend([0x83, 0x86]);
            for (name, value) in [
                (0x41, run.address.as_str()),
                (0x44, run.kind.path()),
                (0x5f, "application/grpc"),
            ] {
                fields.push(name);
                text(&mut fields, value);
            }
            fields.push(0x40);
            text(&mut fields, "te");
            text(&mut fields, "trailers");
        } else {
            fields.extend([0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe]);
        }
        let id = self.next_id;
        self.next_id += 2;
        self.window -= body.len() as i64;
        assert!(self.window >= 0, "the server takes no more requests");
        self.frame(HEADERS, END_HEADERS, id, &fields);
        self.frame(DATA, END_STREAM, id, &body);
        self.streams[stream] = Stream {
            id,
            asked: Instant::now(),
            answer: Answer::Failed,
            call,
        };
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.output
            .extend(&(payload.len() as u32).to_be_bytes()[1..]);
        self.output.extend([kind, flags]);
        self.output.extend(stream.to_be_bytes());
        self.output.extend(payload);
    }

    /// Reads what has come, asks again, and writes.
    fn turn(
        &mut self,
        run: &Run,
        figures: &mut Figures,
        counted: (Instant, Instant),
        left: &mut u64,
    ) -> io::Result<()> {
        loop {
            let mut chunk = [0; 16 * 1024];
            match self.socket.read(&mut chunk) {
                Ok(0) => return Err(io::Error::other("the server has closed a connection")),
                Ok(length) => self.input.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        let input = std::mem::take(&mut self.input);
        let mut rest = &input[..];
        while let Some((head, after)) = rest.split_first_chunk::<9>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some((payload, after)) = after.split_at_checked(length) else {
                break;
            };
            let id = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.take(run, figures, counted, left, (head[3], head[4], id), payload)?;
            rest = after;
        }
        self.input = rest.to_vec();
        while !self.output.is_empty() {
            match self.socket.write(self.output.make_contiguous()) {
                Ok(length) => drop(self.output.drain(..length)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(
        &mut self,
        run: &Run,
        figures: &mut Figures,
        (first, end): (Instant, Instant),
        left: &mut u64,
        (kind, flags, id): (u8, u8, u32),
        payload: &[u8],
    ) -> io::Result<()> {
        let stream = self.streams.iter().position(|stream| stream.id == id);
        match (kind, stream) {
            (SETTINGS, _) if flags & ACK == 0 => self.frame(SETTINGS, ACK, 0, &[]),
            (PING, _) if flags & ACK == 0 => self.frame(PING, ACK, 0, payload),
            (WINDOW_UPDATE, None) => {
                self.window += payload
                    .first_chunk()
                    .map_or(0, |by| i64::from(u32::from_be_bytes(*by)));
            }
            (GO_AWAY, _) => return Err(io::Error::other("the server ends a connection")),
            (DATA, Some(stream)) => {
                self.streams[stream].answer = run.kind.answer(200, Some("0"), payload)
            }
            _ => {}
        }
        let ended = kind == RESET || (matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0);
        let Some(stream) = stream.filter(|_| ended) else {
            return Ok(());
        };
        let Stream { asked, answer, .. } = self.streams[stream];
        if asked >= first && asked < end {
            figures.count(asked, answer);
        }
        self.ask(run, stream, left);
        Ok(())
    }
}

/// Not compressed, as its length and itself.
fn text(fields: &mut Vec<u8>, text: &str) {
    fields.push(
        u8::try_from(text.len())
            .ok()
            .filter(|length| *length < 127)
            .expect("a short text"),
    );
    fields.extend(text.bytes());
}

impl Kind {
    /// Whether this client can ask it.
    pub fn is_grpc(self) -> bool {
        self != Self::Proxy
    }
}
