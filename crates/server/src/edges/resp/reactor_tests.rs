//! A reactor over real sockets, whose turns a test takes one by one.

use std::{net::SocketAddr, sync::atomic::AtomicU8};

use tidegate_core::ManualClock;

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

const PING: &[u8] = b"PING\r\n";

fn shared() -> Shared {
    let limits = Limits::new(rules::example(), 100, |_| None, Nanos::ZERO).unwrap();
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

fn reactor() -> (Reactor, SocketAddr) {
    let poll = Poll::new().unwrap();
    let mut listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).unwrap();
    let wakers = vec![Waker::new(poll.registry(), CONTROL).unwrap()];
    let shared = Arc::new(shared());
    let (closing, stats) = (AtomicUsize::new(0), Arc::clone(&shared.stats));
    let control = Arc::new(Control { state: AtomicU8::new(SERVE), wakers, closing, stats });
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
            // Whatever the socket takes: it causes another event, and there is always more to read than a share.
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
        for _ in 0..if at == 0 { 1 + 9_usize.div_ceil(ACCEPTS_A_TURN) } else { 1 } {
            reactor.take_turn();
        }
        let read = modest.read(&mut replies).unwrap();
        assert_eq!(replies[..read], *b"+PONG\r\n");
    }
}

#[test]
fn an_unfinished_frame_and_an_unread_reply_are_overdue_and_a_client_that_reads_a_little_is_not() {
    let (mut reactor, address) = reactor();
    let at = Nanos::from_secs;
    let overdue =
        |reactor: &mut Reactor, at| reactor.connections.iter_mut().next().unwrap().1.is_overdue(None, at);
    let mut client = client(address);
    client.write_all(b"*2\r\n$4\r\nECHO").unwrap();
    reactor.take_turn();
    reactor.take_turn();
    assert_eq!([0, 29, 30].map(|second| overdue(&mut reactor, at(second))), [false, false, true]);
    client.write_all(b"\r\n$1\r\nx\r\n").unwrap();
    reactor.take_turn();
    assert!(!overdue(&mut reactor, at(1_000)), "at rest");
    // Far more than fits into the buffers of the sockets.
    for _ in 0..64 {
        let _ = client.write(&b"COMMAND DOCS\r\n".repeat(1_000));
        reactor.take_turn();
    }
    let mut replies = vec![0; 4 << 20];
    for round in 2..6 {
        assert!(!overdue(&mut reactor, at(20 * round)), "{round}");
        while client.read(&mut replies).is_ok() {}
        // Until the socket takes no more.
        for turn in 0.. {
            reactor.take_turn();
            if reactor.connections.iter().next().unwrap().1.has_output() {
                break;
            }
            assert!(turn < 1_000, "the replies are too short");
        }
    }
    assert_eq!([500, 501, 531].map(|second| overdue(&mut reactor, at(second))), [false, false, true]);
}
