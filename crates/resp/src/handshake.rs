//! Commands that clients send when they connect, and commands about the connection.

use std::sync::atomic::Ordering;

use tidegate_core::Nanos;

use crate::{Protocol, session::Context};

/// The number of consecutive wrong passwords after which a connection is closed.
const MOST_FAILURES: u32 = 5;
/// How long the reply to the first wrong password is delayed. The delay doubles with each further
/// one.
const FIRST_DELAY: Nanos = Nanos::from_millis(100);

/// The longest name that a client may set.
const MAX_NAME: usize = 128;

pub(super) fn ping(context: &mut Context<'_>, args: &[&[u8]]) {
    match args {
        [message] => context.replies().bulk(message),
        _ => context.replies().simple("PONG"),
    }
}

pub(super) fn echo(context: &mut Context<'_>, args: &[&[u8]]) {
    context.replies().bulk(args[0]);
}

pub(super) fn select(context: &mut Context<'_>, args: &[&[u8]]) {
    match args[0] {
        b"0" => context.replies().ok(),
        other if other.iter().all(u8::is_ascii_digit) => {
            context.error("ERR DB index is out of range; the only database is 0");
        }
        _ => context.error("ERR invalid DB index"),
    }
}

pub(super) fn quit(context: &mut Context<'_>, _args: &[&[u8]]) {
    context.replies().ok();
    context.closes = true;
}

pub(super) fn reset(context: &mut Context<'_>, _args: &[&[u8]]) {
    let shared = context.shared;
    context.session.reset(shared);
    context.replies().simple("RESET");
}

pub(super) fn auth(context: &mut Context<'_>, args: &[&[u8]]) {
    let (user, password) = match args {
        [password]
            if context.shared.config.password.is_none()
                && context.shared.door.access.path.is_none() =>
        {
            let _ = password;
            return context.error(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure \
                 your configuration is correct?",
            );
        }
        [password] => (&b"default"[..], *password),
        _ => (args[0], args[1]),
    };
    if log_in(context, user, password) {
        context.replies().ok();
    }
}

/// Logs the client in, or replies with an error: each time later, and finally by closing the
/// connection.
fn log_in(context: &mut Context<'_>, user: &[u8], password: &[u8]) -> bool {
    if context.session.log_in(user, password, context.shared) {
        context.session.auth_failures = 0;
        return true;
    }
    context.error("WRONGPASS invalid username-password pair or user is disabled.");
    let stats = &context.shared.stats;
    stats.auth_failures.fetch_add(1, Ordering::Relaxed);
    let guesses = context
        .shared
        .strangers
        .failed(context.session.peer.ip())
        .is_some();
    let failures = context.session.auth_failures;
    context.session.auth_failures += 1;
    let delay = FIRST_DELAY.get() << failures.min(MOST_FAILURES);
    context.session.held_until = Some(context.now.saturating_add(Nanos::new(delay)));
    context.closes = guesses || failures + 1 >= MOST_FAILURES;
    false
}

pub(super) fn hello(context: &mut Context<'_>, args: &[&[u8]]) {
    let protocol = match args.first().copied() {
        None => context.session.protocol,
        Some(b"2") => Protocol::Resp2,
        Some(b"3") => Protocol::Resp3,
        Some(_) => return context.error("NOPROTO unsupported protocol version"),
    };
    let mut rest = args.get(1..).unwrap_or_default();
    let mut name = None;
    while let [option, tail @ ..] = rest {
        rest = match tail {
            [user, password, tail @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                if !log_in(context, user, password) {
                    return;
                }
                tail
            }
            [given, tail @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => {
                name = Some(*given);
                tail
            }
            _ => {
                let option = String::from_utf8_lossy(option).into_owned();
                return context.error(&format!("ERR Syntax error in HELLO option '{option}'"));
            }
        };
    }
    if context.session.rights().is_none() {
        return context.error(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        );
    }
    if name.is_some_and(|name| !set_name(context, name)) {
        return;
    }
    context.session.protocol = protocol;
    let id = context.session.id;
    let mut replies = context.replies();
    replies.map(7);
    replies.texts(["server", "tidegate", "version", env!("CARGO_PKG_VERSION")]);
    replies.bulk(b"proto");
    replies.integer(protocol as i64);
    replies.bulk(b"id");
    replies.count(id);
    replies.texts(["mode", "standalone", "role", "master"]);
    replies.bulk(b"modules");
    replies.array(0);
}

pub(super) fn client(context: &mut Context<'_>, args: &[&[u8]]) {
    let (subcommand, args) = (args[0].to_ascii_uppercase(), &args[1..]);
    match (subcommand.as_slice(), args) {
        (b"SETNAME", [name]) => {
            if set_name(context, name) {
                context.replies().ok();
            }
        }
        (b"GETNAME", []) => match context.session.name.clone() {
            name if name.is_empty() => context.replies().null(),
            name => context.replies().bulk(&name),
        },
        (b"ID", []) => {
            let id = context.session.id;
            context.replies().count(id);
        }
        // Redis records the client's library. Nothing here needs it.
        (b"SETINFO", [option, _])
            if option.eq_ignore_ascii_case(b"lib-name")
                || option.eq_ignore_ascii_case(b"lib-ver") =>
        {
            context.replies().ok();
        }
        (b"INFO", []) | (b"LIST", _) => {
            let line = describe(context);
            context.replies().verbatim(&line);
        }
        (b"NO-EVICT" | b"NO-TOUCH", [switch])
            if switch.eq_ignore_ascii_case(b"OFF") || switch.eq_ignore_ascii_case(b"ON") =>
        {
            context.replies().ok();
        }
        (b"REPLY", [switch]) if switch.eq_ignore_ascii_case(b"ON") => context.replies().ok(),
        // No command here has a reply that a client caches, so nothing is ever invalidated.
        (b"TRACKING" | b"CACHING", [switch, ..])
            if [&b"ON"[..], b"OFF", b"YES", b"NO"]
                .iter()
                .any(|known| switch.eq_ignore_ascii_case(known)) =>
        {
            context.replies().ok();
        }
        (b"GETREDIR", []) => context.replies().integer(-1),
        (b"SETNAME" | b"GETNAME" | b"ID" | b"SETINFO" | b"INFO", _) => {
            let name = String::from_utf8_lossy(&subcommand).to_ascii_lowercase();
            let usage = match name.as_str() {
                "setname" => "name",
                "setinfo" => "LIB-NAME|LIB-VER text",
                _ => "",
            };
            context.wrong_number(&format!("client|{name}"), usage);
        }
        _ => {
            let name = String::from_utf8_lossy(&subcommand).into_owned();
            context.error(&format!(
                "ERR unknown subcommand '{name}'; CLIENT supports GETNAME, ID, INFO, LIST, SETINFO, SETNAME and TRACKING"
            ));
        }
    }
}

fn set_name(context: &mut Context<'_>, name: &[u8]) -> bool {
    let fits = name.len() <= MAX_NAME && name.iter().all(|byte| (b'!'..=b'~').contains(byte));
    if fits {
        context.session.name = name.to_vec();
    } else {
        context.error(
            "ERR Client names cannot contain spaces, newlines or special characters, or be longer than 128 bytes.",
        );
    }
    fits
}

/// Describes this connection in the format of Redis's client list, as far as it applies. Other
/// connections are never shown.
fn describe(context: &Context<'_>) -> String {
    let session = &context.session;
    let name = String::from_utf8_lossy(&session.name);
    format!(
        "id={} addr={} name={name} db=0 resp={} user=default\n",
        session.id, session.peer, session.protocol as i64
    )
}
