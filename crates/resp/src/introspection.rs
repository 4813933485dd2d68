//! Commands with which tools query the server: `COMMAND`, `INFO`, `CONFIG GET`, `DBSIZE`.

use std::{fmt::Write, sync::atomic::Ordering};

use tidegate_listen::access::Role;

use crate::{
    reply::Replies,
    session::{Command, Context, find},
};

/// The Redis version to report, for clients that check it before they use a feature.
const REDIS_VERSION: &str = "7.0.0";

pub(super) fn command(context: &mut Context<'_>, args: &[&[u8]]) {
    let commands = context.commands;
    let mut replies = context.replies();
    let Some((subcommand, names)) = args.split_first() else {
        replies.array(commands.len());
        for command in commands {
            describe(&mut replies, command);
        }
        return;
    };
    match subcommand.to_ascii_uppercase().as_slice() {
        b"COUNT" => replies.count(commands.len() as u64),
        b"LIST" => {
            replies.array(commands.len());
            for command in commands {
                replies.bulk(command.name.as_bytes());
            }
        }
        b"INFO" => {
            replies.array(names.len());
            for name in names {
                match find(commands, name) {
                    Some(command) => describe(&mut replies, command),
                    None => replies.null(),
                }
            }
        }
        b"DOCS" => {
            let wanted = |command: &&Command| {
                names.is_empty()
                    || names
                        .iter()
                        .any(|name| command.name.as_bytes().eq_ignore_ascii_case(name))
            };
            replies.map(commands.iter().filter(wanted).count());
            for command in commands.iter().filter(wanted) {
                replies.bulk(command.name.as_bytes());
                replies.map(3);
                let usage = format!(
                    "{} ({} {})",
                    command.summary,
                    command.name.to_uppercase(),
                    command.usage
                );
                replies.texts(["summary", &usage, "since", "0.1.0", "group", "generic"]);
            }
        }
        other => {
            let other = String::from_utf8_lossy(other).into_owned();
            replies.error(&format!(
                "ERR unknown subcommand '{other}'; COMMAND supports COUNT, DOCS, INFO and LIST"
            ));
        }
    }
}

/// Name, arity, flags, first key, last key, step; then four lists of Redis 7 that are empty here.
fn describe(replies: &mut Replies<'_>, command: &Command) {
    replies.array(10);
    replies.bulk(command.name.as_bytes());
    // Redis counts the name, and writes "at least" as a negative number.
    let least = i64::try_from(command.args.0 + 1).unwrap_or(i64::MAX);
    replies.integer(if command.args.0 == command.args.1 {
        least
    } else {
        -least
    });
    replies.array(1);
    replies.simple("fast");
    for number in [command.key, command.key, command.key.min(1)] {
        replies.count(number as u64);
    }
    for _ in 0..4 {
        replies.array(0);
    }
}

pub(super) fn info(context: &mut Context<'_>, args: &[&[u8]]) {
    let everything = ["all", "everything", "default"];
    let wanted = |section: &str| {
        args.is_empty()
            || args.iter().any(|arg| {
                arg.eq_ignore_ascii_case(section.as_bytes())
                    || everything
                        .iter()
                        .any(|all| arg.eq_ignore_ascii_case(all.as_bytes()))
            })
    };
    let mut text = String::new();
    // Writing to a `String` does not fail.
    for (name, write) in SECTIONS {
        if wanted(name) {
            let _ = write!(
                text,
                "{}# {name}\r\n",
                if text.is_empty() { "" } else { "\r\n" }
            );
            let _ = write(context, &mut text);
        }
    }
    context.replies().verbatim(&text);
}

