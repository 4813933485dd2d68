//! Commands, options and variables of features that this program was built without.

use std::env;

use clap::error::{ContextKind, ContextValue};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::help;

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
