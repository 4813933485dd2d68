//! One connection: unanswered input, unsent output, and the bounds of both.

use std::{
    cell::Cell,
    io::{self, Read as _, Write as _},
    mem,
    sync::atomic::Ordering,
};

use futures_util::future::AbortHandle;
use tidegate_core::Nanos;
use tidegate_listen::tls::HANDSHAKE_TIME;
use tidegate_service::decide::limits::Limits;

use crate::{
    MAX_FRAME, Shared,
    batch::Batch,
    commands::{COMMANDS, run},
    parse::{Ahead, ProtocolError},
    queued::Queued,
    reply::Replies,
    session::{Context, Session},
    socket::Socket,
};

/// How much is read from a socket at a time.
pub(super) const READ: usize = 64 * 1024;
/// The size of the read buffer that all connections of a reactor share: one read, after an
/// unfinished frame.
pub(super) const BUFFER: usize = READ + MAX_FRAME;
/// The size of unsent output at which a connection runs no further command.
pub(super) const OUTPUT_FULL: usize = 256 * 1024;
/// An output buffer larger than this is freed when it is empty.
const OUTPUT_KEPT: usize = 4 * 1024;
/// How long a frame may stay unfinished, or a reply unsent.
const STUCK: Nanos = Nanos::from_secs(30);

/// A client behind a non-blocking stream.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is an independent fact; most combinations occur"
)]
pub(super) struct Connection {
    pub stream: Socket,
    pub session: Session,
    /// An unfinished frame, or frames that wait until output is sent.
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Questions to the shared store, and the replies after them.
    batch: Batch,
    /// The store is being asked. No command runs until it has replied.
    pub asking: bool,
    /// The command that waits in line, if one does.
    pub in_line: Option<AbortHandle>,
    /// When the store was asked, and with how many questions.
    asked: (Nanos, u64),
    /// Complete frames in `input` wait until output is sent or the store has replied.
    waiting: bool,
    /// The socket may have more to read without a further event: it was not read at the last event,
    /// or not emptied.
    unread: bool,
    /// To be closed once the output is sent. No further command runs.
    pub closing: bool,
    /// The handshake is over, and the client's rights were looked up.
    met: bool,
    /// Registered for writing instead of reading.
    pub blocked: bool,
    /// Has output and is in the reactor's list of such connections.
    pub listed: bool,
    /// In the reactor's list of connections to read without an event.
    pub queued: bool,
    last_command: Nanos,
    /// Whether bytes were answered or sent since the last check for a stuck connection.
    moved: bool,
    stuck_since: Option<Nanos>,
}

/// The result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// There is nothing more to read now.
    Done,
    /// There is more to read, after the other connections.
    More,
    /// The peer has disconnected.
    Gone,
}

/// The rest of a command that ran.
struct Ran {
    /// It must run again after the questions before it.
    again: bool,
    /// The commands of a transaction that follow it.
    next: Vec<Queued>,
}

/// The data that a connection needs to run commands.
#[derive(Clone, Copy)]
pub(super) struct TurnContext<'a> {
    pub shared: &'a Shared,
    pub limits: &'a Limits,
    pub now: Nanos,
    /// How many commands of this turn were answered without the store.
    pub answered: &'a Cell<u64>,
    /// How many bytes may be read in this turn before the other connections get theirs.
    pub share: usize,
}

impl Connection {
    pub fn new(stream: Socket, session: Session, now: Nanos) -> Self {
        Self {
            stream,
            session,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            batch: Batch::default(),
            asking: false,
            in_line: None,
            asked: (now, 0),
            waiting: false,
            unread: false,
            closing: false,
            met: false,
            blocked: false,
            listed: false,
            queued: false,
            last_command: now,
            moved: false,
            stuck_since: None,
        }
    }