type WriteSection = fn(&Context<'_>, &mut String) -> std::fmt::Result;
const SECTIONS: [(&str, WriteSection); 6] = [
    ("Server", |context, text| {
        let up = context.now.saturating_since(context.shared.started).get() / 1_000_000_000;
        write!(
            text,
            "redis_version:{REDIS_VERSION}\r\nserver_name:tidegate\r\ntidegate_version:{}\r\n\
             redis_mode:standalone\r\nprocess_id:{}\r\ntcp_port:{}\r\nuptime_in_seconds:{up}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            context.shared.config.port,
        )
    }),
    ("Clients", |context, text| {
        let connected = context
            .shared
            .stats
            .connections
            .open
            .load(Ordering::Relaxed);
        let most = context.shared.config.max_connections;
        write!(
            text,
            "connected_clients:{connected}\r\nmaxclients:{most}\r\n"
        )
    }),
    ("Stats", |context, text| {
        let stats = &context.shared.stats;
        write!(
            text,
            "total_connections_received:{}\r\ntotal_commands_processed:{}\r\nrejected_connections:{}\r\n",
            stats.connections.accepted.load(Ordering::Relaxed),
            stats.commands.load(Ordering::Relaxed),
            stats.connections.refused.load(Ordering::Relaxed),
        )
    }),
    ("Replication", |_, text| {
        text.write_str("role:master\r\nconnected_slaves:0\r\n")
    }),
    ("Limits", |context, text| {
        let rights = context
            .session
            .rights()
            .filter(|rights| rights.may(Role::Observe));
        let seen = |name: &str| rights.is_some_and(|rights| rights.concern(name.as_bytes()));
        for limit in context
            .limits
            .limits()
            .iter()
            .filter(|limit| seen(&limit.spec().name))
        {
            let (counts, keys) = (limit.counts(), limit.stats().keys);
            write!(
                text,
                "{}:keys={keys},allowed={},delayed={},denied={},shadow_denied={}\r\n",
                limit.spec().name,
                counts.allowed,
                counts.delayed,
                counts.denied,
                counts.shadow_denied,
            )?;
        }
        Ok(())
    }),
    ("Keyspace", |context, text| {
        write!(text, "db0:keys={},expires=0,avg_ttl=0\r\n", keys(context))
    }),
];

fn keys(context: &Context<'_>) -> u64 {
    let limits = context
        .limits
        .limits()
        .iter()
        .map(|limit| limit.stats().keys);
    limits.sum::<u64>() + context.shared.service.throttle().limiter().stats().keys
}

/// As a master without replicas, which some clients look for.
pub(super) fn role(context: &mut Context<'_>, _args: &[&[u8]]) {
    let mut replies = context.replies();
    replies.array(3);
    replies.bulk(b"master");
    replies.integer(0);
    replies.array(0);
}

pub(super) fn dbsize(context: &mut Context<'_>, _args: &[&[u8]]) {
    let keys = keys(context);
    context.replies().count(keys);
}

pub(super) fn config(context: &mut Context<'_>, args: &[&[u8]]) {
    if !args[0].eq_ignore_ascii_case(b"GET") {
        return context
            .error("ERR only CONFIG GET is supported; change settings with the options of `tidegate serve`");
    }
    if args.len() < 2 {
        return context.wrong_number("config|get", "pattern");
    }
    let config = &context.shared.config;
    let idle = config
        .idle_timeout
        .map_or(0, |idle| idle.get() / 1_000_000_000);
    let settings = [
        ("save", String::new()),
        ("appendonly", "no".to_owned()),
        ("databases", "1".to_owned()),
        ("maxclients", config.max_connections.to_string()),
        ("timeout", idle.to_string()),
        ("proto-max-bulk-len", crate::MAX_BULK.to_string()),
        ("io-threads", config.threads.to_string()),
    ];
    let wanted = |name: &str| args[1..].iter().any(|pattern| matches(pattern, name));
    let found: Vec<_> = settings.iter().filter(|(name, _)| wanted(name)).collect();
    let mut replies = context.replies();
    replies.map(found.len());
    for (name, value) in found {
        replies.texts([name, value]);
    }
}

/// Matches a name, or a prefix followed by `*`, which is what tools use.
fn matches(pattern: &[u8], name: &str) -> bool {
    match pattern.strip_suffix(b"*") {
        Some(beginning) => name
            .as_bytes()
            .get(..beginning.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(beginning)),
        None => pattern.eq_ignore_ascii_case(name.as_bytes()),
    }
}
