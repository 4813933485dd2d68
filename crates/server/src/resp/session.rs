//! What a client has told about itself, and what a command is and has at hand.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use subtle::ConstantTimeEq as _;
use tidegate_core::Nanos;

use super::{Protocol, Shared, reply::Replies};
use crate::{
    access::{Digest, Rights, Role, Shown, digest_of},
    limits::{Limit, Limits},
    peers::Peer,
    shared::Question,
};

/// What a client has told about itself.
pub(super) struct Session {
    pub id: u64,
    pub peer: SocketAddr,
    /// Its place among the connections of its client, until it ends.
    _of_peer: Option<Peer>,
    pub protocol: Protocol,
    /// What it may do; `None` before it has shown who it is.
    rights: Option<Arc<Rights>>,
    shown: Credential,
    /// The names in its certificate.
    certificate: Option<Arc<[String]>>,
    /// Which load of the access file the rights come from.
    generation: u64,
    pub name: Vec<u8>,
    /// Wrong passwords in a row.
    pub auth_failures: u32,
    /// Until then nothing is sent and no command runs: the price of a wrong password.
    pub held_until: Option<Nanos>,
}

/// What a client gave with `AUTH`.
#[derive(Debug, Default)]
enum Credential {
    #[default]
    Nothing,
    /// The listener's own password.
    Password,
    /// A token, perhaps with a name.
    Token(Option<Box<[u8]>>, Digest),
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
    /// What a client must be allowed to do.
    pub needs: Needs,
    /// Which argument is a key in the eyes of a client that routes by keys; 0 for none.
    pub key: usize,
    pub usage: &'static str,
    pub summary: &'static str,
    pub run: fn(&mut Context<'_>, &[&[u8]]) -> Flow,
}

/// What a client must be allowed to do for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// Nothing, not even to have shown who it is.
    Nothing,
    /// Anything: it must have shown who it is.
    AnyRight,
    /// This, with the limit that the first argument names.
    OnLimit(Role),
    /// This, with `CL.THROTTLE`, which is named like a limit.
    OnThrottle(Role),
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
    /// Answers that the client may not do this.
    #[cold]
    pub fn not_permitted(&mut self, what: &str) {
        let name = self.session.rights().map_or("default", |rights| &*rights.name).to_owned();
        self.replies().error(&format!("NOPERM User {name} has no permissions to {what}"));
    }

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

    /// Whether a question about this key of a limit waits for the store.
    pub fn asks_about(&self, limit: &Arc<Limit>, key: &[u8]) -> bool {
        self.questions.iter().any(|(_, question)| question.is_about() == (Arc::as_ptr(limit) as usize, key))
    }

    pub fn replies(&mut self) -> Replies<'_> {
        Replies { out: self.out, protocol: self.session.protocol }
    }
}

impl Session {
    pub fn new(shared: &Shared, peer: SocketAddr, of_peer: Option<Peer>) -> Self {
        let mut session = Self {
            id: 1 + shared.stats.next_id.fetch_add(1, Ordering::Relaxed),
            peer,
            _of_peer: of_peer,
            protocol: Protocol::Resp2,
            rights: None,
            shown: Credential::Nothing,
            certificate: None,
            generation: shared.door.access().generation(),
            name: Vec::new(),
            auth_failures: 0,
            held_until: None,
        };
        session.look_up(shared);
        session
    }

    /// Back to how a connection begins.
    pub fn reset(&mut self, shared: &Shared) {
        self.protocol = Protocol::Resp2;
        self.name = Vec::new();
        self.shown = Credential::Nothing;
        self.look_up(shared);
    }

    /// The client has ended its handshake, with a certificate of these names or without one.
    pub fn meet(&mut self, certificate: Option<Arc<[String]>>, shared: &Shared) {
        if certificate.is_some() {
            self.certificate = certificate;
            self.look_up(shared);
        }
    }

    /// Takes note of a change of the access file: whoever has left it loses its rights.
    #[inline]
    pub fn refresh(&mut self, shared: &Shared) {
        let generation = shared.door.access().generation();
        if generation != self.generation {
            self.generation = generation;
            self.look_up(shared);
        }
    }

    fn look_up(&mut self, shared: &Shared) {
        let has_password = shared.config.password.is_some();
        let shown = match (&self.shown, &self.certificate) {
            (Credential::Password, _) => {
                self.rights = Some(Arc::new(Rights::all("default")));
                return;
            }
            (Credential::Token(user, token), _) => Shown::Token(user.as_deref(), token),
            (Credential::Nothing, Some(names)) => Shown::Certificate(names),
            (Credential::Nothing, None) if has_password => {
                self.rights = None;
                return;
            }
            (Credential::Nothing, None) => Shown::Nothing,
        };
        self.rights = shared.door.rights(shown).ok();
    }

    /// Lets the client in as what it says it is; whether that is true.
    pub fn log_in(&mut self, user: &[u8], password: &[u8], shared: &Shared) -> bool {
        let given = digest_of(password);
        let is_default = user == b"default";
        match &shared.config.password {
            Some(expected) if is_default && bool::from(digest_of(expected.as_bytes()).ct_eq(&given)) => {
                self.shown = Credential::Password;
                self.look_up(shared);
                return true;
            }
            // As Redis' default user has it that needs no password.
            None if is_default && !shared.door.access().asks_for_something() => return true,
            _ => {}
        }
        let user = (!is_default).then_some(user);
        if shared.door.access().path().is_none() || shared.door.rights(Shown::Token(user, &given)).is_err() {
            return false;
        }
        self.shown = Credential::Token(user.map(Into::into), given);
        self.look_up(shared);
        true
    }

    /// What the client may do; `None` before it has shown who it is.
    #[inline]
    pub fn rights(&self) -> Option<&Rights> {
        self.rights.as_deref()
    }
}
