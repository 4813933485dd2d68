//! The table of all commands, and how a command is run.

use std::fmt::Write;

use tidegate_config::nearest;
use tidegate_listen::access::Role;
use tidegate_service::{
    decide::service::{Act, Operation, Refusal, refuse_unknown, resolve},
    rules::THROTTLE,
};

use crate::{
    handshake, heavy, increx, introspection,
    limiting::{self, decide, operate, refuse},
    reserving,
    session::{Command, Context, Needs, find},
    transaction,
};

const MANY: usize = crate::MAX_ARGS;

const ANY: Needs = Needs::AnyRight;
const OPEN: Needs = Needs::Nothing;
const DECIDE: Needs = Needs::OnLimit(Role::Decide);
const DECIDE_KEY: Needs = Needs::OnLimitOfKey(Role::Decide);
const OBSERVE: Needs = Needs::OnLimit(Role::Observe);
const OPERATE: Needs = Needs::OnLimit(Role::Operate);
const THROTTLED: Needs = Needs::OnThrottle(Role::Decide);

/// A row of [`COMMANDS`].
macro_rules! command {
    ($needs:ident $name:literal $args:expr, $key:literal, $usage:expr, $summary:literal, $run:expr) => {
        Command {
            name: $name,
            args: $args,
            needs: $needs,
            key: $key,
            usage: $usage,
            summary: $summary,
            run: $run,
        }
    };
}

/// All commands, the most frequent first, because a lookup searches in this order.
pub(super) static COMMANDS: [Command; 36] = [
    command!(DECIDE "acquire"(1, 8), 2, "limit key [cost] [REASON] [ID id|ATMOST|WAIT milliseconds [PRIORITY level]]", "Take a cost (default 1) from a limit if it admits, once for an id, or what is available of it, or wait in line for it", |context, args| decide(context, "acquire", args, Act::Take)),
    command!(THROTTLED "cl.throttle"(4, 5), 1, "key max_burst count period [quantity]", "Take from a bucket given in the command, as redis-cell does", limiting::cl_throttle),
    command!(DECIDE "peek"(1, 4), 2, "limit key [cost [REASON]]", "Ask whether a limit would admit, without taking anything", |context, args| decide(context, "peek", args, Act::Peek)),
    command!(DECIDE "charge"(1, 4), 2, "limit key [cost [REASON]]", "Charge a cost (default 1), whether it fits or not", |context, args| decide(context, "charge", args, Act::Charge)),
    command!(DECIDE "refund"(1, 3), 2, "limit key [cost]", "Refund up to a cost (default 1)", |context, args| decide(context, "refund", args, Act::Refund)),
    command!(ANY "reserve"(4, reserving::MOST_ARGS), 3, reserving::RESERVE, "Take an estimate if all limits admit, to be settled within the time, once for an id", reserving::reserve),
    command!(ANY "extend"(2, reserving::MOST_COSTS), 0, "id cost [cost ...]", "Take more for a reservation", reserving::extend),
    command!(ANY "settle"(2, reserving::MOST_COSTS), 0, "id cost [cost ...]", "Correct a reservation to what was used", reserving::settle),
    command!(ANY "cancel"(1, 1), 0, "id", "Return all that a reservation took", reserving::cancel),
    command!(ANY "acquireany"(3, reserving::MOST_ANY), 2, reserving::ACQUIRE_ANY, "Take a cost from the first of several limits that admits", reserving::acquire_any),
    command!(OPERATE "block"(2, 3), 2, "limit key [milliseconds]", "Deny a key for a time, or until it is unblocked", limiting::block),
    command!(OPERATE "unblock"(2, 2), 2, "limit key", "End the block of a key", |context, args| operate(context, "unblock", args, Operation::Unblock)),
    command!(OPERATE "override"(3, 4), 2, "limit key quota|END [milliseconds]", "Give a key its own quota, for a time or until END", limiting::override_key),
    command!(THROTTLED "rl.throttle"(4, 5), 1, "key max_burst count period [quantity]", "CL.THROTTLE by the name that Valkey proposes", limiting::cl_throttle),
    command!(THROTTLED "throttle"(4, 5), 1, "key max_burst count period [quantity]", "Take from a bucket given in the command, as throttlecrab's server does: 1 is allowed", limiting::throttlecrab),
    command!(THROTTLED "gcra"(4, 6), 1, "key max_burst count period [TOKENS quantity]", "Take from a bucket given in the command, as Redis proposes", limiting::gcra),
    command!(DECIDE_KEY "increx"(1, 10), 1, increx::USAGE, "Take from a limit as Redis 8.8 and Valkey 9.2 count in a bounded window", increx::increx),
    command!(ANY "multi"(0, 0), 0, "", "Queue the following commands", transaction::multi),
    command!(ANY "exec"(0, 0), 0, "", "Run the queued commands", transaction::exec),
    command!(ANY "discard"(0, 0), 0, "", "Forget the queued commands", transaction::discard),
    command!(ANY "watch"(1, MANY), 0, "key [key ...]", "Nothing here changes by itself: OK", transaction::watch),
    command!(ANY "unwatch"(0, 0), 0, "", "OK", transaction::unwatch),
    command!(OBSERVE "top"(1, 2), 0, "limit [count]", "The keys with the most requests and the most denials", heavy::top),
    command!(ANY "ping"(0, 1), 0, "[message]", "Reply with PONG or the message", handshake::ping),
    command!(ANY "echo"(1, 1), 0, "message", "Reply with the message", handshake::echo),
    command!(OPEN "hello"(0, MANY), 0, "[2|3 [AUTH user password] [SETNAME name]]", "Choose the protocol version", handshake::hello),
    command!(OPEN "auth"(1, 2), 0, "[user] password", "Authenticate the connection", handshake::auth),
    command!(ANY "client"(1, MANY), 0, "GETNAME|ID|INFO|LIST|SETINFO|SETNAME", "About this connection", handshake::client),
    command!(ANY "select"(1, 1), 0, "0", "Choose the only database", handshake::select),
    command!(OPEN "quit"(0, MANY), 0, "", "Close the connection", handshake::quit),
    command!(OPEN "reset"(0, 0), 0, "", "Reset the connection", handshake::reset),
    command!(ANY "command"(0, MANY), 0, "[COUNT|DOCS|INFO|LIST]", "About the commands", introspection::command),
    command!(ANY "info"(0, MANY), 0, "[section ...]", "About the server", introspection::info),
    command!(ANY "role"(0, 0), 0, "", "The role of a server without replicas: master", introspection::role),
    command!(ANY "config"(1, MANY), 0, "GET pattern", "Settings that some clients query", introspection::config),
    command!(ANY "dbsize"(0, 0), 0, "", "The number of keys in memory", introspection::dbsize),
];

