//! `tidegate import`: prints another service's configuration as a rules file.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
use tidegate_flow::{rules::Rules as GateRules, sources::yaml};
use tidegate_server::{
    envoy,
    rules::{
        Keeping, RulesError,
        import::{Format, import},
        read_text,
    },
};

use crate::output;

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
    /// The limits of nginx: limit_req and limit_conn
    ///
    /// Prints a rule for each zone that is used. Other directives are left out.
    Nginx {
        /// The configuration, without the files that it includes
        file: PathBuf,
    },
    /// The options of rate-limiter-flexible (npm), as JSON
    RateLimiterFlexible {
        /// A file with the options of one limiter, or a list of them
        file: PathBuf,
    },
    /// The options of express-rate-limit (npm), as JSON
    ExpressRateLimit {
        /// A file with the options of one limiter, or a list of them
        file: PathBuf,
    },
    /// The settings of Flask-Limiter: RATELIMIT_DEFAULT and others, a line each
    FlaskLimiter {
        /// A file of Python or of the environment
        file: PathBuf,
    },
    /// The YAML of bucket4j-spring-boot-starter
    Bucket4j {
        /// A file such as application.yaml
        file: PathBuf,
    },
    /// The YAML of resilience4j's rate limiters
    Resilience4j {
        /// A file such as application.yaml
        file: PathBuf,
    },
    /// The middlewares rateLimit and inFlightReq of Traefik
    Traefik {
        /// A dynamic configuration or a Middleware of Kubernetes, as YAML or JSON
        file: PathBuf,
    },
    /// The plugin rate-limiting of Kong
    Kong {
        /// A declarative configuration, or what the Admin API prints
        file: PathBuf,
    },
    /// The plugins limit-count, limit-req and limit-conn of APISIX
    Apisix {
        /// Routes, services or plugins, as YAML or JSON
        file: PathBuf,
    },
    /// The rate limiting rules of Cloudflare, as JSON of its rulesets
    Cloudflare {
        /// A ruleset, or one of its rules
        file: PathBuf,
    },
    /// Strings of Python's limits, as slowapi and Flask-Limiter have them
    Limits {
        /// Strings such as "10/second; 100 per 5 minutes"
        #[arg(required = true)]
        strings: Vec<String>,
        /// The strategy, Flask-Limiter's RATELIMIT_STRATEGY
        #[arg(long, value_enum, default_value_t = Strategy::FixedWindow)]
        strategy: Strategy,
    },
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Strategy {
    FixedWindow,
    MovingWindow,
}

pub fn run(args: &Args) -> ExitCode {
    let imported = match &args.from {
        From::Envoy { path } => {
            envoy::load(path, Keeping::Memory).map(|config| envoy::to_yaml(&config))
        }
        From::Sentinel { files } => of_sentinel(files),
        From::Nginx { file } => of_file(Format::Nginx, file),
        From::RateLimiterFlexible { file } => of_file(Format::RateLimiterFlexible, file),
        From::ExpressRateLimit { file } => of_file(Format::ExpressRateLimit, file),
        From::FlaskLimiter { file } => of_file(Format::FlaskLimiter, file),
        From::Bucket4j { file } => of_file(Format::Bucket4j, file),
        From::Resilience4j { file } => of_file(Format::Resilience4j, file),
        From::Traefik { file } => of_file(Format::Traefik, file),
        From::Kong { file } => of_file(Format::Kong, file),
        From::Apisix { file } => of_file(Format::Apisix, file),
        From::Cloudflare { file } => of_file(Format::Cloudflare, file),
        From::Limits { strings, strategy } => {
            let format = match strategy {
                Strategy::FixedWindow => Format::LimitsFixed,
                Strategy::MovingWindow => Format::LimitsMoving,
            };
            imported(format, &strings.join("\n"), None)
        }
    };
    match imported {
        Ok(text) => output::exit_code(output::write(&text)),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn of_file(format: Format, file: &Path) -> Result<String, RulesError> {
    imported(format, &read_text(file)?, Some(file))
}

fn imported(format: Format, text: &str, file: Option<&Path>) -> Result<String, RulesError> {
    let imported = import(format, text).map_err(|problems| RulesError::Invalid {
        path: file.map(Path::to_owned),
        problems,
    })?;
    for note in imported.notes {
        eprintln!("note: {note}");
    }
    Ok(imported.yaml)
}

fn of_sentinel(files: &[PathBuf]) -> Result<String, RulesError> {
    let mut rules = GateRules::default();
    for file in files {
        // Sentinel has no adaptive rules.
        rules = rules.and(crate::check::gate_rules(file)?);
    }
    let (text, notes) = yaml::write(&rules);
    for note in notes {
        eprintln!("note: {note}");
    }
    Ok(format!("gate: sentinel\n{text}"))
}