    /// Reads from the socket and answers every complete frame; `buffer` is [`BUFFER`] long.
    ///
    /// A read that does not fill the buffer has emptied the socket, unless the peer has closed it,
    /// as `closed` says.
    pub fn read(&mut self, buffer: &mut [u8], context: TurnContext<'_>, closed: bool) -> Turn {
        if self.asking || self.session.held_until.is_some() {
            self.unread = true;
            return Turn::Done;
        }
        self.unread = false;
        self.session.refresh(context.shared);
        if self.waiting {
            let waiting = mem::take(&mut self.input);
            let used = self.answer(&waiting, context);
            self.keep(&waiting[used..]);
        }
        let mut left = context.share;
        while left > 0 {
            if self.closing || self.is_full() || self.is_held() || !self.batch.is_empty() {
                self.unread = true;
                return Turn::Done;
            }
            let held = self.input.len();
            buffer[..held].copy_from_slice(&self.input);
            let most = left.min(READ);
            let read = match self.stream.read(&mut buffer[held..held + most]) {
                Ok(0) => {
                    // A client may close its half and still wait for replies.
                    self.closing = true;
                    return Turn::Done;
                }
                Ok(read) => read,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Turn::Done,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return Turn::Gone,
            };
            if !self.met {
                self.met = true;
                self.session.meet(self.stream.names(), context.shared);
            }
            let data = &buffer[..held + read];
            let used = self.answer(data, context);
            self.keep(&data[used..]);
            left -= read;
            if read < most && !closed {
                return Turn::Done;
            }
        }
        Turn::More
    }

    /// Runs the commands in `data`. Returns how many bytes it has consumed.
    fn answer(&mut self, data: &[u8], context: TurnContext<'_>) -> usize {
        let stats = &context.shared.stats;
        let mut ahead = Ahead::new();
        let (mut used, mut commands) = (0, 0);
        let questions = self.batch.questions.len();
        let mut runs_again = false;
        while used < data.len() && !self.closing && !self.must_wait() {
            let mut frame = ahead.next();
            if frame.is_none() {
                if let Err(error) = look_ahead(&data[used..], &mut ahead, context) {
                    stats.protocol_errors.fetch_add(1, Ordering::Relaxed);
                    let mut replies = Replies {
                        out: if self.batch.is_empty() {
                            &mut self.output
                        } else {
                            &mut self.batch.between
                        },
                        protocol: self.session.protocol,
                    };
                    replies.error(&format!("ERR {error}"));
                    tracing::debug!(peer = %self.session.peer, %error, "connection closed");
                    self.closing = true;
                    break;
                }
                frame = ahead.next();
            }
            let Some((args, length)) = frame else { break };
            used += length;
            if args.is_empty() {
                continue;
            }
            let ran = self.run(args, context, false);
            if ran.again {
                used -= length;
                runs_again = true;
                break;
            }
            commands += 1;
            for queued in ran.next {
                commands += 1;
                let args: Vec<&[u8]> = queued.iter().map(|arg| &**arg).collect();
                self.run(&args, context, true);
            }
        }
        self.waiting = (runs_again || self.must_wait()) && used < data.len();
        self.moved |= used > 0;
        if commands > 0 {
            stats.commands.fetch_add(commands, Ordering::Relaxed);
            let asked = (self.batch.questions.len() - questions) as u64;
            context
                .answered
                .set(context.answered.get() + commands - asked);
            self.last_command = context.now;
        }
        if self.closing { data.len() } else { used }
    }

    /// Runs a command.
    #[inline]
    fn run(&mut self, args: &[&[u8]], context: TurnContext<'_>, in_transaction: bool) -> Ran {
        let mut context = Context {
            shared: context.shared,
            limits: context.limits,
            now: context.now,
            commands: &COMMANDS,
            session: &mut self.session,
            // Replies after a question wait for its reply.
            out: if self.batch.questions.is_empty() {
                &mut self.output
            } else {
                &mut self.batch.between
            },
            questions: &mut self.batch.questions,
            in_transaction,
            runs_again: false,
            runs_next: Vec::new(),
            closes: false,
        };
        run(&mut context, args);
        let ran = Ran {
            again: context.runs_again,
            next: mem::take(&mut context.runs_next),
        };
        self.closing = context.closes;
        ran
    }

