//! The `tidegate` command.

mod about_store;
mod check;
mod client;
mod config_file;
mod demo;
mod help;
mod import;
mod manual;
#[cfg(feature = "sim")]
mod metrics;
mod missing;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod ratelimit;
mod record;
mod serve;
#[cfg(feature = "sim")]
mod simulate;
mod systemd;
mod token;
#[cfg(feature = "top")]
mod top;
mod usage;
mod values;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides whether work may start now, later, or not at all.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Demo(demo::Args),
    Ratelimit(ratelimit::Args),
    Check(check::Args),
    Health(client::Health),
    Acquire(client::Acquire),
    Peek(client::Peek),
    /// Charge units that were used, whether they fit or not
    ///
    /// Exits with 0 if no more is in use now than the limit, with 1 if the key is denied until time
    /// has repaid the rest.
    Charge(client::Units),
    /// Refund units to a limit
    ///
    /// A key that has used less gets back what it has used: the answer says what remains.
    Refund(client::Units),
    Block(client::Block),
    /// End the block of a key
    ///
    /// Exits with 0 if the key was blocked, 1 if it was not.
    Unblock(client::Change),
    /// Print the keys that operators blocked, with who did it, until when and why
    Blocks(client::List),
    Override(client::Override),
    /// Print the keys that operators gave a quota while the server runs
    Overrides(client::List),
    Explain(client::Explain),
    /// Print what operators did since the server started, the newest first
    Audit(client::All),
    /// Forget the use of a key, or of all keys of a limit if no key is given
    ///
    /// Blocks stay.
    Reset(client::Change),
    Mark(client::Mark),
    /// Reload a server's rules, and print the result
    ///
    /// Exits with 0 if the rules are in force, 3 if they were rejected; the previous rules then
    /// stay active.
    Reload(client::All),
    /// Print a server's rules in force, one limit per line, in the form of a rules file
    ///
    /// --format json prints the server's JSON on one line, including the number of keys of each
    /// limit. Options with default values are omitted.
    Rules(client::All),
    Token(token::Args),
    #[cfg(feature = "top")]
    Top(top::Args),
    Usage(usage::Args),
    Record(record::Args),
    Import(import::Args),
    #[cfg(feature = "sim")]
    Simulate(Box<simulate::Args>),
    #[cfg(feature = "sim")]
    Metrics(metrics::Args),
    Completions(manual::Completions),
    Man(manual::Man),
}

fn main() -> ExitCode {
    let arguments = ratelimit::arguments(std::env::args_os().collect());
    match config_file::command_line(&arguments).command {
        Command::Serve(args) => serve::run_with(*args, |_| ()),
        Command::Demo(args) => demo::run(&args),
        Command::Ratelimit(_) => unreachable!("its settings became options of serve"),
        Command::Check(args) => check::run(&args),
        Command::Health(args) => client::health(&args),
        Command::Acquire(args) => client::acquire(&args),
        Command::Peek(args) => client::peek(&args),
        Command::Charge(args) => client::charge(&args),
        Command::Refund(args) => client::refund(&args),
        Command::Block(args) => client::block(&args),
        Command::Unblock(args) => client::unblock(&args),
        Command::Blocks(args) => client::blocks(&args),
        Command::Override(args) => client::override_key(&args),
        Command::Overrides(args) => client::overrides(&args),
        Command::Explain(args) => client::explain(&args),
        Command::Audit(args) => client::audit(&args),
        Command::Reset(args) => client::reset(&args),
        Command::Mark(args) => client::mark(&args),
        Command::Reload(args) => client::reload(&args),
        Command::Rules(args) => client::rules(&args),
        Command::Token(args) => token::run(&args),
        #[cfg(feature = "top")]
        Command::Top(args) => top::run(&args),
        Command::Usage(args) => usage::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Import(args) => import::run(&args),
        #[cfg(feature = "sim")]
        Command::Simulate(args) => simulate::run(&args),
        #[cfg(feature = "sim")]
        Command::Metrics(args) => metrics::run(&args),
        Command::Completions(args) => manual::completions(&args),
        Command::Man(args) => manual::man(&args),
    }
}
