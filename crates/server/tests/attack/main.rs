//! What hostile clients, and operators' mistakes, cannot do to a server.
//!
//! Short by default; `TIDEGATE_LONG=1` runs 250,000 random frames instead of 5,000 and 10,000 idle
//! connections instead of 300. Tests that need the program itself (kill -9, signals, standard
//! error) are in the command's tests.

#[path = "../integration/harness/mod.rs"]
mod harness;

mod floods;
mod frames;
mod http;
mod operator;
mod resp;
mod rights;
mod secure;

const RULES: &str = "
limits:
  - {name: per-user, limit: 3/1m, algorithm: sliding-log}
  - {name: logins, limit: 5/10m, algorithm: sliding-log}
";

/// `short`, or `long` if `TIDEGATE_LONG` is set.
fn size(short: usize, long: usize) -> usize {
    if std::env::var_os("TIDEGATE_LONG").is_some() {
        long
    } else {
        short
    }
}
