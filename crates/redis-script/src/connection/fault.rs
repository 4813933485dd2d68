//! Maps the client's errors to store errors, by kind and by Redis error code, never by message
//! text.

use std::{error::Error, io, sync::Arc};

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::StoreError;

/// The error codes that determine the store error.
const CODES: [&str; 7] = [
    "OOM",
    "READONLY",
    "WRONGTYPE",
    "LOADING",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
];

/// Converts a client error. `prefix` is the prefix of the store's keys, which the user's
/// permissions must cover.
pub fn of(error: &RedisError, prefix: &str) -> StoreError {
    let why = || Arc::from(words(error).as_str());
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::BusyLoading) => StoreError::Loading,
        ErrorKind::Server(ServerErrorKind::ReadOnly) => StoreError::ReadOnly,
        ErrorKind::Server(
            ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain,
        ) => StoreError::ClusterDown(why()),
        ErrorKind::Server(ServerErrorKind::CrossSlot) => StoreError::CrossSlot,
        ErrorKind::Server(ServerErrorKind::NoPerm) => StoreError::Forbidden(needs(error, prefix)),
        ErrorKind::AuthenticationFailed => StoreError::NotPermitted(login(error)),
        ErrorKind::ClusterConnectionNotFound => {
            StoreError::Refused("no node of the cluster can be reached".into())
        }
        // Their text may contain parts of the address.
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList => {
            StoreError::Address("the client rejects it".into())
        }
        ErrorKind::MasterNameNotFoundBySentinel => StoreError::Refused(why()),
        ErrorKind::Io if error.is_timeout() => StoreError::TimedOut,
        ErrorKind::Io if error.is_connection_refusal() => StoreError::Refused(why()),
        ErrorKind::Io => StoreError::Lost(why()),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => StoreError::BadReply,
        _ => match code(error) {
            Some("OOM") => StoreError::OutOfMemory,
            Some("READONLY") => StoreError::ReadOnly,
            Some("WRONGTYPE") => StoreError::WrongType,
            Some("LOADING") => StoreError::Loading,
            Some("NOAUTH" | "WRONGPASS") => StoreError::NotPermitted(login(error)),
            Some("NOPERM") => StoreError::Forbidden(needs(error, prefix)),
            // The general code: this script failed. The heartbeat finds out whether other scripts
            // fail, too.
            Some("ERR") => StoreError::Script(advice(error, prefix)),
            _ => StoreError::Server(why()),
        },
    }
}

/// The code of the server's reply; `ERR` is the general one. For a command that fails inside a
/// script, Redis 6.2 replies `ERR` or no code at all (`@user_script: 29: …`), and gives the
/// command's own code within the text: after a minus sign if the server refused to run the command
/// (`-MISCONF`), otherwise as it is.
fn code(error: &RedisError) -> Option<&str> {
    let is_code = |word: &str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
    let named = |word: &str| CODES.contains(&word);
    let within = || {
        error
            .detail()?
            .split([' ', ':'])
            .find_map(|word| match word.strip_prefix('-') {
                Some(code) => is_code(code).then_some(code),
                None => named(word).then_some(word),
            })
    };
    match error.code() {
        Some(code) if code == "ERR" || !is_code(code) => within().or(Some("ERR")),
        code => code.filter(|code| named(code)).or_else(within),
    }
}

/// The longest text of an error, in characters. Some engines answer with the whole script.
const LONGEST: usize = 200;

/// The error's text on one line, without the client's name for its kind, which means nothing to
/// users. A long text ends with `…`.
pub fn words(error: &RedisError) -> String {
    abridged(&whole(error))
}

fn whole(error: &RedisError) -> String {
    error
        .to_string()
        .replace(&format!(" - {:?}", error.kind()), "")
}

fn abridged(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// An error of the login. No ACL has been checked yet.
fn login(error: &RedisError) -> Arc<str> {
    format!("{}; check user and password", words(error)).into()
}

/// Appends what to do about a script that failed. Only the advice depends on the text, because the
/// servers give all these errors the same code.
fn advice(error: &RedisError, prefix: &str) -> Arc<str> {
    let (whole, words) = (whole(error), words(error));
    let has = |part: &str| whole.contains(part);
    let advice = if has("permission") || has("ACL") || has("can't run this command") {
        return needs(error, prefix);
    } else if has("'struct'") || has("non-function object") || has("nil value") {
        "the store's scripts have no library `struct`, as those of fakeredis and miniredis; use Redis 6.2 or later, Valkey or Redict"
    } else if [
        "nknown command",
        "nknown Redis command",
        "nknown Redict command",
    ]
    .into_iter()
    .any(has)
    {
        "the store does not know a command that the scripts need: a proxy leaves it out, or `rename-command` has renamed it; undo that, \
         or use the server itself"
    } else {
        return words.into();
    };
    format!("{words}; {advice}").into()
}

/// Appends the permissions that the scripts need.
fn needs(error: &RedisError, prefix: &str) -> Arc<str> {
    format!(
        "{}; the ACL of the store's user must have ~{prefix}:* +eval +evalsha +time +get +mget +set +getrange +setrange \
         +strlen +pexpire +pexpireat +del +zadd +zremrangebyscore +zcard +zrange +hget +hmget +hset +hdel +hlen +zrem",
        words(error)
    )
    .into()
}

/// The I/O error inside the client's error.
pub fn io(error: &RedisError) -> Option<&io::Error> {
    // The client returns a pointer to the error as the source.
    let held = error.source()?;
    held.downcast_ref::<Arc<dyn Error + Send + Sync>>()
        .map_or_else(|| held.downcast_ref(), |error| error.downcast_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_classified_by_kind_and_code_and_not_by_its_text() {
        let initial = RedisError::from((ErrorKind::Io, "Failed", "Connection refused".to_owned()));
        assert_eq!(
            of(&initial, "p").name(),
            "lost",
            "the text alone does not decide"
        );
        for (kind, name) in [
            (io::ErrorKind::ConnectionRefused, "refused"),
            (io::ErrorKind::TimedOut, "timed-out"),
            (io::ErrorKind::ConnectionReset, "lost"),
        ] {
            let error = RedisError::from(io::Error::from(kind));
            assert_eq!(of(&error, "p").name(), name);
            assert_eq!(self::io(&error).map(io::Error::kind), Some(kind));
        }
        let script = format!("line 1\n\tline 2 {}'struct'", "x".repeat(300));
        let long = RedisError::from((ErrorKind::Io, "Failed", script));
        let said = words(&long);
        assert!(
            said.starts_with("Failed: line 1 line 2 xxx") && said.ends_with("x…"),
            "{said}"
        );
        assert_eq!(said.chars().count(), LONGEST + 1);
        assert!(
            advice(&long, "p").contains("no library `struct`"),
            "the advice depends on the whole text"
        );
        let none = RedisError::from((ErrorKind::ClusterConnectionNotFound, "No connections found"));
        assert_eq!(of(&none, "p").name(), "refused");
    }
}