/// Runs one command, or queues it within a transaction; `args` begins with its name.
#[inline]
pub(super) fn run(context: &mut Context<'_>, args: &[&[u8]]) {
    let Some((name, rest)) = args.split_first() else {
        return;
    };
    match permitted(context, name, rest) {
        None => context.void_transaction(),
        Some(command)
            if context.session.transaction.is_some() && !transaction::runs_at_once(command) =>
        {
            let known = match command.needs.limit(rest) {
                Some(limit) => resolve(context.limits, limit, Some(b"any")).map(drop),
                None => Ok(()),
            };
            match known {
                Ok(()) => transaction::queue(context, command, args),
                Err(refusal) => {
                    refuse(context, command.name, &refusal);
                    context.void_transaction();
                }
            }
        }
        Some(command) => (command.run)(context, rest),
    }
}

/// The command, if the client may run it with so many arguments; otherwise an error was sent.
#[inline]
fn permitted(context: &mut Context<'_>, name: &[u8], args: &[&[u8]]) -> Option<&'static Command> {
    let Some(command) = find(&COMMANDS, name) else {
        unknown(context, name, args);
        return None;
    };
    if context.session.rights().is_none() && command.needs != Needs::Nothing {
        context.error("NOAUTH Authentication required.");
    } else if args.len() < command.args.0 || args.len() > command.args.1 {
        context.wrong_number(command.name, command.usage);
    } else if !is_permitted(context, command.needs, args) {
        context.not_permitted(&format!("run the '{}' command here", command.name));
    } else if let Err(refusal) = refuse_unknown_limit(context, command.needs, args) {
        refuse(context, command.name, &refusal);
    } else {
        return Some(command);
    }
    None
}

#[inline]
fn refuse_unknown_limit(
    context: &Context<'_>,
    needs: Needs,
    args: &[&[u8]],
) -> Result<(), Refusal> {
    match (needs.limit(args), context.session.rights()) {
        (Some(limit), Some(rights)) => refuse_unknown(context.limits, limit, rights),
        _ => Ok(()),
    }
}

#[inline]
fn is_permitted(context: &Context<'_>, needs: Needs, args: &[&[u8]]) -> bool {
    let (role, limit) = match needs {
        Needs::Nothing | Needs::AnyRight => return true,
        Needs::OnLimit(role) | Needs::OnLimitOfKey(role) => {
            (role, needs.limit(args).unwrap_or_default())
        }
        Needs::OnThrottle(role) => (role, THROTTLE.as_bytes()),
    };
    context
        .session
        .rights()
        .is_some_and(|rights| rights.may(role) && rights.concern(limit))
}

#[cold]
fn unknown(context: &mut Context<'_>, name: &[u8], args: &[&[u8]]) {
    // Redis's wording, truncated in the same way, and what to do.
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
    // A long name is no misspelling, and a comparison takes time.
    let names = COMMANDS.iter().map(|command| command.name);
    let meant = (name.len() <= 24).then(|| nearest(&name, names)).flatten();
    let advice = meant.map_or_else(
        || "COMMAND DOCS lists the commands".to_owned(),
        |meant| format!("did you mean {}?", meant.to_uppercase()),
    );
    context.error(&format!(
        "ERR unknown command '{name}', with args beginning with: {beginning}({advice})"
    ));
}