    fn keep(&mut self, rest: &[u8]) {
        if rest.is_empty() && self.input.capacity() > 0 {
            self.input = Vec::new();
        } else {
            self.input.clear();
            self.input.extend_from_slice(rest);
        }
    }

    fn is_full(&self) -> bool {
        self.output.len() - self.sent >= OUTPUT_FULL
    }

    /// Whether no further command may run until output is sent, the store has replied, or a hold is
    /// over.
    fn must_wait(&self) -> bool {
        self.is_full() || self.batch.is_full() || self.is_held()
    }

    fn is_held(&self) -> bool {
        self.session.held_until.is_some()
    }

    /// When the client last completed a command; `None` while the store is being asked.
    pub fn idle_since(&self) -> Option<u64> {
        (!self.asking).then(|| self.last_command.get())
    }

    pub fn has_output(&self) -> bool {
        self.sent < self.output.len() || self.stream.has_unsent()
    }

    /// Whether the handshake is still in progress.
    pub fn is_beginning(&self) -> bool {
        self.stream.is_beginning()
    }

    /// Whether there may be more to do without a further event: commands in memory, or unread bytes
    /// in the socket.
    pub fn has_more(&self) -> bool {
        self.waiting || self.unread
    }

    /// Whether the connection ends once its output is sent.
    pub fn is_closing(&self) -> bool {
        self.closing && !self.asking
    }

    /// The questions for the store. No further command runs until [`answered`](Self::answered) is
    /// called.
    pub fn ask(&mut self, now: Nanos) -> Option<(Batch, &Session)> {
        if self.batch.is_empty() {
            return None;
        }
        self.asking = true;
        self.asked = (now, self.batch.questions.len() as u64);
        Some((mem::take(&mut self.batch), &self.session))
    }

    /// Takes in the replies to the questions of this number. Returns when they were asked and how
    /// many there were, or `None` if another connection asked them.
    pub fn answered(&mut self, id: u64, replies: &[u8]) -> Option<(Nanos, u64)> {
        if !self.asking || self.session.id != id {
            return None;
        }
        self.asking = false;
        self.in_line = None;
        self.moved = true;
        self.output.extend_from_slice(replies);
        Some(self.asked)
    }

    /// Sends as much as the socket takes. Returns whether that was everything.
    ///
    /// # Errors
    /// When the peer has disconnected.
    pub fn flush(&mut self) -> io::Result<bool> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.sent += sent;
                    self.moved = true;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        match self.stream.flush() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            flushed => flushed?,
        }
        self.sent = 0;
        self.output.clear();
        if self.output.capacity() > OUTPUT_KEPT {
            self.output = Vec::new();
        }
        Ok(true)
    }

    /// Whether the connection has been idle for too long, or stuck in a frame or a reply. Called
    /// about once a second.
    pub fn is_overdue(&mut self, idle_timeout: Option<Nanos>, now: Nanos) -> bool {
        if self.is_beginning() {
            return now.saturating_since(self.last_command) >= HANDSHAKE_TIME.into();
        }
        let at_rest = self.input.is_empty() && !self.has_output() && !self.closing;
        // The store has its own deadline.
        if at_rest || self.asking || mem::take(&mut self.moved) {
            self.stuck_since = None;
        } else if now.saturating_since(*self.stuck_since.get_or_insert(now)) >= STUCK {
            return true;
        }
        !self.asking
            && idle_timeout.is_some_and(|most| now.saturating_since(self.last_command) >= most)
    }
}

/// Parses the next commands, and prefetches their states: a pipeline's keys are known in advance,
/// so their memory is fetched in parallel instead of one after another. The states of shared limits
/// are elsewhere.
fn look_ahead<'a>(
    data: &'a [u8],
    ahead: &mut Ahead<'a>,
    context: TurnContext<'_>,
) -> Result<(), ProtocolError> {
    let is_here = context.shared.service.store().is_none();
    ahead.parse(data, |args| {
        if let [name, limit, key, ..] = args
            && is_here
            && name.eq_ignore_ascii_case(b"ACQUIRE")
            && let Some(limit) = context.limits.limit(limit)
        {
            limit.limiter().prefetch(key);
        }
    })
}
