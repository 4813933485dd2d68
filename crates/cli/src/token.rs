//! `tidegate token`: generates a token for a client, with its entry for the access file.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

use std::process::ExitCode;

use serde_json::json;
use tidegate_server::access::{new_token, parse};

use crate::{client::Printed, output};

/// Generate a token for a client of serve --access
///
/// Prints a token of 256 random bits, and the entry for the access file, which contains only the
/// token's SHA-256. To replace a token while clients use it, add the new digest to the entry, give
/// the clients the new token, then remove the old digest. To use your own token, which must be
/// impossible to guess, compute its digest with: printf %s "$TOKEN" | sha256sum
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The client's name
    #[arg(default_value = "client")]
    name: String,
    /// The client's roles: decide, observe, operate or report (separate several with commas)
    #[arg(
        long,
        value_name = "ROLE",
        value_delimiter = ',',
        default_value = "decide"
    )]
    roles: Vec<String>,
    #[command(flatten)]
    format: Printed,
}

pub fn run(args: &Args) -> ExitCode {
    let (token, digest) = match new_token() {
        Ok(made) => made,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let entry = format!(
        "  - {{name: {}, roles: [{}], tokens: ['{digest}']}}",
        args.name,
        args.roles.join(", ")
    );
    // The entry is checked as `serve` would check it, so that a wrong name or role is reported now.
    if let Err(problems) = parse(&format!("access:\n{entry}\n")) {
        for problem in problems {
            let mend = problem.mending().map(|mend| format!("; {mend}"));
            eprintln!("error: {}{}", problem.what(), mend.unwrap_or_default());
        }
        return ExitCode::from(2);
    }
    let text = if args.format.is_json() {
        let (name, roles) = (&args.name, &args.roles);
        json!({"name": name, "roles": roles, "token": token, "digest": digest}).to_string() + "\n"
    } else {
        format!(
            "The token, which is shown only here:\n\n  {token}\n\nThe client's entry below `access:` in the access file:\n\n{entry}\n"
        )
    };
    output::exit_code(output::write(&text))
}
