//! The listener's threads, each of which polls many sockets.

use std::{
    cell::Cell,
    collections::VecDeque,
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use mio::{
    Events, Interest, Poll, Token, Waker,
    event::Event,
    net::{TcpListener, UnixListener},
};
use slab::Slab;
use tidegate_core::Nanos;
use tidegate_listen::{
    descriptors::{self, Connections},
    idle::LongestIdle,
    sleepers::Sleepers,
    socket::Listener,
};
use tokio::{runtime::Handle, sync::mpsc};

use self::accepting::Accept;
use crate::{
    RespStats, Shared,
    batch::{Answered, UnderWay},
    connection::{BUFFER, Connection, READ, Turn, TurnContext},
    gather::{Gather, PAUSE},
    socket::Listening,
};

mod accepting;

const LISTENER: Token = Token(usize::MAX);
const CONTROL: Token = Token(usize::MAX - 1);
const SLEEPERS: Token = Token(usize::MAX - 2);
const EVENTS: usize = 1024;
/// How often timeouts are checked and a failed `accept` is retried.
const TICK: Duration = Duration::from_secs(1);
/// The least share of a turn. With a smaller one, reading and writing would take longer than the
/// commands.
const LEAST_SHARE: usize = 4 * 1024;
/// The share when the server stops: what a client has sent by then is answered.
const LAST_SHARE: usize = 4 * READ;

/// Normal operation.
const SERVE: u8 = 0;
/// Accept no further connections or commands, and send the pending replies.
const DRAIN: u8 = 1;
/// Stop immediately.
const ABORT: u8 = 2;

#[derive(Debug)]
struct Control {
    state: AtomicU8,
    wakers: Vec<Waker>,
    /// How many idle connections must be closed, because the process has no free descriptor.
    closing: AtomicUsize,
    stats: Arc<RespStats>,
}

/// The running threads.
pub struct Reactors {
    control: Arc<Control>,
    /// Every thread holds a sender. When all threads have ended, `recv` returns.
    running: mpsc::Receiver<()>,
}

impl Reactors {
    /// Ends the threads once every request is answered and sent.
    pub fn drain(&self) {
        self.control.set(DRAIN);
    }

    /// Ends the threads now.
    pub fn abort(&self) {
        self.control.set(ABORT);
    }

    /// Waits until all threads have ended.
    pub async fn ended(&mut self) {
        let _ = self.running.recv().await;
    }
}

impl Control {
    fn set(&self, state: u8) {
        // Release, so that a thread that sees the new state also sees what happened before. The
        // state never goes back.
        self.state.fetch_max(state, Ordering::Release);
        (0..self.wakers.len()).for_each(|thread| self.wake(thread));
    }

    fn wake(&self, thread: usize) {
        if let Err(error) = self.wakers[thread].wake() {
            tracing::warn!(%error, "cannot wake a listener thread; it will notice the change within a second");
        }
    }
}

impl Connections for Control {
    fn open(&self) -> usize {
        self.stats.connections.open.load(Ordering::Relaxed)
    }

    fn close_idle(&self, most: usize) -> bool {
        // Relaxed: a thread that misses it is woken for it.
        self.closing.store(most, Ordering::Relaxed);
        (0..self.wakers.len()).for_each(|thread| self.wake(thread));
        self.open() > 0
    }
}

/// Starts the listener's threads.
///
/// # Errors
/// When the system refuses threads or descriptors.
pub fn start(listener: Listener, shared: &Arc<Shared>) -> io::Result<Reactors> {
    let listener = listener_of(listener)?;
    let mut polls = Vec::new();
    let mut wakers = Vec::new();
    for _ in 0..shared.config.threads.max(1) {
        let poll = Poll::new()?;
        wakers.push(Waker::new(poll.registry(), CONTROL)?);
        let mut listener = listener()?;
        poll.registry()
            .register(&mut listener, LISTENER, Interest::READABLE)?;
        polls.push((poll, listener));
    }
    let (closing, stats) = (AtomicUsize::new(0), Arc::clone(&shared.stats));
    let control = Arc::new(Control {
        state: AtomicU8::new(SERVE),
        wakers,
        closing,
        stats,
    });
    shared.descriptors.add(&control);
    let (sender, running) = mpsc::channel(1);
    for (at, (poll, listener)) in polls.into_iter().enumerate() {
        let reactor = Reactor::new(at, poll, listener, shared, &control);
        let sender = sender.clone();
        thread::Builder::new()
            .name(format!("tidegate-resp-{at}"))
            .spawn(move || {
                reactor.run();
                drop(sender);
            })?;
    }
    Ok(Reactors { control, running })
}

/// Makes the listener of each thread.
fn listener_of(listener: Listener) -> io::Result<Box<dyn Fn() -> io::Result<Listening>>> {
    Ok(match listener {
        Listener::Tcp(listener) => {
            let listener = listener.into_std()?;
            Box::new(move || Ok(Listening::Tcp(TcpListener::from_std(listener.try_clone()?))))
        }
        Listener::Unix(file, listener) => {
            let (file, listener) = (file.map(Arc::new), listener.into_std()?);
            Box::new(move || {
                let listener = UnixListener::from_std(listener.try_clone()?);
                Ok(Listening::Unix {
                    _file: file.clone(),
                    listener,
                })
            })
        }
    })
}

/// The sleepers of a thread, whose descriptor this poll has.
#[cfg(target_os = "linux")]
fn sleepers_in(poll: &Poll) -> io::Result<Sleepers> {
    use std::os::fd::AsRawFd as _;
    let sleepers = Sleepers::new()?;
    let mut descriptor = mio::unix::SourceFd(&sleepers.as_raw_fd());
    poll.registry()
        .register(&mut descriptor, SLEEPERS, Interest::READABLE)?;
    Ok(sleepers)
}

#[cfg(not(target_os = "linux"))]
fn sleepers_in(_poll: &Poll) -> io::Result<Sleepers> {
    Sleepers::new()
}

/// How many bytes of commands each busy connection may send in a turn, if there are `busy` of them.
/// A client that pipelines without end fills a turn with its share, and the others wait for all
/// shares.
fn share(busy: usize) -> usize {
    (READ / busy.max(1)).max(LEAST_SHARE)
}

struct Reactor {
    poll: Poll,
    /// `None` once the server no longer accepts connections.
    listener: Option<Listening>,
    /// When to call `accept` again without a new event.
    accept: Accept,
    connections: Slab<Connection>,
    buffer: Box<[u8]>,
    /// Connections that have more to read without a new event, each once (`Connection::queued`).
    unread: Vec<usize>,
    /// Connections whose handshake can continue, each once. One continues in each turn: it costs
    /// more than hundreds of commands, and other clients wait for replies.
    beginning: VecDeque<usize>,
    /// Connections that have something to send.
    unsent: Vec<usize>,
    gather: Gather,
    /// Connections whose replies are held back: until when, their slot and their number.
    held: Vec<(Nanos, usize, u64)>,
    longest_idle: LongestIdle,
    /// The number of commands answered in this turn.
    answered: Cell<u64>,
    /// How many bytes each connection may send in this turn.
    share: usize,
    /// The questions that the shared store has not answered yet.
    under_way: UnderWay,
    /// Callers in line that began to wait in this thread; `None` if another thread wakes them.
    sleepers: Option<Arc<Sleepers>>,
    shared: Arc<Shared>,
    control: Arc<Control>,
}

impl Reactor {
    fn new(
        thread: usize,
        poll: Poll,
        listener: Listening,
        shared: &Arc<Shared>,
        control: &Arc<Control>,
    ) -> Self {
        let wakes = Arc::clone(control);
        Self {
            under_way: UnderWay::new(move || wakes.wake(thread)),
            poll,
            listener: Some(listener),
            accept: Accept::OnEvent,
            connections: Slab::new(),
            buffer: vec![0; BUFFER].into_boxed_slice(),
            unread: Vec::new(),
            beginning: VecDeque::new(),
            unsent: Vec::new(),
            gather: Gather::default(),
            held: Vec::new(),
            longest_idle: LongestIdle::default(),
            answered: Cell::new(0),
            share: READ,
            sleepers: None,
            shared: Arc::clone(shared),
            control: Arc::clone(control),
        }
    }

    fn run(mut self) {
        match sleepers_in(&self.poll) {
            Ok(sleepers) => self.sleepers = Some(Arc::new(sleepers)),
            Err(error) => tracing::debug!(%error, "another thread wakes callers in line"),
        }
        let _entered = self.sleepers.as_ref().map(Sleepers::enter);
        let mut events = Events::with_capacity(EVENTS);
        let mut next_tick = self.shared.service.now();
        loop {
            let waits = self.unread.is_empty()
                && self.beginning.is_empty()
                && self.accept != Accept::NextTurn;
            // Last, because from here on an answer must wake the thread.
            let waits = waits && self.under_way.may_wait();
            let timeout = if waits {
                self.until_release()
            } else {
                Duration::ZERO
            };
            if let Err(error) = self.poll.poll(&mut events, Some(timeout))
                && error.kind() != io::ErrorKind::Interrupted
            {
                tracing::error!(%error, "the RESP listener cannot poll its sockets and stops");
                return;
            }
            self.under_way.waited();
            let began = self.shared.service.now();
            self.turn(&events);
            match self.control.state.load(Ordering::Acquire) {
                SERVE => {}
                DRAIN => self.drain(),
                _ => return,
            }
            if self.listener.is_none() && self.connections.is_empty() {
                return;
            }
            let now = self.shared.service.now();
            let answered = self.answered.take();
            if answered > 0 {
                self.shared
                    .stats
                    .latency
                    .observe(now.saturating_since(began), answered);
            }
            if !self.held.is_empty() {
                self.release(now);
            }
            // Read first: a swap in each turn would cost more.
            if self.control.closing.load(Ordering::Relaxed) > 0 {
                for _ in 0..self.control.closing.swap(0, Ordering::Relaxed) {
                    self.evict();
                }
            }
            if now >= next_tick {
                next_tick = now.saturating_add(TICK.into());
                self.close_overdue();
                if self.accept == Accept::NextTick {
                    self.accept();
                }
            }
            // While questions are on their way to the store, or commands wait for their turn,
            // requests gather anyway.
            if !self.under_way.asks_the_store() && self.gather.pays(now) && self.unread.is_empty() {
                // Returning early or late does no harm.
                thread::park_timeout(PAUSE);
            }
        }
    }

    /// Reads and decides for all ready connections, and only then writes. Connections that used up
    /// their share in the turn before come last, and the replies to all others are sent before: a
    /// client that asks one thing at a time does not wait for pipelines.
    fn turn(&mut self, events: &Events) {
        let busy = events.iter().count() + self.unread.len();
        self.share = if self.listener.is_some() {
            share(busy)
        } else {
            LAST_SHARE
        };
        let earlier = std::mem::take(&mut self.unread);
        if matches!(self.accept, Accept::NextTurn | Accept::Soon) {
            self.accept();
        }
        for event in events {
            match event.token() {
                LISTENER => self.accept(),
                // Answers, or another state. Each turn looks for both.
                CONTROL => {}
                SLEEPERS => {
                    if let Some(sleepers) = &self.sleepers {
                        sleepers.wake_due(self.shared.service.now());
                    }
                }
                Token(at) => self.on_event(at, event),
            }
        }
        if !earlier.is_empty() {
            self.flush_all();
        }
        let handshake = self.beginning.pop_front();
        for at in handshake.into_iter().chain(earlier) {
            if let Some(connection) = self.connections.get_mut(at) {
                connection.queued = false;
                self.read(at, true);
            }
        }
        if !self.under_way.is_empty() {
            self.deliver();
        }
        self.flush_all();
    }

    /// Lists a connection to be read in the next turn without a new event. Listed twice, it would
    /// get two shares, and then four.
    fn queue(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if !connection.queued {
            connection.queued = true;
            if connection.is_beginning() {
                self.beginning.push_back(at);
            } else {
                self.unread.push(at);
            }
        }
    }

    fn flush_all(&mut self) {
        for at in std::mem::take(&mut self.unsent) {
            self.flush(at);
        }
    }

    fn on_event(&mut self, at: usize, event: &Event) {
        let Some(connection) = self.connections.get(at) else {
            return;
        };
        if connection.in_line.is_some() && (event.is_read_closed() || event.is_error()) {
            // The connection is not read while its command waits, so no read would find it.
            return self.remove(at);
        }
        // A read or write finds errors itself. The slot may belong to another connection since the
        // event.
        if connection.blocked {
            // Registered only for writing: either there is space now, or the write will report that
            // the peer has disconnected.
            self.list(at);
        } else if connection.is_beginning() {
            self.queue(at);
        } else if !connection.queued {
            self.read(at, event.is_read_closed() || event.is_error());
        }
    }

    /// The timeout for polling the sockets.
    fn until_release(&self) -> Duration {
        let tick = if self.accept == Accept::Soon {
            descriptors::PAUSE
        } else {
            TICK
        };
        let Some((next, ..)) = self.held.iter().min() else {
            return tick;
        };
        // At least a millisecond, the resolution of a poll; otherwise a clock that stands still
        // would cause a busy loop.
        let left: Duration = next.saturating_since(self.shared.service.now()).into();
        left.clamp(Duration::from_millis(1), tick)
    }

    /// Sends replies whose hold is over.
    fn release(&mut self, now: Nanos) {
        for (_, at, id) in self
            .held
            .extract_if(.., |(until, ..)| *until <= now)
            .collect::<Vec<_>>()
        {
            let Some(connection) = self
                .connections
                .get_mut(at)
                .filter(|connection| connection.session.id == id)
            else {
                continue;
            };
            connection.session.held_until = None;
            connection.listed = false;
            self.list(at);
            // Input that has arrived since, or waits in memory, may cause no further event.
            self.queue(at);
        }
    }

    fn read(&mut self, at: usize, closed: bool) {
        let Some(connection) = self.connections.get_mut(at) else {
            return;
        };
        let is_beginning = connection.is_beginning();
        self.gather.saw(at);
        let limits = self.shared.service.limits();
        let now = self.shared.service.now();
        let (answered, share) = (&self.answered, self.share);
        let context = TurnContext {
            shared: &self.shared,
            limits: &limits,
            now,
            answered,
            share,
        };
        match connection.read(&mut self.buffer, context, closed) {
            Turn::Done => {}
            Turn::More => self.queue(at),
            Turn::Gone => {
                if is_beginning {
                    self.shared
                        .stats
                        .connections
                        .handshakes_failed
                        .fetch_add(1, Ordering::Relaxed);
                }
                return self.remove(at);
            }
        }
        let connection = &mut self.connections[at];
        if let Some((batch, session)) = connection.ask(now) {
            let asked = (at, session);
            let in_line = self.under_way.add(batch, asked, &self.shared.service);
            if in_line.is_some() && !connection.blocked {
                // The client may have gone before: another event says so.
                let stream = connection.stream.stream();
                let again = self.poll.registry();
                let again = again.reregister(stream, Token(at), Interest::READABLE);
                if let Err(error) = again {
                    tracing::debug!(%error, "a client that goes away keeps its place in line");
                }
            }
            connection.in_line = in_line;
        }
        if connection.has_output() || connection.is_closing() {
            self.list(at);
        }
    }

    /// Sends questions to the shared store, and hands its replies to the connections that asked.
    fn deliver(&mut self) {
        let shared = Arc::clone(&self.shared);
        // For the timers of deadlines.
        let _within = shared.runtime.as_ref().map(Handle::enter);
        // The questions of all connections in this turn leave together.
        let _together = shared.service.store().map(|shared| shared.store().gather());
        while let Some(answered) = self.under_way.next(&shared.service) {
            self.hand_over(&answered);
        }
    }

    fn hand_over(&mut self, answered: &Answered) {
        let at = answered.at;
        let Some(connection) = self.connections.get_mut(at) else {
            return;
        };
        let replies = answered.replies.as_deref();
        let Some((asked, questions)) =
            connection.answered(answered.id, replies.unwrap_or_default())
        else {
            return;
        };
        if !answered.was_in_line {
            let took = self.shared.service.now().saturating_since(asked);
            self.shared.stats.latency.observe(took, questions);
        }
        if replies.is_none() {
            // The runtime is shutting down, or the future panicked, which the panic hook has
            // reported.
            return self.remove(at);
        }
        let has_more = connection.has_more();
        self.list(at);
        if self.listener.is_none() {
            self.wind_up(at);
        } else if has_more {
            self.queue(at);
        }
    }

    /// Marks a connection to be flushed at the end of the turn.
    fn list(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if !connection.listed {
            connection.listed = true;
            self.unsent.push(at);
        }
    }

    fn flush(&mut self, at: usize) {
        let Some(connection) = self.connections.get_mut(at) else {
            return;
        };
        if let Some(until) = connection.session.held_until {
            // It stays listed until then, so that nothing else sends its output.
            let held = (until, at, connection.session.id);
            if !self.held.contains(&held) {
                self.held.push(held);
            }
            return;
        }
        connection.listed = false;
        match connection.flush() {
            Ok(true) if connection.is_closing() => {
                let mut stream = self.take(at).stream;
                // Closing a socket with unread bytes resets the connection and loses the last
                // reply.
                let _ = stream
                    .finish()
                    .and_then(|()| stream.stream().read(&mut self.buffer));
            }
            Ok(true) if connection.blocked => {
                connection.blocked = false;
                self.reregister(at, Interest::READABLE);
            }
            // The output has room again. Commands may wait in memory, or in a socket that was not
            // read because the output was full, without an event to announce them.
            Ok(true) if connection.has_more() && !connection.asking => self.queue(at),
            Ok(true) => {}
            Ok(false) if connection.blocked => {}
            Ok(false) => {
                connection.blocked = true;
                self.reregister(at, Interest::WRITABLE);
            }
            Err(_) => self.remove(at),
        }
    }

    fn reregister(&mut self, at: usize, interest: Interest) {
        let connection = &mut self.connections[at];
        if self
            .poll
            .registry()
            .reregister(connection.stream.stream(), Token(at), interest)
            .is_err()
        {
            self.remove(at);
        } else if interest == Interest::READABLE {
            // Input that has arrived since, or waits in memory, may cause no further event.
            self.queue(at);
        }
    }

    /// Answers what has already arrived, and accepts nothing new.
    fn drain(&mut self) {
        if self.listener.take().is_none() {
            return;
        }
        self.share = LAST_SHARE;
        let open: Vec<usize> = self.connections.iter().map(|(at, _)| at).collect();
        for at in open {
            self.wind_up(at);
        }
        if !self.under_way.is_empty() {
            self.deliver();
        }
        for at in std::mem::take(&mut self.unread)
            .into_iter()
            .chain(std::mem::take(&mut self.beginning))
        {
            if let Some(connection) = self.connections.get_mut(at) {
                connection.queued = false;
            }
        }
        self.flush_all();
    }

    /// Answers what a connection has sent. Once all replies are sent, the connection ends.
    fn wind_up(&mut self, at: usize) {
        if !self.connections[at].blocked {
            self.read(at, true);
        }
        if let Some(connection) = self.connections.get_mut(at)
            && !connection.asking
        {
            connection.closing = true;
            self.list(at);
        }
    }

    fn close_overdue(&mut self) {
        let now = self.shared.service.now();
        let idle_timeout = self.shared.config.idle_timeout;
        let overdue: Vec<usize> = self
            .connections
            .iter_mut()
            .filter_map(|(at, connection)| connection.is_overdue(idle_timeout, now).then_some(at))
            .collect();
        for at in overdue {
            self.shared.stats.timeouts.fetch_add(1, Ordering::Relaxed);
            self.remove(at);
        }
    }

    fn take(&mut self, at: usize) -> Connection {
        self.shared
            .stats
            .connections
            .open
            .fetch_sub(1, Ordering::Relaxed);
        let mut connection = self.connections.remove(at);
        if let Some(in_line) = connection.in_line.take() {
            in_line.abort();
        }
        // Closing the descriptor removes it from the poll; this frees mio's own record of it.
        let _ = self.poll.registry().deregister(connection.stream.stream());
        connection
    }

    fn remove(&mut self, at: usize) {
        drop(self.take(at));
    }
}

#[cfg(test)]
mod tests;
