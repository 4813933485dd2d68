//! Transactions: commands that are queued between `MULTI` and `EXEC`, and then run in their order.
//!
//! Each command is one atomic step, as outside a transaction. Commands of other clients may run in
//! between. No key has a value that a client could watch, so `WATCH` never makes `EXEC` fail.

use crate::session::{Command, Context};

/// Whether a command runs at once within a transaction.
pub(super) fn runs_at_once(command: &Command) -> bool {
    matches!(
        command.name,
        "multi" | "exec" | "discard" | "watch" | "quit" | "reset"
    )
}

/// Queues a command that the client may run and whose number of arguments is right.
pub(super) fn queue(context: &mut Context<'_>, command: &Command, args: &[&[u8]]) {
    // A connection that tries passwords is held back after each one.
    if matches!(command.name, "auth" | "hello") {
        let name = command.name.to_uppercase();
        return refuse(context, &format!("ERR {name} inside MULTI is not allowed"));
    }
    let Some(transaction) = &mut context.session.transaction else {
        return;
    };
    if !transaction.push(args) {
        return refuse(
            context,
            "ERR a transaction has at most 1024 commands of 65536 bytes in all; use several, or a \
             pipeline without MULTI",
        );
    }
    context.replies().simple("QUEUED");
}

fn refuse(context: &mut Context<'_>, why: &str) {
    context.error(why);
    context.void_transaction();
}

pub(super) fn multi(context: &mut Context<'_>, _args: &[&[u8]]) {
    if context.session.transaction.is_some() {
        return context.error("ERR MULTI calls can not be nested");
    }
    context.session.transaction = Some(Box::default());
    context.replies().ok();
}

pub(super) fn exec(context: &mut Context<'_>, _args: &[&[u8]]) {
    let Some(transaction) = context.session.transaction.take() else {
        return context.error("ERR EXEC without MULTI");
    };
    let Some(commands) = transaction.into_commands() else {
        return context.error("EXECABORT Transaction discarded because of previous errors.");
    };
    context.replies().array(commands.len());
    context.runs_next = commands;
}

pub(super) fn discard(context: &mut Context<'_>, _args: &[&[u8]]) {
    match context.session.transaction.take() {
        Some(_) => context.replies().ok(),
        None => context.error("ERR DISCARD without MULTI"),
    }
}

pub(super) fn watch(context: &mut Context<'_>, _args: &[&[u8]]) {
    if context.session.transaction.is_some() {
        return context.error("ERR WATCH inside MULTI is not allowed");
    }
    context.replies().ok();
}

pub(super) fn unwatch(context: &mut Context<'_>, _args: &[&[u8]]) {
    context.replies().ok();
}
