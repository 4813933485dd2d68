//! Options that have no effect without another one. They are named when the server starts, because
//! the operator expects one.

use std::{collections::BTreeSet, env};

use clap::{ArgMatches, parser::ValueSource};

/// Options, and those of which one must be in use for them to have an effect.
const NEEDS: [(&[&str], &[&str]); 11] = [
    (
        &[
            "store-password",
            "store-password-file",
            "store-prefix",
            "store-deadline",
            "nodes",
        ],
        &["store"],
    ),
    (&["state-interval"], &["state"]),
    (&["usage-max"], &["usage"]),
    (&["trace-memory"], &["trace-keys"]),
    (&["grpc-max-age-grace"], &["grpc-max-age"]),
    (&["grpc-max-age"], &["envoy-config", "envoy-xds"]),
    (
        &[
            "envoy-consume",
            "envoy-headers",
            "envoy-header-names",
            "envoy-request-header-names",
            "envoy-unit-headers",
            "envoy-calendar-months",
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
        &["envoy-config", "envoy-xds"],
    ),
    (
        &["sentinel-rules", "sentinel-sharing", "sentinel-max-qps"],
        &["sentinel-token"],
    ),
    (&["sentinel-dashboard-networks"], &["sentinel-dashboard"]),
    (
        &[
            "resp-password",
            "resp-threads",
            "resp-idle-timeout",
            "resp-max-period",
            "resp-throttle",
        ],
        &["resp"],
    ),
    (
        &[
            "open-metrics",
            "metrics-path",
            "admin-host",
            "rules-writable",
        ],
        &["admin"],
    ),
];

/// The listeners among what is needed.
const LISTENERS: [&str; 4] = ["admin", "resp", "sentinel-dashboard", "sentinel-token"];

/// The options of `serve` that were given and have no effect, each with what it needs.
pub fn without_effect(serve: &ArgMatches, in_file: &BTreeSet<&str>) -> Vec<String> {
    let id = |option: &str| option.replace('-', "_");
    let is_on = |option: &str| {
        let value = serve
            .try_get_raw(&id(option))
            .ok()
            .flatten()
            .and_then(|mut values| values.next());
        value.is_some_and(|value| {
            let value = value.to_string_lossy();
            !["", "off", "false"]
                .iter()
                .any(|off| value.eq_ignore_ascii_case(off))
        })
    };
    let is_given = |option: &str| {
        let source = serve.value_source(&id(option));
        is_on(option)
            && (source.is_some_and(|source| source != ValueSource::DefaultValue)
                || in_file.contains(option))
    };
    // A supervisor may pass the socket of a listener that no option asks for.
    let has_sockets = env::var_os("LISTEN_FDS").is_some();
    let is_there = |option: &str| is_on(option) || has_sockets && LISTENERS.contains(&option);
    let mut lines = Vec::new();
    for (options, needed) in NEEDS {
        if needed.iter().any(|option| is_there(option)) {
            continue;
        }
        let needed = needed.join(" or --");
        let given = options.iter().filter(|option| is_given(option));
        lines.extend(given.map(|option| format!("--{option} has no effect without --{needed}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::help;

    fn lines(arguments: &[&str], in_file: &[&str]) -> Vec<String> {
        let line = [&["tidegate", "serve"], arguments].concat();
        let matches = help::command().get_matches_from(line);
        let serve = matches.subcommand_matches("serve").unwrap();
        without_effect(serve, &in_file.iter().copied().collect())
    }

    #[test]
    fn an_option_is_named_only_while_what_it_needs_is_off() {
        assert_eq!(lines(&[], &[]), [""; 0]);
        assert_eq!(
            lines(&["--nodes", "2", "--usage-max", "2GiB"], &[]),
            [
                "--nodes has no effect without --store",
                "--usage-max has no effect without --usage",
            ]
        );
        let both = ["--nodes", "2", "--store", "redis://127.0.0.1"];
        assert_eq!(lines(&both, &[]), [""; 0]);
        assert_eq!(
            lines(&["--resp", "off", "--resp-threads", "2"], &[]),
            ["--resp-threads has no effect without --resp"]
        );
        // The command line takes the values of a file for defaults.
        assert_eq!(
            lines(&[], &["state-interval"]),
            ["--state-interval has no effect without --state"]
        );
        assert_eq!(
            lines(&["--envoy-headers"], &[]),
            ["--envoy-headers has no effect without --envoy-config or --envoy-xds"]
        );
    }

    #[test]
    fn each_option_is_one_of_serve() {
        let command = help::command();
        let serve = command.find_subcommand("serve").unwrap();
        let known: BTreeSet<_> = serve
            .get_arguments()
            .filter_map(clap::Arg::get_long)
            .collect();
        for (options, needed) in NEEDS {
            for option in options.iter().chain(needed) {
                assert!(known.contains(option), "{option}");
            }
        }
    }
}
