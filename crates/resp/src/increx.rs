//! `INCREX`: a bounded count in a window, as Redis 8.8 and Valkey 9.2 have it, of a limit of the
//! rules. A client that counts in Redis keeps its command; its keys are called `limit:key`.

use std::time::Duration;

use tidegate_service::decide::{
    limits::Limit,
    service::{Resolved, resolve},
};

use crate::{
    limiting::{decide_up_to, number, read_cost, refuse},
    question::UpToReply,
    session::Context,
};

pub(super) const USAGE: &str = "limit:key [BYINT cost] [UBOUND limit] [SATURATE] \
                                [EX seconds|PX milliseconds ENX]";

/// What a client says of its window.
#[derive(Default)]
struct Options<'k> {
    cost: Option<&'k [u8]>,
    bound: Option<&'k [u8]>,
    /// With the number of milliseconds in its unit.
    window: Option<(&'k [u8], u64)>,
    saturate: bool,
    once: bool,
}

/// Why the options are refused.
#[derive(Debug, thiserror::Error)]
enum OptionError {
    #[error("syntax error: {0} needs a number")]
    NoNumber(String),
    #[error(
        "syntax error: {0} is not for limits; known are BYINT, UBOUND, SATURATE, EX, PX and ENX"
    )]
    Unknown(String),
    #[error("a limit's window does not begin again with each request, as EX and PX would: add ENX")]
    NotOnce,
    #[error(
        "UBOUND is {given}, and the rule of `{name}` has {limit}: give the same, or leave it out"
    )]
    OtherBound {
        given: String,
        name: String,
        limit: u64,
    },
    #[error(
        "the window of `{name}` by its rule is {}: give the same, or leave EX and PX out",
        window.map_or_else(|| "none".to_owned(), |window| format!("{} ms", window.as_millis()))
    )]
    OtherWindow {
        name: String,
        window: Option<Duration>,
    },
}

/// A word of the client as an error shows it.
#[cold]
fn shown(word: &[u8]) -> String {
    String::from_utf8_lossy(&word[..word.len().min(32)]).to_uppercase()
}

/// `limit:key [BYINT cost] [UBOUND limit] [SATURATE] [EX seconds|PX milliseconds ENX]` → what the
/// key has used, and what this request added: the cost; 0 if it does not fit; or with `SATURATE`
/// what fits.
pub(super) fn increx(context: &mut Context<'_>, args: &[&[u8]]) {
    let options = match options(&args[1..]) {
        Ok(options) => options,
        Err(why) => return context.error(&format!("ERR {why}")),
    };
    let mut parts = args[0].splitn(2, |byte| *byte == b':');
    let name = parts.next().unwrap_or_default();
    let Resolved { limit, key } = match resolve(context.limits, name, parts.next()) {
        Ok(resolved) => resolved,
        Err(refusal) => return refuse(context, "increx", &refusal),
    };
    let cost = match options.cost {
        Some(text) => read_cost(context, text),
        None => Some(1),
    };
    let Some(cost) = cost else { return };
    if let Err(why) = check_rule(limit, &options) {
        return context.error(&format!("ERR {why}"));
    }
    let form = UpToReply::Increx {
        saturate: options.saturate,
    };
    decide_up_to(context, (limit, key, cost), form);
}

fn options<'k>(mut args: &[&'k [u8]]) -> Result<Options<'k>, OptionError> {
    let mut options = Options::default();
    while let Some((word, rest)) = args.split_first() {
        let is = |name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let number = || match rest {
            [number, ..] => Ok(*number),
            [] => Err(OptionError::NoNumber(shown(word))),
        };
        args = rest.get(1..).unwrap_or_default();
        if is("byint") {
            options.cost = Some(number()?);
        } else if is("ubound") {
            options.bound = Some(number()?);
        } else if is("ex") {
            options.window = Some((number()?, 1_000));
        } else if is("px") {
            options.window = Some((number()?, 1));
        } else {
            args = rest;
            match () {
                () if is("saturate") => options.saturate = true,
                () if is("enx") => options.once = true,
                () => return Err(OptionError::Unknown(shown(word))),
            }
        }
    }
    if options.window.is_some() && !options.once {
        return Err(OptionError::NotOnce);
    }
    Ok(options)
}

/// Checks that the bound and the window are those of the limit's rule.
fn check_rule(limit: &Limit, options: &Options<'_>) -> Result<(), OptionError> {
    let spec = limit.spec();
    let (name, policy) = (&spec.name, &spec.policy);
    let positive = |text| number(text).and_then(|number| u64::try_from(number).ok());
    if let Some(bound) = options.bound
        && positive(bound) != Some(policy.limit)
    {
        return Err(OptionError::OtherBound {
            given: String::from_utf8_lossy(bound).into_owned(),
            name: name.clone(),
            limit: policy.limit,
        });
    }
    if let Some((text, unit)) = options.window {
        let window = positive(text).and_then(|count| count.checked_mul(unit));
        if window.is_none() || window.map(Duration::from_millis) != policy.window {
            return Err(OptionError::OtherWindow {
                name: name.clone(),
                window: policy.window,
            });
        }
    }
    Ok(())
}
