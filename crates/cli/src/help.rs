//! The definition of the command line, with paragraphs that wrap at the terminal's width.

use clap::{Command, CommandFactory, builder::StyledStr};

use crate::Cli;

/// The definition of the command line.
pub fn command() -> Command {
    Cli::command().mut_subcommands(|command| {
        let about = command.get_long_about().map(wrapping);
        let command = command.mut_args(|arg| match arg.get_long_help().map(wrapping) {
            Some(help) => arg.long_help(help),
            None => arg,
        });
        match about {
            Some(about) => command.long_about(about),
            None => command,
        }
    })
}

/// Joins the lines of each paragraph. Indented lines are examples and stay.
fn wrapping(text: &StyledStr) -> String {
    let mut joined = String::new();
    let mut in_paragraph = false;
    for line in text.to_string().lines() {
        let is_prose = !line.is_empty() && !line.starts_with(' ');
        if !joined.is_empty() {
            joined.push(if in_paragraph && is_prose { ' ' } else { '\n' });
        }
        joined.push_str(line);
        in_paragraph = is_prose;
    }
    joined
}
