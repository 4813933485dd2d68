//! A connection over a scripted stream: input arrives in arbitrary pieces, and writes take any number of bytes.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    sync::Arc,
};

use proptest::prelude::*;
use tidegate_core::{ManualClock, Nanos};

use super::*;
use crate::{
    decide::{limits::Limits, service::Service, throttle::Throttle},
    edges::resp::{RespConfig, RespStats},
    listen::{
        access::{Access, Door},
        peers::Peers,
        strangers::Strangers,
    },
    rules,
};

/// The input, piece by piece, and how many bytes the stream takes.
#[derive(Default)]
struct Script {
    arriving: VecDeque<Vec<u8>>,
    /// The peer has closed its half after the last piece.
    closed: bool,
    /// How many bytes can be written before a write would block.
    room: usize,
    sent: Vec<u8>,
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(mut piece) = self.arriving.pop_front() else {
            return if self.closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        };
        let taken = piece.len().min(buffer.len());
        buffer[..taken].copy_from_slice(&piece[..taken]);
        if taken < piece.len() {
            self.arriving.push_front(piece.split_off(taken));
        }
        Ok(taken)
    }
}

impl Write for Script {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.room == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = bytes.len().min(self.room);
        self.room -= taken;
        self.sent.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Transport for Script {}

pub(in crate::edges::resp) fn shared() -> Shared {
    let rules =
        "limits: [{name: a, limit: 5/1m, algorithm: token-bucket}, {name: g, limit: 9/1s, global: true}]";
    let limits = Limits::new(rules::parse(rules).unwrap(), 100, |_| None, Nanos::ZERO).unwrap();
    let clock = Arc::new(ManualClock::default());
    Shared {
        service: Arc::new(Service::new(limits, Throttle::new(100, None).unwrap(), clock)),
        config: RespConfig {
            password: None,
            max_connections: 100,
            max_per_peer: None,
            idle_timeout: None,
            threads: 1,
            port: 0,
        },
        door: Door::new(Arc::new(Access::open(None, false, None).unwrap()), true),
        strangers: Strangers::new("resp"),
        tls: None,
        peers: Peers::new(None, 100),
        descriptors: Arc::default(),
        started: Nanos::ZERO,
        stats: Arc::new(RespStats::default()),
        runtime: None,
    }
}

fn connection(shared: &Shared, script: Script) -> Connection<Script> {
    let session = Session::new(shared, "127.0.0.1:1".parse().unwrap(), None);
    Connection::new(script, session, Nanos::ZERO)
}

/// Reads until nothing more arrives, without sending anything.
fn read_all(connection: &mut Connection<Script>, shared: &Shared) -> Turn {
    let mut buffer = vec![0; BUFFER];
    let limits = shared.service.limits();
    let context = TurnContext {
        shared,
        limits: &limits,
        now: Nanos::from_secs(1),
        answered: &Cell::new(0),
        share: 4 * READ,
    };
    loop {
        let turn = connection.read(&mut buffer, context, true);
        if turn != Turn::More {
            return turn;
        }
    }
}

#[test]
fn a_client_with_more_than_its_share_lets_the_others_have_their_turn() {
    let shared = shared();
    let arriving = VecDeque::from([b"PING\r\n".repeat(100_000)]);
    let mut connection = connection(&shared, Script { arriving, room: usize::MAX, ..Script::default() });
    let mut buffer = vec![0; BUFFER];
    let limits = shared.service.limits();
    let mut turns = 0;
    loop {
        let answered = Cell::new(0);
        let share = if turns % 2 == 0 { READ } else { READ / 16 };
        let (now, limits) = (Nanos::from_secs(1), &limits);
        let context = TurnContext { shared: &shared, limits, now, answered: &answered, share };
        let turn = connection.read(&mut buffer, context, false);
        // As many of the shortest commands as its share has, and one that began in the turn before.
        assert!(answered.get() <= (share / 6 + 1) as u64, "{} of {share} bytes", answered.get());
        assert!(connection.flush().unwrap());
        if turn == Turn::Done {
            break;
        }
        turns += 1;
    }
    assert!(turns >= 600_000 / READ);
    assert!(connection.input.is_empty());
    assert_eq!(connection.stream.sent.len(), 100_000 * 7, "all of it is answered in the end");
}

/// The replies to a client that sends these pieces.
fn answers(pieces: Vec<Vec<u8>>) -> Vec<u8> {
    let shared = shared();
    let script = Script { arriving: pieces.into(), closed: true, room: usize::MAX, ..Script::default() };
    let mut connection = connection(&shared, script);
    read_all(&mut connection, &shared);
    assert!(connection.flush().unwrap());
    connection.stream.sent
}

fn command(words: &[&str]) -> Vec<u8> {
    use std::fmt::Write;
    let mut frame = format!("*{}\r\n", words.len());
    for word in words {
        write!(frame, "${}\r\n{word}\r\n", word.len()).unwrap();
    }
    frame.into_bytes()
}

/// Without `INFO`: it reports how many commands have run, and commands of one read are counted together.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just("acquire"),
        Just("ACQUIRE"),
        Just("PEEK"),
        Just("REFUND"),
        Just("CL.THROTTLE"),
        Just("BLOCK"),
        Just("UNBLOCK"),
        Just("CLIENT"),
        Just("SETNAME"),
        Just("COMMAND"),
        Just("COUNT"),
        Just("CONFIG"),
        Just("GET"),
        Just("*"),
        Just("HELLO"),
        Just("3"),
        Just("AUTH"),
        Just("SELECT"),
        Just("RESET"),
        Just("a"),
        Just("g"),
        Just("nowhere"),
        Just("alice"),
        Just("2"),
        Just("-1"),
        Just("0"),
        Just("PING"),
        Just("ECHO"),
        Just("é\r\n"),
    ];
    let framed = proptest::collection::vec(word, 0..7).prop_map(|words| command(&words));
    let inline = "(PING|ACQUIRE a bob|peek a \"bob\"|)\r\n".prop_map(String::into_bytes);
    let broken = proptest::collection::vec(any::<u8>(), 0..12);
    let frame = prop_oneof![8 => framed, 2 => inline, 1 => broken];
    proptest::collection::vec(frame, 0..12).prop_map(|frames| frames.concat())
}

