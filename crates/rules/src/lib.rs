//! Rules: parsing files (`parse`) and the definitions in them ([`spec`](LimitSpec)), from which
//! limits are built.
//!
//! An internal crate of `tidegate serve`, without a promise of stability.

#![allow(
    missing_docs,
    clippy::len_without_is_empty,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    clippy::return_self_not_must_use,
    reason = "the crates of the server are the callers"
)]

mod error;
pub mod file;
pub mod files;
pub mod import;
mod keys;
pub mod options;
mod parse;
pub mod reload;
pub mod shares;
pub mod sharing;
mod spec;
mod tenants;
mod traffic;

use std::{io, path::Path};

use tidegate_config::file as config_file;

pub use error::RulesError;
pub use parse::{parse, parse_bytes, parse_for, parse_policy};
pub use sharing::is_sensible;
pub use sharing::{TimeoutError, parse_timeout};
pub use spec::{LimitSpec, OnExpiry, PolicySpec, QuotaTextError, Rules, SharingSpec, TrafficSpec};
pub use tenants::{AllTerms, LimitPart, MAX_TENANTS, SharesBy, SharesSpec};
pub use tidegate_config::Problem;

/// The maximum size of a rules file: 4 MiB.
pub const MAX_FILE: u64 = 4 << 20;

/// The maximum length of a key in a request, in bytes (the library accepts any length).
pub const MAX_KEY_BYTES: usize = 1024;

/// The name of `CL.THROTTLE`'s table in metrics, in access rules and in the state file. No limit
/// may have it.
pub const THROTTLE: &str = "CL.THROTTLE";

/// The rules of `tidegate serve` without `--rules`: to try it out, and as a start for a file.
pub const EXAMPLE: &str = include_str!("example.yaml");

/// Where the limits of a rules file are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// In the server's own memory.
    Memory,
    /// In a store that servers share, which cannot hold every kind of limit.
    Store,
}

/// Reads and checks a rules file.
///
/// # Errors
/// When it cannot be read, is not a regular file, is larger than 4 MiB, has neither limits nor flow
/// control, or has problems; then none of it is used.
pub fn load(path: &Path, keeping: Keeping) -> Result<Rules, RulesError> {
    let text = read_text(path)?;
    parse_for(&text, keeping).map_err(|problems| RulesError::Invalid {
        path: Some(path.to_owned()),
        problems,
    })
}

/// The text of a file that is used as a whole or not at all.
///
/// # Errors
/// When it cannot be read, is larger than 4 MiB, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, RulesError> {
    let invalid = |problems| RulesError::Invalid {
        path: Some(path.to_owned()),
        problems,
    };
    let bytes = config_file::read(path, MAX_FILE).map_err(|source| match source.kind() {
        io::ErrorKind::FileTooLarge => {
            let problem = Problem::overall("the file is larger than 4 MiB");
            invalid(vec![problem.mend(
                "check that this is a rules file, which is a list of limits",
            )])
        }
        _ => RulesError::Read {
            path: path.to_owned(),
            source,
        },
    })?;
    String::from_utf8(bytes).map_err(|e| {
        let good = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = good.split(|byte| *byte == b'\n').count();
        invalid(vec![
            Problem::at(line, "the text is not UTF-8").mend("save the file as UTF-8"),
        ])
    })
}

/// Reads and checks a rules file for a server, which needs at least one limit. Flow control in the
/// file is logged, so that users do not expect the server to enforce it.
///
/// # Errors
/// The same as [`load`], and when the file has no limits.
pub fn load_to_serve(path: &Path, keeping: Keeping) -> Result<Rules, RulesError> {
    let rules = parse_to_serve(&read_text(path)?, Some(path), keeping)?;
    let unused = rules
        .limits
        .iter()
        .filter(|limit| limit.sharing != SharingSpec::default());
    if keeping == Keeping::Memory
        && let Some(limit) = unused.map(|limit| &limit.name).next()
    {
        tracing::warn!(
            file = %path.display(),
            limit,
            "the rules have sharing options, but this server has no store: start it with --store to share limits",
        );
    }
    let kinds = rules
        .gate
        .counts()
        .into_iter()
        .filter(|(_, count)| *count > 0);
    let kinds: Vec<String> = kinds
        .map(|(kind, count)| format!("{kind}: {count}"))
        .collect();
    if !kinds.is_empty() {
        tracing::info!(
            file = %path.display(),
            rules = kinds.join(", "),
            "the rules also have flow control: it was checked, but only programs that use a gate enforce it",
        );
    }
    Ok(rules)
}

/// The rules in a text that a server is to have; `path` is for messages.
///
/// # Errors
/// When there are problems, or no limits.
pub fn parse_to_serve(
    text: &str,
    path: Option<&Path>,
    keeping: Keeping,
) -> Result<Rules, RulesError> {
    let invalid = |problems| RulesError::Invalid {
        path: path.map(Path::to_owned),
        problems,
    };
    let rules = parse_for(text, keeping).map_err(invalid)?;
    if rules.limits.is_empty() {
        let problem = Problem::overall("there is no `limits:`, so there is nothing to serve").mend(
            "add it with a list of limits; the other sections are for programs that use a gate",
        );
        return Err(invalid(vec![problem]));
    }
    Ok(rules)
}

/// The built-in example rules.
///
/// # Panics
/// Never; a test parses them.
pub fn example() -> Rules {
    parse(EXAMPLE).expect("the example rules are tested")
}
