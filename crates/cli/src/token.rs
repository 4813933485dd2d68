//! `tidegate token`: a token for a client, and its entry for the access file.
#![allow(clippy::doc_markdown, reason = "the options' comments are their help text")]

use std::{
    io::{self, Write},
    process::ExitCode,
};

use tidegate_server::access::{new_token, parse};

/// Make a token for a client of serve --access
///
/// Prints the token, of 256 random bits, and the entry of the access file, which holds only the token's SHA-256. To replace a
/// token while clients use it, put the new digest beside the old one, give the clients the new token, then remove the old digest.
/// The digest of a token of your own, which nobody must be able to guess: printf %s "$TOKEN" | sha256sum
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The client's name
    #[arg(default_value = "client")]
    name: String,
    /// What the client may do: decide, observe or operate (separate several with commas)
    #[arg(long, value_name = "ROLE", value_delimiter = ',', default_value = "decide")]
    roles: Vec<String>,
}

pub fn run(args: &Args) -> ExitCode {
    let (token, digest) = match new_token() {
        Ok(made) => made,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let entry =
        format!("  - {{name: {}, roles: [{}], tokens: ['{digest}']}}", args.name, args.roles.join(", "));
    // What is printed here is what `serve` reads: a wrong name or role is told before somebody uses it.
    if let Err(problems) = parse(&format!("access:\n{entry}\n")) {
        for problem in problems {
            eprintln!("error: {}", problem.what());
        }
        return ExitCode::from(2);
    }
    let text = format!(
        "The token, which is shown only here:\n\n  {token}\n\nThe client's entry below `access:` in the access file:\n\n{entry}\n"
    );
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
