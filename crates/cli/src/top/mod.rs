//! `tidegate top`: the limits of a server, live in a terminal.
//!
//! `data` gets the server's data, `app` has the state and handles key strokes (without a terminal),
//! `view` draws, and `terminal` runs everything on a real terminal.
#![allow(
    clippy::doc_markdown,
    reason = "the options' comments are their help text"
)]

mod app;
mod data;
mod terminal;
mod view;

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;

use self::{app::App, data::TopServer};
use crate::{
    client::{AdminTarget, ClientError, Printed, exit, pause, print_list},
    output::written,
    values::positive,
};

/// Show a server's limits live, with their denials and heavy keys
///
/// Keys: arrows or j and k move, Enter opens a limit and then a key, Esc goes back, s sorts, /
/// filters, b blocks a key and u unblocks it (after a question for how long and why), ? shows all
/// keys, q quits. It works with 80 columns, uses more if there are more, and needs no colours.
/// Control characters in keys are not shown.
///
/// The data comes from the control plane (serve --admin).
///
/// Exits with 0, or with 3 if the server cannot be reached (with --once and --format json).
///
/// --format json prints the server's data as a line of JSON at each interval, or once with --once.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: AdminTarget,
    /// How often to refresh
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = positive)]
    every: Duration,
    /// The column to sort by
    #[arg(long, value_name = "COLUMN", default_value = "denied")]
    sort: Sort,
    /// Show only limits whose name contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the table once, below what is wrong with the server, and exit
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    format: Printed,
}

/// The order of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// Most denied per second
    #[default]
    Denied,
    /// Largest fraction denied
    Share,
    /// Most admitted per second
    Admitted,
    /// By name
    Name,
}

pub fn run(args: &Args) -> ExitCode {
    let server = TopServer(args.target.target());
    let mut app = App::new(&args.target.server.to_string(), args.sort, &args.filter);
    let done = if args.format.is_json() {
        lines(&server, args)
    } else if args.once {
        server.overview().map(|overview| {
            app.show(overview);
            print_list(view::plain(&app).trim_end());
        })
    } else if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        eprintln!(
            "error: standard output is not a terminal: --once prints the table once, --format json prints JSON"
        );
        return ExitCode::from(2);
    } else {
        if let Err(error) = terminal::run(app, &server, args.every) {
            eprintln!("error: the terminal: {error}");
            return ExitCode::FAILURE;
        }
        Ok(())
    };
    exit(done.map(|()| true))
}

fn lines(server: &TopServer<'_>, args: &Args) -> Result<(), ClientError> {
    loop {
        let value = server.overview_json()?;
        let line = writeln!(io::stdout(), "{value}");
        let is_closed = line.is_err();
        written(line, "standard output")?;
        if is_closed || args.once {
            return Ok(());
        }
        pause(args.every);
    }
}
