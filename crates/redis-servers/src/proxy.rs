//! A proxy between client and server that delays replies and cuts connections.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use tidegate_core::{Clock, Nanos, clock::SystemClock};

/// Forwards connections to a server.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<ProxyState>,
}

#[derive(Debug, Default)]
struct ProxyState {
    /// The delays of requests and of replies, in microseconds.
    delays: [AtomicU64; 2],
    refuse: AtomicBool,
    stop: AtomicBool,
    /// The number of connections so far, and how many of them, counted from the first, are
    /// silenced.
    count: AtomicU64,
    silent: AtomicU64,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// A proxy in front of the server on this port.
    ///
    /// # Panics
    /// When the system has no free port.
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("127.0.0.1 has a free port");
        let port = listener
            .local_addr()
            .expect("a bound socket has an address")
            .port();
        let shared = Arc::new(ProxyState::default());
        let state = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                if state.stop.load(Ordering::Relaxed) {
                    return;
                }
                // The client has already disconnected, or the server is down: close the connection.
                let Ok(client) = client else { continue };
                if state.refuse.load(Ordering::Relaxed) {
                    continue;
                }
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)) {
                    forward(&state, &client, &server);
                }
            }
        });
        Self { port, shared }
    }

    /// The proxy's port on 127.0.0.1.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `redis://127.0.0.1:PORT`, through the proxy.
    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Delays all replies by `by` from now on.
    pub fn delay(&self, by: Duration) {
        self.shared.delays[1].store(by.as_micros() as u64, Ordering::Relaxed);
    }

    /// Delays all requests by `by` from now on.
    pub fn delay_requests(&self, by: Duration) {
        self.shared.delays[0].store(by.as_micros() as u64, Ordering::Relaxed);
    }

    /// Cuts all connections. New ones are accepted.
    ///
    /// # Panics
    /// When a thread of the proxy has panicked.
    pub fn cut(&self) {
        for stream in self
            .shared
            .open
            .lock()
            .expect("no thread panics with the list")
            .drain(..)
        {
            // It may already be closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Silences all open connections: no reply passes any more, but they stay open. New connections
    /// work normally.
    pub fn silence(&self) {
        self.shared
            .silent
            .store(self.shared.count.load(Ordering::SeqCst), Ordering::SeqCst);
    }

    /// Whether to close new connections immediately.
    pub fn refuse(&self, refuse: bool) {
        self.shared.refuse.store(refuse, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.cut();
        // Wakes the listener, so that it sees the stop flag.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn forward(shared: &Arc<ProxyState>, client: &TcpStream, server: &TcpStream) {
    let (Ok(requests), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let (Ok(answers), Ok(to_client)) = (server.try_clone(), client.try_clone()) else {
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    {
        let mut open = shared.open.lock().expect("no thread panics with the list");
        open.extend(
            [client.try_clone(), server.try_clone()]
                .into_iter()
                .flatten(),
        );
    }
    let number = shared.count.fetch_add(1, Ordering::SeqCst) + 1;
    for (number, from, to) in [
        (None, requests, to_server),
        (Some(number), answers, to_client),
    ] {
        let shared = Arc::clone(shared);
        thread::spawn(move || pump(&shared, number, from, &to));
    }
}

/// Copies requests, or the replies of the connection with this number, until either end closes.
/// Each has the delay in force when it arrived; they do not wait for each other. Replies that
/// arrive while the connection is silenced are discarded.
fn pump(shared: &Arc<ProxyState>, number: Option<u64>, mut from: TcpStream, to: &TcpStream) {
    let clock = SystemClock::new();
    let (send, pieces) = mpsc::channel::<(Nanos, Vec<u8>)>();
    let (mut client, writers, writers_clock) = (to.try_clone(), Arc::clone(shared), clock.clone());
    thread::spawn(move || {
        let Ok(client) = &mut client else { return };
        for (due, piece) in pieces {
            loop {
                let left = due.saturating_since(writers_clock.now());
                if left == Nanos::ZERO {
                    break;
                }
                thread::park_timeout(left.into());
            }
            let silent =
                number.is_some_and(|number| number <= writers.silent.load(Ordering::SeqCst));
            if !silent && client.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    });
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let delay = Nanos::from_micros(
            shared.delays[usize::from(number.is_some())].load(Ordering::Relaxed),
        );
        if send
            .send((clock.now().saturating_add(delay), bytes[..length].to_vec()))
            .is_err()
        {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
}
