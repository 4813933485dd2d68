//! `tidegate import`: prints another service's configuration as a rules file.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::Subcommand;
use tidegate_flow::{rules::Rules as GateRules, sources::yaml};
use tidegate_server::{
    envoy,
    rules::{Keeping, RulesError},
};

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
    /// Clients that ask a server for a limit by name need the limits as rules. For Envoy itself, a
    /// server reads the configuration directly: `tidegate serve --envoy-config`. Both have the same
    /// limits, with the same names.
    Envoy {
        /// A file, or a directory with files
        path: PathBuf,
    },
    /// The rules of Alibaba Sentinel's programs, in its JSON
    ///
    /// Programs that link the library read the rules file; `gate: sentinel` at its top lets them
    /// count as Sentinel does. Notes about what YAML cannot express go to standard error. Cluster
    /// rules are for `tidegate serve --sentinel-rules`, which reads Sentinel's JSON.
    Sentinel {
        /// Files, each with rules of one kind, such as flow rules
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

pub fn run(args: &Args) -> ExitCode {
    let imported = match &args.from {
        From::Envoy { path } => {
            envoy::load(path, Keeping::Memory).map(|config| envoy::to_yaml(&config))
        }
        From::Sentinel { files } => of_sentinel(files),
    };
    match imported {
        Ok(text) => {
            // If standard output is closed, the rest is not needed.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn of_sentinel(files: &[PathBuf]) -> Result<String, RulesError> {
    let mut rules = GateRules::default();
    for file in files {
        let GateRules {
            authority,
            system,
            hot_params,
            flow,
            isolation,
            adaptive: _,
            breakers,
        } = crate::check::gate_rules(file)?;
        rules.authority.extend(authority);
        rules.system.extend(system);
        rules.hot_params.extend(hot_params);
        rules.flow.extend(flow);
        rules.isolation.extend(isolation);
        rules.breakers.extend(breakers);
    }
    let (text, notes) = yaml::write(&rules);
    for note in notes {
        eprintln!("note: {note}");
    }
    Ok(format!("gate: sentinel\n{text}"))
}
