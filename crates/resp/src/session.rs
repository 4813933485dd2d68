//! The state of a client's session, and what a command is and can use.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
};

use subtle::ConstantTimeEq as _;
use tidegate_core::Nanos;
use tidegate_listen::{
    access::{Rights, Role, Shown},
    peers::Peer,
};
use tidegate_service::{
    decide::limits::{Limit, Limits},
    digest::{Digest, digest_of},
};

use crate::{
    Protocol, Shared,
    question::Question,
    queued::{Queued, Transaction},
    reply::Replies,
};

/// The state of a client's session.
pub(super) struct Session {
    pub id: u64,
    pub peer: SocketAddr,
    /// Its slot among the connections of its client.
    _of_peer: Option<Peer>,
    pub protocol: Protocol,
    /// Its rights; `None` before it has authenticated.
    pub rights: Option<Arc<Rights>>,
    shown: Credential,
    /// The names in its certificate.
    certificate: Option<Arc<[String]>>,
    /// The load of the access file from which the rights come.
    generation: u64,
    pub name: Vec<u8>,
    /// The number of consecutive wrong passwords.
    pub auth_failures: u32,
    /// The commands since `MULTI`.
    pub transaction: Option<Box<Transaction>>,
    /// Until then nothing is sent and no command runs: the delay after a wrong password.
    pub held_until: Option<Nanos>,
}

/// The credential that a client gave with `AUTH`.
#[derive(Debug, Default)]
enum Credential {
    #[default]
    Nothing,
    /// The listener's own password.
    Password,
    /// A token, with a name if one was given.
    Token(Option<Box<[u8]>>, Digest),
}

/// A command: its syntax and its function.
pub(super) struct Command {
    /// In lower case.
    pub name: &'static str,
    /// The minimum and maximum number of arguments after the name.
    pub args: (usize, usize),
    /// The right that a client needs.
    pub needs: Needs,
    /// Which argument is the key for a client that routes by keys; 0 for none.
    pub key: usize,
    pub usage: &'static str,
    pub summary: &'static str,
    pub run: fn(&mut Context<'_>, &[&[u8]]),
}

/// The right that a client needs for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// None, not even authentication.
    Nothing,
    /// Any right: the client must have authenticated.
    AnyRight,
    /// This role on the limit in the first argument.
    OnLimit(Role),
    /// This role on the limit in front of the colon in the first argument.
    OnLimitOfKey(Role),
    /// This role on `CL.THROTTLE`, which access rules name like a limit.
    OnThrottle(Role),
}

impl Needs {
    /// The limit that a command names in these arguments.
    pub fn limit<'k>(self, args: &[&'k [u8]]) -> Option<&'k [u8]> {
        match self {
            Self::OnLimit(_) => Some(args[0]),
            Self::OnLimitOfKey(_) => args[0].split(|byte| *byte == b':').next(),
            Self::Nothing | Self::AnyRight | Self::OnThrottle(_) => None,
        }
    }
}

/// Finds a command by name, ignoring case.
#[inline]
pub(super) fn find(commands: &'static [Command], name: &[u8]) -> Option<&'static Command> {
    commands
        .iter()
        .find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

/// The data that a command can use.
pub(super) struct Context<'a> {
    pub shared: &'a Shared,
    pub limits: &'a Limits,
    pub now: Nanos,
    /// All commands, for the commands that describe them.
    pub commands: &'static [Command],
    pub session: &'a mut Session,
    pub out: &'a mut Vec<u8>,
    /// Questions for the shared store, each with its position in `out`.
    pub questions: &'a mut Vec<(usize, Question)>,
    /// Whether this is a command of a transaction, which does not wait.
    pub in_transaction: bool,
    /// Whether the command must run again once the store has answered the questions before it.
    pub runs_again: bool,
    /// Commands to run after this one: those of a transaction.
    pub runs_next: Vec<Queued>,
    /// Whether the connection ends after this command.
    pub closes: bool,
}

impl Context<'_> {
    /// Replies with an error.
    #[cold]
    pub fn error(&mut self, text: &str) {
        self.replies().error(text);
    }

    /// Replies that the client lacks permission.
    #[cold]
    pub fn not_permitted(&mut self, what: &str) {
        let name = self
            .session
            .rights()
            .map_or("default", |rights| &*rights.name)
            .to_owned();
        self.error(&format!("NOPERM User {name} has no permissions to {what}"));
    }

    /// Replies that the number of arguments is wrong, and how the command is used.
    #[cold]
    pub fn wrong_number(&mut self, name: &str, usage: &str) {
        let used = format!("{} {usage}", name.to_uppercase().replace('|', " "));
        self.error(&format!(
            "ERR wrong number of arguments for '{name}' command; usage: {}",
            used.trim_end()
        ));
    }

    /// A command was refused: if a transaction was begun, `EXEC` runs nothing.
    #[cold]
    pub fn void_transaction(&mut self) {
        if let Some(transaction) = &mut self.session.transaction {
            transaction.make_void();
        }
    }

    /// Leaves the reply to the store.
    pub fn ask(&mut self, question: Question) {
        // Before the first question `out` is still the connection's own output.
        let place = if self.questions.is_empty() {
            0
        } else {
            self.out.len()
        };
        self.questions.push((place, question));
    }

    /// Whether a question about this key of a limit waits for the store.
    pub fn asks_about(&self, limit: &Arc<Limit>, key: &[u8]) -> bool {
        self.questions
            .iter()
            .any(|(_, question)| question.is_about() == (Arc::as_ptr(limit) as usize, key))
    }

    pub fn replies(&mut self) -> Replies<'_> {
        Replies {
            out: self.out,
            protocol: self.session.protocol,
        }
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
            generation: shared.door.access.generation(),
            name: Vec::new(),
            auth_failures: 0,
            transaction: None,
            held_until: None,
        };
        session.look_up(shared);
        session
    }

    /// Resets the session to its initial state.
    pub fn reset(&mut self, shared: &Shared) {
        self.protocol = Protocol::Resp2;
        self.name = Vec::new();
        self.transaction = None;
        self.shown = Credential::Nothing;
        self.look_up(shared);
    }

    /// Called when the client has completed its handshake, with the names in its certificate, if
    /// any.
    pub fn meet(&mut self, certificate: Option<Arc<[String]>>, shared: &Shared) {
        if certificate.is_some() {
            self.certificate = certificate;
            self.look_up(shared);
        }
    }

    /// Applies a change of the access file: a client that was removed loses its rights.
    #[inline]
    pub fn refresh(&mut self, shared: &Shared) {
        let generation = shared.door.access.generation();
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

    /// Logs the client in. Returns whether the credentials are right.
    pub fn log_in(&mut self, user: &[u8], password: &[u8], shared: &Shared) -> bool {
        let given = digest_of(password);
        let is_default = user == b"default";
        match &shared.config.password {
            Some(expected)
                if is_default && bool::from(digest_of(expected.as_bytes()).ct_eq(&given)) =>
            {
                self.shown = Credential::Password;
                self.look_up(shared);
                return true;
            }
            // As for Redis's default user without a password.
            None if is_default && !shared.door.access.asks_for_something() => return true,
            _ => {}
        }
        let user = (!is_default).then_some(user);
        if shared.door.access.path.is_none()
            || shared.door.rights(Shown::Token(user, &given)).is_err()
        {
            return false;
        }
        self.shown = Credential::Token(user.map(Into::into), given);
        self.look_up(shared);
        true
    }

    /// The client's rights; `None` before it has authenticated.
    #[inline]
    pub fn rights(&self) -> Option<&Rights> {
        self.rights.as_deref()
    }
}
