//! `tidegate import`: prints another service's configuration as a rules file.
#![allow(clippy::doc_markdown, reason = "the options' comments are their help text")]

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::Subcommand;
use tidegate_server::{envoy, rules::Keeping};

/// Print another service's configuration as a rules file
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    from: From,
}

#[derive(Debug, Subcommand)]
enum From {
    /// The limits of envoyproxy/ratelimit's configuration
    ///
    /// Clients that ask a server for a limit by name need the limits as rules. For Envoy itself, a server reads the
    /// configuration directly: `tidegate serve --envoy-config`. Both have the same limits, with the same names.
    Envoy {
        /// A file, or a directory with files
        path: PathBuf,
    },
}

pub fn run(args: &Args) -> ExitCode {
    let From::Envoy { path } = &args.from;
    match envoy::load(path, Keeping::Memory) {
        Ok(config) => {
            // If standard output is closed, the rest is not needed.
            let _ = std::io::stdout().write_all(envoy::to_yaml(&config).as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
