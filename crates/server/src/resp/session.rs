//! One client's standing: which protocol version, whether it may ask at all. Runs one command after the other.

use std::{fmt::Write, net::SocketAddr, sync::atomic::Ordering};

use tidegate_core::Nanos;

use super::{Protocol, Shared, commands, reply::Replies};
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

/// What a command has at hand.
pub(super) struct Context<'a> {
    pub shared: &'a Shared,
    pub limits: &'a Limits,
    pub now: Nanos,
    pub session: &'a mut Session,
    pub out: &'a mut Vec<u8>,
    /// What the shared store is to be asked, each with its place in `out`.
    pub questions: &'a mut Vec<(usize, Question)>,
}

impl Context<'_> {
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

/// Runs one command; `args` begins with its name.
#[inline]
pub(super) fn run(context: &mut Context<'_>, args: &[&[u8]]) -> Flow {
    let Some((name, args)) = args.split_first() else { return Flow::Continue };
    let Some(command) = commands::find(name) else {
        unknown(context, name, args);
        return Flow::Continue;
    };
    if !context.session.authenticated && !command.before_auth {
        context.replies().error("NOAUTH Authentication required.");
    } else if args.len() < command.args.0 || args.len() > command.args.1 {
        wrong_number(context, command.name);
    } else {
        return (command.run)(context, args);
    }
    Flow::Continue
}

#[cold]
pub(super) fn wrong_number(context: &mut Context<'_>, name: &str) {
    context.replies().error(&format!("ERR wrong number of arguments for '{name}' command"));
}

#[cold]
fn unknown(context: &mut Context<'_>, name: &[u8], args: &[&[u8]]) {
    // As Redis words it, cut short alike.
    let shown = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(128)]).into_owned();
    let mut beginning = String::new();
    for arg in args {
        if beginning.len() >= 128 {
            break;
        }
        // Writing to a `String` does not fail.
        let _ = write!(beginning, "'{}' ", shown(arg));
    }
    let name = shown(name);
    // Clients that know transactions must not take an unknown command for one that was queued.
    let transaction = match name.to_ascii_uppercase().as_str() {
        "MULTI" => Some(
            "ERR MULTI is not supported: no transaction has begun and nothing is queued; each command that follows takes \
             effect by itself",
        ),
        "EXEC" => {
            Some("ERR EXEC without MULTI: nothing was queued; commands sent before took effect by themselves")
        }
        "DISCARD" => Some(
            "ERR DISCARD without MULTI: nothing was queued, and nothing is undone; commands sent before took effect by \
             themselves",
        ),
        "WATCH" | "UNWATCH" => Some("ERR there are no transactions here: nothing is watched"),
        _ => None,
    };
    if let Some(error) = transaction {
        return context.replies().error(error);
    }
    context.replies().error(&format!("ERR unknown command '{name}', with args beginning with: {beginning}"));
}
