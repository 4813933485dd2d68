//! What clients without manners, and operators' mistakes, cannot do to a server.
//!
//! Short here; `TIDEGATE_LONG=1` runs 250,000 random frames instead of 5,000 and 10,000 idle connections instead of 300.
//! What needs the program itself (kill -9, signals, standard error) is in the tests of the command.

#[path = "../harness/mod.rs"]
mod harness;

mod frames;
mod http;
mod operator;
mod resp;
mod secure;

const RULES: &str = "
limits:
  - {name: per-user, limit: 3/1m, algorithm: sliding-log}
  - {name: logins, limit: 5/10m, algorithm: sliding-log}
";

/// `short`, or `long` with `TIDEGATE_LONG` set.
fn size(short: usize, long: usize) -> usize {
    if std::env::var_os("TIDEGATE_LONG").is_some() { long } else { short }
}
