//! The `tidegate` command.

mod check;
mod serve;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Decides whether a piece of work may go ahead now, later, or not at all.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Check(check::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(args) => serve::run(args),
        Command::Check(args) => check::run(&args),
    }
}
