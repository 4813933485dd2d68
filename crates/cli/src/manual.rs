//! Shell completions and man pages, generated from the definition of the command line.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use clap_complete::Shell;

use crate::{help, output};

/// Print completions for a shell
///
/// bash: tidegate completions bash > ~/.local/share/bash-completion/completions/tidegate
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

/// Print the man page, or write one for each command
#[derive(Debug, clap::Args)]
pub struct Man {
    /// Write tidegate.1, tidegate-serve.1 and the others into this directory instead of printing
    /// tidegate.1
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn completions(args: &Completions) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut help::command(), "tidegate", &mut script);
    exit_code(io::stdout().write_all(&script), "standard output")
}

pub fn man(args: &Man) -> ExitCode {
    if let Some(dir) = &args.out {
        let written =
            fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(help::command(), dir));
        return exit_code(written, &dir.display().to_string());
    }
    let mut page = Vec::new();
    let rendered = clap_mangen::Man::new(help::command()).render(&mut page);
    exit_code(
        rendered.and_then(|()| io::stdout().write_all(&page)),
        "standard output",
    )
}

fn exit_code(result: io::Result<()>, place: &str) -> ExitCode {
    output::exit_code(output::written(result, place))
}
