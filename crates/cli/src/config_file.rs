//! `tidegate serve --config FILE`: the options of `serve` from a YAML file. The command line and
//! environment variables take precedence.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    path::{Path, PathBuf},
};

use clap::{
    ArgAction, FromArgMatches,
    error::{ContextKind, ContextValue},
};
use tidegate_config::{Complaints, Fields, Kind, Node, Problem, file, parse};

use crate::{Cli, Command, help, missing, serve::without_effect};

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// Options that the file cannot set.
const NOT_IN_FILE: [&str; 3] = ["config", "help", "version"];

/// An option and its values, as the file says it. All of it lives as long as the program.
type OptionValues = (&'static str, &'static [&'static str]);

/// Why the file is refused.
#[derive(Debug, thiserror::Error)]
enum ConfigFileError {
    #[error("--config {}: cannot be read: {source}", path.display())]
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// All that is wrong, each with its line and the mend.
    #[error("{}", listed(path, problems))]
    Wrong {
        path: PathBuf,
        problems: Vec<Problem>,
    },
}

fn listed(path: &Path, problems: &[Problem]) -> String {
    let shown = problems.iter().map(|problem| {
        let line = problem.line().map(|line| format!(":{line}"));
        let mend = problem.mending().map(|mend| format!("; {mend}"));
        let (line, mend) = (line.unwrap_or_default(), mend.unwrap_or_default());
        format!("{}{line}: {}{mend}", path.display(), problem.what())
    });
    shown.collect::<Vec<_>>().join("\n")
}

/// The command line, with what a configuration file adds to it. Ends the program where that makes
/// no sense.
pub fn command_line(arguments: &[OsString]) -> Cli {
    let mut command = help::command();
    let mut in_file = BTreeSet::new();
    if let Some(path) = config_of(arguments) {
        let entries = match read(Path::new(&path)) {
            Ok(entries) => entries,
            Err(error) => refuse(&error.to_string()),
        };
        in_file.extend(entries.iter().map(|(name, _)| *name));
        command = command.mut_subcommand("serve", |serve| {
            serve.mut_args(|arg| {
                let entry = entries
                    .iter()
                    .find(|(name, _)| arg.get_long() == Some(name));
                match entry {
                    Some((_, values)) => arg.default_values(values.iter().copied()),
                    None => arg,
                }
            })
        });
    }
    let matches = command.try_get_matches_from(arguments);
    let matches = matches.unwrap_or_else(|error| match missing::of_command_line(&error) {
        Some(text) => refuse(&text),
        None => error.exit(),
    });
    if matches.subcommand_matches("serve").is_some()
        && let Some(text) = missing::of_environment()
    {
        refuse(&text);
    }
    let mut cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if let (Command::Serve(args), Some(serve)) =
        (&mut cli.command, matches.subcommand_matches("serve"))
    {
        args.without_effect = without_effect(serve, &in_file);
    }
    cli
}

fn refuse(text: &str) -> ! {
    eprintln!("{text}");
    std::process::exit(2);
}

/// Returns the file that the command line gives to `serve`. Other mistakes on it are reported
/// later.
fn config_of(arguments: &[OsString]) -> Option<OsString> {
    let matches = help::command()
        .ignore_errors(true)
        .try_get_matches_from(arguments)
        .ok()?;
    let serve = matches.subcommand_matches("serve")?;
    serve.get_raw("config")?.next().map(OsString::from)
}

fn read(path: &Path) -> Result<Vec<OptionValues>, ConfigFileError> {
    let text = file::read(path, MAX_FILE).and_then(|bytes| {
        String::from_utf8(bytes).map_err(|_| std::io::Error::other("it is not UTF-8 text"))
    });
    let text = text.map_err(|source| ConfigFileError::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    let entries = tidegate_config::read(parse(&text), |root, complaints| {
        // An empty file says nothing.
        root.map(|root| entries(root, complaints))
            .unwrap_or_default()
    });
    entries.map_err(|problems| ConfigFileError::Wrong {
        path: path.to_owned(),
        problems,
    })
}

fn entries(root: &Node, complaints: &Complaints) -> Vec<OptionValues> {
    // Once in the life of the program.
    let command: &'static clap::Command = Box::leak(Box::new(help::command()));
    let Some(serve) = command.find_subcommand("serve") else {
        return Vec::new();
    };
    let options = serve
        .get_arguments()
        .filter_map(|arg| Some((arg.get_long()?, arg)));
    let options: Vec<_> = options
        .filter(|(name, _)| !NOT_IN_FILE.contains(name))
        .collect();
    let known: Vec<&'static str> = options.iter().map(|(name, _)| *name).collect();
    let Some(fields) = Fields::open(root, "the configuration", &known, complaints) else {
        return Vec::new();
    };
    let mut entries = Vec::new();
    for (name, arg) in options {
        let Some(node) = fields.get(name) else {
            continue;
        };
        let takes_several = arg.get_value_delimiter().is_some();
        let is_flag = matches!(arg.get_action(), ArgAction::SetTrue);
        let texts: Option<Vec<&str>> = match &node.kind {
            Kind::Sequence(items) if takes_several => items.iter().map(Node::text).collect(),
            _ => node.text().map(|text| vec![text]),
        };
        let wrong = match &texts {
            None if takes_several => Some("write a text, or a list of texts"),
            None => Some("write one value"),
            Some(texts) if is_flag && !matches!(texts[..], ["true" | "false"]) => {
                Some("write true or false")
            }
            Some(_) => None,
        };
        let texts = texts.unwrap_or_default();
        if let Some(mend) = wrong {
            fields.refuse(name, node, mend);
        } else if let Some(why) = texts
            .iter()
            .find_map(|text| refused(serve, name, text, is_flag))
        {
            complaints.add(Problem::at(node.line, why));
        } else {
            let values: Vec<&'static str> = texts
                .iter()
                .map(|text| &*Box::leak((*text).to_owned().into_boxed_str()))
                .collect();
            entries.push((name, &*values.leak()));
        }
    }
    entries
}

/// Why the option does not take this value.
fn refused(serve: &clap::Command, name: &str, value: &str, is_flag: bool) -> Option<String> {
    if is_flag {
        return None;
    }
    let alone = serve.clone().no_binary_name(true);
    let error = alone
        .try_get_matches_from([format!("--{name}={value}")])
        .err()?;
    // Other options that this one needs may be given elsewhere.
    let about = error.get(ContextKind::InvalidArg)?.to_string();
    if !about.starts_with(&format!("--{name} ")) || error.get(ContextKind::InvalidValue).is_none() {
        return None;
    }
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    let mut why = first.trim_start_matches("error: ").to_owned();
    if let Some(ContextValue::Strings(known)) = error.get(ContextKind::ValidValue)
        && !known.is_empty()
    {
        why = format!("{why}; choose one of: {}", known.join(", "));
    }
    Some(why)
}
