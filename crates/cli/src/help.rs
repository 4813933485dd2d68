//! The definition of the command line, with the options of `serve` in groups and paragraphs that wrap at the terminal's width.

use clap::{Arg, Command, CommandFactory, builder::StyledStr};

use crate::Cli;

/// The groups in the help of `serve`, by listener and then by subject.
const GROUPS: [(&str, &[&str]); 11] = [
    ("HTTP", &["http", "http-origin", "http-write-timeout"]),
    (
        "Redis protocol",
        &["resp", "resp-password", "resp-threads", "resp-idle-timeout", "resp-max-period", "resp-throttle"],
    ),
    (
        "Control plane",
        &[
            "admin",
            "admin-host",
            "open-metrics",
            "metrics-path",
            "audit",
            "usage",
            "webhook",
            "top-keys",
            "history-memory",
            "trace-keys",
            "trace-memory",
            "flow-rules",
        ],
    ),
    (
        "gRPC, for Envoy",
        &[
            "grpc",
            "grpc-max-age",
            "grpc-max-age-grace",
            "envoy-config",
            "envoy-xds",
            "envoy-consume",
            "envoy-headers",
            "envoy-header-names",
            "envoy-merge-domains",
            "envoy-near-limit",
            "envoy-shadow",
            "envoy-quota",
            "envoy-metadata",
            "envoy-without-reasons",
            "envoy-await-rules",
            "envoy-statsd",
            "envoy-metric-names",
        ],
    ),
    ("HAProxy", &["spoe"]),
    (
        "Sentinel",
        &[
            "sentinel-token",
            "sentinel-rules",
            "sentinel-sharing",
            "sentinel-max-qps",
            "sentinel-dashboard",
            "sentinel-dashboard-networks",
        ],
    ),
    (
        "All listeners",
        &[
            "tls-cert",
            "tls-key",
            "tls-listeners",
            "tls-client-ca",
            "tls-client-san",
            "access",
            "insecure",
            "max-connections",
            "max-connections-per-peer",
            "vendor-headers",
            "grace",
        ],
    ),
    ("Rules", &["rules", "rules-writable", "reload-interval", "max-keys", "max-memory", "max-reservations"]),
    (
        "Shared store",
        &[
            "store",
            "store-password",
            "store-password-file",
            "store-prefix",
            "store-deadline",
            "nodes",
            "name",
        ],
    ),
    ("State", &["state", "state-interval"]),
    ("Log and telemetry", &["log-format", "log-level", "otlp", "otlp-protocol", "otlp-sample"]),
];

/// The options that `serve -h` shows: one page.
const COMMON: [&str; 15] = [
    "config",
    "http",
    "resp",
    "admin",
    "grpc",
    "spoe",
    "tls-cert",
    "tls-key",
    "access",
    "insecure",
    "rules",
    "max-memory",
    "store",
    "state",
    "log-level",
];

/// The definition of the command line.
pub fn command() -> Command {
    Cli::command()
        .mut_subcommand("serve", |serve| {
            let after = "These are the common options. `tidegate serve --help` has all of them.";
            serve.after_help(after).mut_args(in_its_group)
        })
        .mut_subcommands(|command| {
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

fn in_its_group(arg: Arg) -> Arg {
    let Some(name) = arg.get_long().map(str::to_owned) else { return arg };
    let is_common = COMMON.contains(&name.as_str());
    let group = GROUPS.iter().find(|(_, options)| options.contains(&name.as_str()));
    arg.help_heading(group.map(|(heading, _)| *heading)).hide_short_help(!is_common)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_of_serve_is_in_one_group() {
        let command = command();
        let serve = command.find_subcommand("serve").unwrap();
        let mut options: Vec<&str> = serve.get_arguments().filter_map(Arg::get_long).collect();
        options.retain(|option| *option != "config");
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, options)| *options).copied().collect();
        if cfg!(not(feature = "otlp")) {
            grouped.retain(|option| !option.starts_with("otlp"));
        }
        if cfg!(not(feature = "webhook")) {
            grouped.retain(|option| *option != "webhook");
        }
        options.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(options, grouped);
    }

    /// All commands and what is below them.
    fn all(command: &Command) -> Vec<&Command> {
        let below = command.get_subcommands().flat_map(all);
        std::iter::once(command).chain(below).collect()
    }

    #[test]
    fn an_option_has_one_form_in_all_commands() {
        let command = command();
        let mut values = std::collections::BTreeMap::new();
        for command in all(&command) {
            for arg in command.get_arguments() {
                let name = arg.get_long().unwrap_or_default();
                // A server is named by --server, what is printed by --format, and a time by --from and --to.
                let others = ["json", "output-format", "url", "host", "since", "until", "start", "end-time"];
                let is_address = arg.get_value_names().is_some_and(|of| of.iter().any(|one| one == "ADDR"));
                assert!(!others.contains(&name), "{} --{name}", command.get_name());
                assert!(!is_address || !arg.is_positional(), "{}", command.get_name());
                if name == "server" {
                    assert!(is_address, "{}", command.get_name());
                }
                // The same name takes the same values.
                let takes = arg.get_value_names().filter(|_| arg.get_action().takes_values());
                let takes =
                    takes.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
                if let Some(takes) = takes.filter(|_| !name.is_empty()) {
                    values
                        .entry(name.to_owned())
                        .or_insert_with(std::collections::BTreeSet::new)
                        .insert(takes);
                }
            }
        }
        values.retain(|_, takes| takes.len() > 1);
        // The name of a limit, where `simulate` tries candidates.
        let meant = ["limit"];
        values.retain(|name, _| !meant.contains(&name.as_str()));
        assert!(values.is_empty(), "{values:?}");
    }

    #[test]
    fn the_short_help_of_serve_is_one_page_and_the_long_one_has_groups() {
        let mut command = command().term_width(100);
        let serve = command.find_subcommand_mut("serve").unwrap();
        let short = serve.render_help().to_string();
        assert!(short.lines().count() <= 60, "{} lines\n{short}", short.lines().count());
        let long = serve.render_long_help().to_string();
        for (heading, _) in GROUPS {
            let group = long.split(&format!("\n{heading}:\n")).nth(1).unwrap_or_default();
            assert!(group.trim_start().starts_with("--"), "{heading}\n{long}");
        }
    }

    #[test]
    fn paragraphs_wrap_and_examples_stay() {
        let text = "one\ntwo three\n\n  a: b\n  c: d\nfour\nfive";
        assert_eq!(wrapping(&text.into()), "one two three\n\n  a: b\n  c: d\nfour five");
    }

    #[cfg(feature = "sim")]
    #[test]
    fn the_help_of_simulate_has_no_markup() {
        let mut command = command();
        let help = command.find_subcommand_mut("simulate").unwrap().render_long_help().to_string();
        assert!(!help.contains(['`']) && !help.contains("<http"), "{help}");
    }
}
