//! What a client has told about itself, and what a command is and has at hand.

use std::{net::SocketAddr, sync::atomic::Ordering};

use tidegate_core::Nanos;

use super::{Protocol, Shared, reply::Replies};
use crate::{limits::Limits, shared::Question};

/// What a client has told about itself.
pub(super) struct Session {
    pub id: u64,
    pub peer: SocketAddr,
    pub protocol: Protocol,
    pub authenticated: bool,
    pub name: Vec<u8>,
    /// Wrong passwords in a row.
    pub auth_failures: u32,
    /// Until then nothing is sent and no command runs: the price of a wrong password.
    pub held_until: Option<Nanos>,
}

/// Whether the connection goes on after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Close,
}

/// One command: how it is called, and what runs it.
pub(super) struct Command {
    /// In lower case.
    pub name: &'static str,
    /// The least and the most arguments behind the name.
    pub args: (usize, usize),
    /// Whether a client may send it before `AUTH`.
    pub before_auth: bool,
    /// Which argument is a key in the eyes of a client that routes by keys; 0 for none.
    pub key: usize,
    pub usage: &'static str,
    pub summary: &'static str,
    pub run: fn(&mut Context<'_>, &[&[u8]]) -> Flow,
}

/// The command of this name, in any case.
#[inline]
pub(super) fn find(commands: &'static [Command], name: &[u8]) -> Option<&'static Command> {
    commands.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// What a command has at hand.
pub(super) struct Context<'a> {
    pub shared: &'a Shared,
    pub limits: &'a Limits,
    pub now: Nanos,
    /// All commands, for those that describe them.
    pub commands: &'static [Command],
    pub session: &'a mut Session,
    pub out: &'a mut Vec<u8>,
    /// What the shared store is to be asked, each with its place in `out`.
    pub questions: &'a mut Vec<(usize, Question)>,
}

impl Context<'_> {
    /// Answers that a command has too few or too many arguments.
    #[cold]
    pub fn wrong_number(&mut self, name: &str) {
        self.replies().error(&format!("ERR wrong number of arguments for '{name}' command"));
    }

    /// Leaves the reply to the store.
    pub fn ask(&mut self, question: Question) {
        // Before the first there is nothing between questions: `out` is the connection's own output still.
        let place = if self.questions.is_empty() { 0 } else { self.out.len() };
        self.questions.push((place, question));
    }

    pub fn replies(&mut self) -> Replies<'_> {
        Replies { out: self.out, protocol: self.session.protocol }
    }
}

impl Session {
    pub fn new(shared: &Shared, peer: SocketAddr) -> Self {
        Self {
            id: 1 + shared.stats.next_id.fetch_add(1, Ordering::Relaxed),
            peer,
            protocol: Protocol::Resp2,
            authenticated: shared.config.password.is_none(),
            name: Vec::new(),
            auth_failures: 0,
            held_until: None,
        }
    }

    /// Back to how a connection begins.
    pub fn reset(&mut self, shared: &Shared) {
        self.protocol = Protocol::Resp2;
        self.authenticated = shared.config.password.is_none();
        self.name = Vec::new();
    }
}
