//! Commands, options and variables of features that this program was built without, and variables
//! that no option has.

use std::{collections::BTreeSet, env};

use clap::error::{ContextKind, ContextValue};
use tidegate_config::nearest;

use crate::help;

/// A feature, and the names that only programs with it know.
struct Feature {
    name: &'static str,
    is_on: bool,
    commands: &'static [&'static str],
    options: &'static [&'static str],
    /// Without an option of the feature, clap does not look at its variable.
    variables: &'static [&'static str],
}

const FEATURES: [Feature; 4] = [
    Feature {
        name: "otlp",
        is_on: cfg!(feature = "otlp"),
        commands: &[],
        options: &["--otlp", "--otlp-protocol", "--otlp-sample"],
        variables: &[
            "TIDEGATE_OTLP",
            "TIDEGATE_OTLP_PROTOCOL",
            "TIDEGATE_OTLP_SAMPLE",
        ],
    },
    Feature {
        name: "sim",
        is_on: cfg!(feature = "sim"),
        commands: &["simulate", "metrics"],
        options: &[],
        variables: &[],
    },
    Feature {
        name: "top",
        is_on: cfg!(feature = "top"),
        commands: &["top"],
        options: &[],
        variables: &[],
    },
    Feature {
        name: "webhook",
        is_on: cfg!(feature = "webhook"),
        commands: &[],
        options: &["--webhook"],
        variables: &["TIDEGATE_WEBHOOK"],
    },
];

/// If the command line fails because of a missing feature: the message that says so.
pub fn of_command_line(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (command, option) = (
        text(ContextKind::InvalidSubcommand),
        text(ContextKind::InvalidArg),
    );
    let mut missing = FEATURES.iter().filter(|feature| !feature.is_on);
    missing.find_map(|feature| {
        let has =
            |names: &[&str], name: Option<&str>| name.is_some_and(|name| names.contains(&name));
        let name = command
            .filter(|_| has(feature.commands, command))
            .or_else(|| option.filter(|_| has(feature.options, option)))?;
        Some(message(name, feature.name))
    })
}

/// If the environment sets an option of a missing feature: the message that says so.
pub fn of_environment() -> Option<String> {
    let mut missing = FEATURES.iter().filter(|feature| !feature.is_on);
    missing.find_map(|feature| {
        let mut variables = feature.variables.iter();
        let name = variables.find(|name| env::var_os(name).is_some())?;
        Some(message(name, feature.name))
    })
}

fn message(name: &str, feature: &str) -> String {
    format!(
        "{name}: this program was built without the feature `{feature}`; packages and images have all features, \
         and so has `cargo install tidegate-cli --features full`"
    )
}

/// How the variables of options begin.
const PREFIX: &str = "TIDEGATE_";

/// The variables of the environment that are probably misspelt, each with the one that was meant.
/// Others that no option has belong to other programs, as those of Kubernetes for a service with
/// this name do.
pub fn misspelt() -> Vec<(String, String)> {
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    misspelt_of(names)
}

fn misspelt_of(names: impl IntoIterator<Item = String>) -> Vec<(String, String)> {
    let command = help::command();
    let options = std::iter::once(&command)
        .chain(command.get_subcommands())
        .flat_map(clap::Command::get_arguments)
        .filter_map(|argument| argument.get_env()?.to_str());
    let features = FEATURES.iter().flat_map(|feature| feature.variables);
    let known: BTreeSet<&str> = options
        .chain(features.copied())
        .filter_map(|name| name.strip_prefix(PREFIX))
        .collect();
    let meant = |name: String| {
        let rest = name.strip_prefix(PREFIX)?;
        // Kubernetes sets these for each service: TIDEGATE_ADMIN_PORT is not TIDEGATE_ADMIN_HOST.
        let is_of_kubernetes = ["PORT", "SERVICE"]
            .iter()
            .any(|word| rest.split('_').any(|part| part == *word));
        if known.contains(rest) || is_of_kubernetes {
            return None;
        }
        let meant = nearest(rest, known.iter().copied())?;
        let meant = format!("{PREFIX}{meant}");
        Some((name, meant))
    };
    names.into_iter().filter_map(meant).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_variable_is_told_from_those_of_others() {
        let meant = |name: &str| misspelt_of([name.to_owned()]).pop().map(|(_, meant)| meant);
        for (name, expected) in [
            ("TIDEGATE_MAX_KEY", "TIDEGATE_MAX_KEYS"),
            ("TIDEGATE_MAXKEYS", "TIDEGATE_MAX_KEYS"),
            ("TIDEGATE_RULE", "TIDEGATE_RULES"),
            ("TIDEGATE_TLS_CRET", "TIDEGATE_TLS_CERT"),
        ] {
            assert_eq!(meant(name).as_deref(), Some(expected));
        }
        for other in [
            "TIDEGATE_MAX_KEYS",
            // Of clients.
            "TIDEGATE_TOKEN",
            "TIDEGATE_ADMIN_SERVER",
            // Of the checks of this repository.
            "TIDEGATE_LONG",
            "TIDEGATE_OFFLINE",
            "TIDEGATE_ENVOY",
            "TIDEGATE_REDIS_SERVER",
            "TIDEGATE_WRITE_STATE",
            // Of Kubernetes.
            "TIDEGATE_PORT",
            "TIDEGATE_SERVICE_HOST",
            "TIDEGATE_PORT_8080_TCP",
            "TIDEGATE_ADMIN_PORT",
            "RULE",
        ] {
            assert_eq!(meant(other), None, "{other}");
        }
    }

    #[test]
    fn each_name_is_known_if_its_feature_is_on_and_explained_if_it_is_off() {
        for feature in FEATURES {
            let commands = feature.commands.iter().map(|name| vec!["tidegate", name]);
            let options = feature
                .options
                .iter()
                .map(|name| vec!["tidegate", "serve", name]);
            for line in commands.chain(options) {
                let parsed = help::command().try_get_matches_from(&line);
                let explained = parsed.err().as_ref().and_then(of_command_line);
                assert_eq!(explained.is_some(), !feature.is_on, "{line:?}");
                if let Some(text) = explained {
                    assert!(text.contains("--features full"), "{text}");
                }
                // With the feature, an error is about something else than the name.
                if feature.is_on
                    && let Err(error) = help::command().try_get_matches_from(&line)
                {
                    let kind = error.kind();
                    let is_unknown = matches!(
                        kind,
                        clap::error::ErrorKind::UnknownArgument
                            | clap::error::ErrorKind::InvalidSubcommand
                    );
                    assert!(!is_unknown, "{line:?}: {error}");
                }
            }
        }
    }
}