proptest! {
    /// However the network splits a client's bytes, the replies are the same, and nothing panics.
    #[test]
    fn any_split_into_reads_gives_the_same_answers(
        bytes in requests(),
        cuts in proptest::collection::vec(any::<proptest::sample::Index>(), 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([bytes.len()]) {
            pieces.push(bytes[from..cut].to_vec());
            from = cut;
        }
        pieces.retain(|piece| !piece.is_empty());
        prop_assert_eq!(answers(pieces), answers(vec![bytes.clone()].into_iter().filter(|b| !b.is_empty()).collect()));
    }
}

#[test]
fn a_client_that_does_not_read_is_not_read_from() {
    let shared = shared();
    // Each asks for a long reply. Together they far exceed the output bound.
    let script =
        Script { arriving: (0..10_000).map(|_| b"COMMAND DOCS\r\n".to_vec()).collect(), ..Script::default() };
    let mut connection = connection(&shared, script);
    read_all(&mut connection, &shared);
    let longest = answers(vec![b"COMMAND DOCS\r\n".to_vec()]).len();
    assert!(connection.output.len() <= OUTPUT_FULL + longest, "{}", connection.output.len());
    let left = connection.stream.arriving.len();
    assert!(left > 8_000, "only {left} are left unread");
    // Once the client reads, everything is answered in order.
    let mut turns = 0;
    while !connection.stream.arriving.is_empty() || connection.has_output() || connection.has_waiting() {
        connection.stream.room = 100_000;
        connection.flush().unwrap();
        read_all(&mut connection, &shared);
        turns += 1;
        assert!(turns < 1_000_000 && connection.input.len() <= BUFFER);
    }
    assert_eq!(connection.stream.sent.len(), longest * 10_000);
}

#[test]
fn frames_that_waited_for_output_space_are_answered_without_another_read() {
    let shared = shared();
    let script = Script { arriving: [b"COMMAND DOCS\r\n".repeat(1_000)].into(), ..Script::default() };
    let mut connection = connection(&shared, script);
    read_all(&mut connection, &shared);
    assert!(connection.has_waiting());
    while connection.has_waiting() {
        connection.stream.room = usize::MAX;
        assert!(connection.flush().unwrap());
        read_all(&mut connection, &shared);
    }
    connection.stream.room = usize::MAX;
    assert!(connection.flush().unwrap());
    let one = answers(vec![b"COMMAND DOCS\r\n".to_vec()]);
    assert_eq!(connection.stream.sent, one.repeat(1_000));
}

#[test]
fn empty_buffers_are_freed() {
    let shared = shared();
    let script = Script {
        arriving: [b"COMMAND DOCS\r\n".repeat(3), b"*2\r\n$4\r\nECHO".to_vec(), b"\r\n$1\r\nx\r\n".to_vec()]
            .into(),
        room: usize::MAX,
        ..Script::default()
    };
    let mut connection = connection(&shared, script);
    read_all(&mut connection, &shared);
    assert!(connection.flush().unwrap());
    assert_eq!(connection.input.capacity(), 0);
    assert!(connection.output.capacity() <= OUTPUT_KEPT);
    assert!(connection.stream.sent.ends_with(b"$1\r\nx\r\n"));
}

#[test]
fn malformed_input_gets_an_error_and_closes_the_connection() {
    let sent = answers(vec![b"PING\r\n*1\r\n:5\r\nPING\r\n".to_vec()]);
    assert_eq!(
        sent.escape_ascii().to_string(),
        "+PONG\\r\\n-ERR Protocol error: expected \\'$\\', got \\':\\'\\r\\n"
    );
}

#[test]
fn a_client_that_closes_its_half_still_gets_its_replies() {
    let sent = answers(vec![b"PING\r\nPING\r\n*1\r\n$4\r\nPI".to_vec()]);
    assert_eq!(sent, b"+PONG\r\n+PONG\r\n");
}

#[test]
fn nothing_runs_after_quit() {
    assert_eq!(answers(vec![b"QUIT\r\nPING\r\n".to_vec(), b"PING\r\n".to_vec()]), b"+OK\r\n");
}

#[test]
fn an_unfinished_frame_and_an_unread_reply_are_overdue_after_half_a_minute() {
    let shared = shared();
    let at = |seconds| Nanos::from_secs(seconds);
    for arriving in ["*1\r\n$4\r\nPI", "PING\r\n"] {
        let script = Script { arriving: [arriving.as_bytes().to_vec()].into(), ..Script::default() };
        let mut connection = connection(&shared, script);
        assert!(!connection.is_overdue(None, at(0)));
        read_all(&mut connection, &shared);
        connection.moved = false;
        assert!(!connection.is_overdue(None, at(1)) && !connection.is_overdue(None, at(30)));
        assert!(connection.is_overdue(None, at(31)));
    }
}

#[test]
fn a_slow_client_that_keeps_reading_is_not_stuck() {
    let shared = shared();
    let script = Script { arriving: [b"COMMAND DOCS\r\n".to_vec()].into(), ..Script::default() };
    let mut connection = connection(&shared, script);
    read_all(&mut connection, &shared);
    for seconds in 0..100 {
        connection.stream.room = 1;
        assert!(!connection.flush().unwrap());
        assert!(!connection.is_overdue(None, Nanos::from_secs(20 * seconds)));
    }
}

#[test]
fn a_connection_is_idle_since_its_last_command_and_only_with_a_timeout() {
    let shared = shared();
    let mut connection = connection(&shared, Script::default());
    assert!(!connection.is_overdue(None, Nanos::from_secs(1_000_000)));
    let limit = Some(Nanos::from_secs(60));
    assert!(!connection.is_overdue(limit, Nanos::from_secs(59)));
    assert!(connection.is_overdue(limit, Nanos::from_secs(60)));
}
