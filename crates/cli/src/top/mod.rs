//! `tidegate top`: the limits of a server, live in a terminal.
//!
//! `data` is what the server says, `app` what is shown and what keys do (without any terminal), `view` draws it, `terminal` runs
//! both on a real one.
#![allow(clippy::doc_markdown, reason = "the options' comments are their help text")]

mod app;
mod data;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;

use self::{
    app::App,
    data::{Overview, Server},
};
use crate::{
    client::{ClientError, How, Target},
    values::{Address, positive, server},
};

/// Show a server's limits live: who asks, who is denied, and by which limit
///
/// Keys: arrows or j and k move, Enter opens a limit and then a key, Esc goes back, s sorts, / filters, b blocks a key and u
/// unblocks it (after a question), q quits. It needs no colours and 80 columns. Control characters of keys are not shown.
///
/// It asks the control plane (serve --admin).
///
/// Exits with 0, or with 3 if the server cannot be asked (with --once and --json).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The server's control plane: host:port, http://host:port or https://host:port, as its --admin has it
    #[arg(value_name = "URL", env = "TIDEGATE_ADMIN_SERVER", default_value = "127.0.0.1:8082", value_parser = server)]
    server: Address,
    #[command(flatten)]
    how: How,
    /// How often to ask
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = positive)]
    every: Duration,
    /// What comes first
    #[arg(long, value_name = "COLUMN", default_value = "denied")]
    sort: Sort,
    /// Only limits whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the table once, and exit
    #[arg(long)]
    once: bool,
    /// Print what the server says as a line of JSON, once or at each interval
    #[arg(long)]
    json: bool,
}

/// The order of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Most denied a second
    #[default]
    Denied,
    /// Largest share denied
    Share,
    /// Most admitted a second
    Admitted,
    /// By name
    Name,
}

pub fn run(args: &Args) -> ExitCode {
    let server = Server(Target::admin(&args.server, &args.how));
    let done = if args.json {
        lines(&server, args)
    } else if args.once {
        server.overview().map(|overview| print(&table(args, overview)))
    } else if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        eprintln!("error: this is no terminal: --once prints the table once, --json prints JSON");
        return ExitCode::from(2);
    } else {
        let app = App::new(&args.server.to_string(), args.sort, &args.filter);
        if let Err(error) = terminal::run(app, &server, args.every) {
            eprintln!("error: the terminal: {error}");
            return ExitCode::FAILURE;
        }
        Ok(())
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}

fn lines(server: &Server<'_>, args: &Args) -> Result<(), ClientError> {
    loop {
        let value = server.overview_json()?;
        if writeln!(io::stdout(), "{value}").is_err() || args.once {
            return Ok(());
        }
        pause(args.every);
    }
}

#[allow(clippy::disallowed_methods, reason = "a command that prints at intervals has nothing else to do")]
fn pause(span: Duration) {
    std::thread::sleep(span);
}

fn table(args: &Args, overview: Overview) -> String {
    let mut app = App::new(&args.server.to_string(), args.sort, &args.filter);
    app.show(overview);
    view::plain(&app)
}

fn print(text: &str) {
    // A closed standard output is no failure.
    let _ = io::stdout().write_all(text.as_bytes());
}
