//! A reactor over real sockets, whose turns a test takes one by one.

use std::{io::Write as _, net::SocketAddr, sync::atomic::AtomicU8};

use tidegate_core::clock::ManualTimer;
use tidegate_listen::{
    access::{Access, Door},
    peers::Peers,
    strangers::Strangers,
};
use tidegate_service::{
    decide::{limits::Limits, service::Service, throttle::Throttle},
    rules,
};

use super::{accepting::ACCEPTS_A_TURN, *};
use crate::{RespConfig, connection::OUTPUT_FULL, socket::Stream};

const PING: &[u8] = b"PING\r\n";

fn shared(clock: &ManualTimer) -> Shared {
    let limits = Limits::new(rules::example(), 100, |_| None, Nanos::ZERO).unwrap();
    Shared {
        service: Arc::new(Service::new(
            limits,
            Throttle::new(100, None).unwrap(),
            Arc::new(clock.clone()),
        )),
        config: RespConfig {
            password: None,
            max_connections: 100,
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

fn reactor() -> (Reactor, SocketAddr) {
    reactor_on(&ManualTimer::default())
}

fn reactor_on(clock: &ManualTimer) -> (Reactor, SocketAddr) {
    let poll = Poll::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let mut listener = Listening::Tcp(listener);
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)
        .unwrap();
    let wakers = vec![Waker::new(poll.registry(), CONTROL).unwrap()];
    let shared = Arc::new(shared(clock));
    let (closing, stats) = (AtomicUsize::new(0), Arc::clone(&shared.stats));
    let control = Arc::new(Control {
        state: AtomicU8::new(SERVE),
        wakers,
        closing,
        stats,
    });
    (Reactor::new(0, poll, listener, &shared, &control), address)
}

fn client(address: SocketAddr) -> std::net::TcpStream {
    let client = std::net::TcpStream::connect(address).unwrap();
    client.set_nonblocking(true).unwrap();
    client
}

impl Reactor {
    /// Takes one turn. Returns how many commands it answered.
    fn take_turn(&mut self) -> usize {
        let mut events = Events::with_capacity(EVENTS);
        self.poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        self.turn(&events);
        usize::try_from(self.answered.take()).unwrap()
    }
}

#[test]
fn a_client_that_pipelines_without_end_gets_one_share_in_each_turn() {
    let (mut reactor, address) = reactor();
    let mut clients: Vec<_> = (0..8).map(|_| client(address)).collect();
    let batch = PING.repeat(8_000);
    let mut replies = vec![0; 1 << 20];
    let mut answered = 0;
    for _ in 0..40 {
        for client in &mut clients {
            // Whatever the socket takes: it causes another event, and there is always more to read
            // than a share.
            let _ = client.write(&batch);
            let _ = client.read(&mut replies);
        }
        let turn = reactor.take_turn();
        // As many commands as the share has, and one that began in the turn before.
        let most = clients.len() * (reactor.share / PING.len() + 1);
        assert!(turn <= most, "{turn} commands in a turn, of {most}");
        answered += turn;
    }
    assert!(answered > 20_000, "the clients were served");
}

#[test]
fn a_client_that_asks_one_thing_is_answered_in_its_turn_beside_pipelines() {
    let (mut reactor, address) = reactor();
    let mut greedy: Vec<_> = (0..8).map(|_| client(address)).collect();
    let mut modest = client(address);
    let batch = PING.repeat(8_000);
    let mut replies = vec![0; 1 << 20];
    for at in 0..25 {
        for client in &mut greedy {
            let _ = client.write(&batch);
            let _ = client.read(&mut replies);
        }
        modest.write_all(PING).unwrap();
        // In the first turns, the connections are accepted.
        for _ in 0..if at == 0 {
            1 + 9_usize.div_ceil(ACCEPTS_A_TURN)
        } else {
            1
        } {
            reactor.take_turn();
        }
        let read = modest.read(&mut replies).unwrap();
        assert_eq!(replies[..read], *b"+PONG\r\n");
    }
}

/// The output is full after the last command that was read, and all of it is sent at once: nothing but
/// the reactor itself knows that the socket has more.
#[test]
fn commands_behind_a_full_output_are_read_once_it_is_sent() {
    const DOCS: &[u8] = b"COMMAND DOCS\r\n";
    const HEAD: &str = "*2\r\n$4\r\nECHO\r\n";
    let (mut reactor, address) = reactor();
    let mut client = client(address);
    let mut replies = vec![0; 1 << 20];
    let mut exchange = |client: &mut std::net::TcpStream, until: &[u8]| {
        let (mut all, mut turns) = (Vec::new(), 0);
        while !all.ends_with(until) {
            reactor.take_turn();
            while let Ok(read @ 1..) = client.read(&mut replies) {
                all.extend_from_slice(&replies[..read]);
            }
            turns += 1;
            assert!(
                turns < 1_000_000,
                "{} bytes came, and no more: {:?}",
                all.len(),
                String::from_utf8_lossy(&all[..all.len().min(100)])
            );
        }
        for (_, connection) in &mut reactor.connections {
            // Room for all that is sent here, in both directions.
            let Stream::Tcp(socket) = connection.stream.stream() else {
                continue;
            };
            let socket = socket2::SockRef::from(&*socket);
            socket.set_recv_buffer_size(200_000).unwrap();
            socket.set_send_buffer_size(200_000).unwrap();
        }
        all
    };
    let socket = socket2::SockRef::from(&client);
    socket.set_send_buffer_size(200_000).unwrap();
    client.write_all(&[DOCS, PING].concat()).unwrap();
    let docs = exchange(&mut client, b"+PONG\r\n").len() - b"+PONG\r\n".len();
    // Twice as many replies as fill the output, the first time together with echoes that make the
    // commands as long as one read.
    let full = OUTPUT_FULL.div_ceil(docs);
    let echoes = |commands: usize| -> Vec<String> {
        let all = READ - commands * DOCS.len();
        let parts = all.div_ceil(4_000);
        let sizes = (0..parts).map(|at| all / parts + usize::from(at < all % parts));
        let echo = |size: usize| {
            let around = HEAD.len() + "$1234\r\n\r\n".len();
            let text = "x".repeat(size - around);
            format!("{HEAD}${}\r\n{text}\r\n", text.len())
        };
        sizes.map(echo).collect()
    };
    let fills = |first: &usize| {
        let echoed: usize = echoes(first + full)
            .iter()
            .map(|echo| echo.len() - HEAD.len())
            .sum();
        echoed + first * docs >= OUTPUT_FULL
    };
    let first = (1..=full).find(fills).unwrap();
    let commands = first + full;
    let sent = [echoes(commands).concat().as_bytes(), &DOCS.repeat(commands)].concat();
    assert_eq!(sent.len(), READ);
    client.write_all(&[&sent[..], PING].concat()).unwrap();
    exchange(&mut client, b"+PONG\r\n");
}

#[test]
fn units_that_are_granted_as_their_client_goes_away_go_to_the_next_in_line() {
    let clock = ManualTimer::default();
    let (mut reactor, address) = reactor_on(&clock);
    let mut clients = [client(address), client(address), client(address)];
    let mut replies = vec![0; 1 << 10];
    for client in &mut clients {
        client
            .write_all(b"ACQUIRE logins bob 5 WAIT 3600000\r\n")
            .unwrap();
        for _ in 0..3 {
            reactor.take_turn();
        }
    }
    let read = clients[0].read(&mut replies).unwrap();
    assert!(replies[..read].starts_with(b"*5\r\n:0\r\n"));
    let waiting = |reactor: &Reactor| {
        let limits = reactor.shared.service.limits();
        limits
            .limit(b"logins")
            .unwrap()
            .memory
            .waits
            .counts()
            .waiting
    };
    assert_eq!(waiting(&reactor), 2);
    // Both happen before the thread runs.
    clock.advance(Duration::from_mins(10));
    let [_, second, mut third] = clients;
    drop(second);
    for _ in 0..2 {
        reactor.take_turn();
    }
    let read = third.read(&mut replies).unwrap();
    assert!(replies[..read].starts_with(b"*5\r\n:0\r\n"));
    assert_eq!(waiting(&reactor), 0);
}
