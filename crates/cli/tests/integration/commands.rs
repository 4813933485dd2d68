//! Every command in both forms of its output, text and JSON, with a real server. The commands are
//! those of the program's help, so that a new one without a row fails here; the members of the JSON
//! are those of the book.
#![cfg(all(feature = "sim", feature = "top"))]

use crate::program;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use program::{Serving, scratch, tidegate};
use serde_json::{Map, Value};

/// What a command asks.
#[derive(Clone, Copy, PartialEq)]
enum Asks {
    DataPlane,
    ControlPlane,
    /// Only files.
    Nothing,
}
use Asks::{ControlPlane, DataPlane, Nothing};

/// What a command prints as text.
enum Prints {
    /// This, and nothing else.
    Line(&'static str),
    /// Lines with these parts.
    Parts(&'static [&'static str]),
}
use Prints::{Line, Parts};

/// They run until they are stopped, and their own tests have their output: `serve.rs` and
/// `ratelimit.rs`.
const SERVERS: [&str; 3] = ["serve", "demo", "ratelimit"];

/// What a command asks, its command line, its exit code, and its text. They run in this order.
const ROWS: &[(Asks, &str, i32, Prints)] = &[
    (DataPlane, "health", 0, Line("ready")),
    (DataPlane, "health --live", 0, Line("ok")),
    (DataPlane, "peek cron a", 0, Line("allowed, remaining 2")),
    (DataPlane, "acquire cron a", 0, Line("allowed, remaining 1")),
    (
        DataPlane,
        "charge cron a",
        0,
        Line("charged 1, remaining 0"),
    ),
    (
        DataPlane,
        "charge cron a --cost 3",
        1,
        Line("charged 3, remaining 0"),
    ),
    (
        DataPlane,
        "acquire cron b --cost 3",
        1,
        Line("denied (too-large), remaining 2"),
    ),
    (
        DataPlane,
        "peek cron b --cost 3",
        1,
        Line("denied (too-large), remaining 2"),
    ),
    (
        DataPlane,
        "refund cron a --cost 4",
        0,
        Line("refunded up to 4, remaining 1"),
    ),
    (
        ControlPlane,
        "block cron eve --for 90m --note floods",
        0,
        Line("blocked eve in cron for 1h30m"),
    ),
    (
        ControlPlane,
        "block cron bob",
        0,
        Line("blocked bob in cron until it is unblocked"),
    ),
    (
        ControlPlane,
        "explain cron eve",
        1,
        Parts(&[
            "verdict      denied (blocked), remaining 0 of 2",
            "ends in 1h30m, by local client: floods",
            "what helps   the end of the block: tidegate unblock cron eve",
        ]),
    ),
    (
        ControlPlane,
        "explain cron a",
        0,
        Parts(&[
            "verdict      admitted, remaining 1 of 2",
            "rule         {algorithm: sliding-log, limit: 2/1h}, the limit's own",
        ]),
    ),
    (
        ControlPlane,
        "blocks",
        0,
        Parts(&[
            "LIMIT  KEY  SINCE   UNTIL     CLIENT        NOTE",
            "in 1h30m  local client  floods",
        ]),
    ),
    (
        ControlPlane,
        "unblock cron eve",
        0,
        Line("unblocked eve in cron"),
    ),
    (
        ControlPlane,
        "unblock cron eve",
        1,
        Line("eve in cron was not blocked"),
    ),
    (
        ControlPlane,
        "override cron vip 9/1h --for 1d --note partner",
        0,
        Line("vip in cron has 9/1h for 1d"),
    ),
    (
        ControlPlane,
        "overrides",
        0,
        Parts(&[
            "LIMIT  KEY  QUOTA  SINCE   UNTIL  CLIENT        NOTE",
            "in 1d  local client  partner",
        ]),
    ),
    (
        ControlPlane,
        "override cron vip --end",
        0,
        Line("vip in cron has the quota of the rules again"),
    ),
    (
        ControlPlane,
        "override cron vip --end",
        1,
        Line("vip in cron had no override"),
    ),
    (
        ControlPlane,
        "reset cron a",
        0,
        Line("reset a in cron: nothing counts as used"),
    ),
    (
        ControlPlane,
        "reset cron",
        0,
        Line("reset everything in cron: nothing counts as used"),
    ),
    (
        ControlPlane,
        "mark deployed",
        0,
        Line("marked in all charts: deployed"),
    ),
    (
        ControlPlane,
        "mark deployed --limit cron",
        0,
        Line("marked in the charts of cron: deployed"),
    ),
    (
        ControlPlane,
        "audit",
        0,
        Parts(&[
            "TIME    CLIENT        ACTION        LIMIT  KEY  VALUE  FOR    NOTE",
            "local client  block         cron   eve  -      1h30m  floods",
        ]),
    ),
    (ControlPlane, "reload", 0, Line("1 limit is in force")),
    (
        ControlPlane,
        "rules",
        0,
        Line("limits:\n  - {name: cron, limit: 2/1h, algorithm: sliding-log}"),
    ),
    (
        ControlPlane,
        "top --once",
        0,
        Parts(&[
            "LIMIT  QUOTA  ADMIT/s  DENY/s  DENIED  DENIED, 1 min  HEAVIEST KEY",
            "cron   2/1h  ",
        ]),
    ),
    (
        ControlPlane,
        "record -o trace.jsonl",
        0,
        Parts(&["wrote ", " lines to trace.jsonl"]),
    ),
    (
        Nothing,
        "check rules.yaml",
        0,
        Parts(&[
            "LIMIT  QUOTA  ALGORITHM    FOR       KEYS     MEMORY          NOTES",
            "rules.yaml is valid: 1 limit.",
        ]),
    ),
    (
        Nothing,
        "check access.yaml",
        0,
        Parts(&[
            "CLIENT  MAY     LIMITS  SHOWS",
            "access.yaml is valid: 1 client.",
        ]),
    ),
    (
        Nothing,
        "check wrong.yaml",
        1,
        Parts(&["wrong.yaml: line 1: `limit` is `5`: a quota is N/duration, as in 100/1m"]),
    ),
    (
        Nothing,
        "token shop --roles decide,observe",
        0,
        Parts(&[
            "The token, which is shown only here:",
            "- {name: shop, roles: [decide, observe], tokens: ['sha256:",
        ]),
    ),
    (
        Nothing,
        "usage usage",
        0,
        Parts(&["limit  key  used  requests  denied", "cron   a  "]),
    ),
    (
        Nothing,
        "metrics metrics.log",
        0,
        Parts(&[
            "TIME (UTC)           RESOURCE        PASS    BLOCK  SUCCESS  EXCEPTION    RT MS  IN FLIGHT",
            "2018-06-26 07:41:44  GET:/orders        5        2        3          1       40          5",
        ]),
    ),
    (
        Nothing,
        "simulate access.log --by ip --limit 1/1s --algorithm sliding-log",
        0,
        Parts(&[
            "1/1s denies 1 of 3 requests (33.3%) and touches 1 of 2 keys (50.0%) with sliding-log.",
        ]),
    ),
    (
        Nothing,
        "simulate access.log --rules rules.yaml",
        0,
        Parts(&["cron"]),
    ),
    (
        Nothing,
        "simulate trace.jsonl --rules rules.yaml",
        0,
        Parts(&[
            "trace.jsonl: ",
            "cron: {algorithm: sliding-log, limit: 2/1h}",
        ]),
    ),
    (
        Nothing,
        "import limits 5/minute",
        0,
        Parts(&["limits:\n", "    limit: 5/1m\n"]),
    ),
    (Nothing, "completions bash", 0, Parts(&["_tidegate()"])),
    (Nothing, "man", 0, Parts(&[".TH tidegate 1"])),
];

/// A directory with the files of the rows.
fn directory(name: &str) -> std::path::PathBuf {
    let directory = scratch(name);
    let at =
        |second| format!("- - [17/May/2015:10:00:{second:02} +0000] \"GET / HTTP/1.1\" 200 5\n");
    let log = format!("10.0.0.1 {}10.0.0.1 {}10.0.0.2 {}", at(0), at(0), at(9));
    let digest = "0".repeat(64);
    for (file, text) in [
        (
            "rules.yaml",
            "limits: [{name: cron, limit: 2/1h, algorithm: sliding-log}]\n".to_owned(),
        ),
        ("wrong.yaml", "limits: [{name: a, limit: 5}]\n".to_owned()),
        (
            "access.yaml",
            format!("access: [{{name: shop, roles: [decide], tokens: ['sha256:{digest}']}}]\n"),
        ),
        ("access.log", log),
        (
            "metrics.log",
            "1529998904000|2018-06-26 07:41:44|GET:/orders|5|2|3|1|40|0|5|0\n".to_owned(),
        ),
    ] {
        fs::write(directory.join(file), text).unwrap();
    }
    directory
}

fn serving(directory: &Path) -> Serving {
    let mut serve = tidegate();
    serve
        .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
        .args(["--rules", "rules.yaml", "--usage", "usage"])
        .args(["--trace-keys", "100%"])
        .current_dir(directory);
    Serving::run(&mut serve)
}

/// The exit code, standard output and standard error of a command line in this directory.
fn run(directory: &Path, words: &[&str]) -> (i32, String, String) {
    let output = tidegate()
        .args(words)
        .current_dir(directory)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    (output.status.code().unwrap(), out, error)
}

fn help(words: &[&str]) -> String {
    let (code, text, _) = run(Path::new("."), &[words, &["--help"]].concat());
    assert_eq!(code, 0, "{words:?}");
    text
}

/// The commands that the program knows.
fn commands() -> BTreeSet<String> {
    let help = help(&[]);
    let listed = help.split("Commands:\n").nth(1).unwrap();
    listed
        .lines()
        .take_while(|line| line.starts_with("  "))
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

fn command_of(line: &str) -> &str {
    line.split(' ').next().unwrap()
}

/// The words of a command line, with the address of what it asks.
fn words<'a>(asks: Asks, line: &'a str, server: &'a str) -> Vec<&'a str> {
    let mut words: Vec<&str> = line.split(' ').collect();
    if asks != Nothing {
        words.extend(["--server", server, "--timeout", "20s"]);
    }
    words
}

/// Runs each row in its order with a server of its own, with more words, and shows what it printed.
/// The server has stopped before the rows that ask nothing.
fn each_row(
    name: &str,
    more: &[&str],
    takes: impl Fn(&str) -> bool,
    mut show: impl FnMut(&str, &Prints, (String, String)),
) {
    let directory = directory(name);
    let server = serving(&directory);
    let (data, control) = (server.http.clone(), server.admin.clone());
    let mut server = Some(server);
    for (asks, line, code, prints) in ROWS.iter().filter(|row| takes(command_of(row.1))) {
        if *asks == Nothing
            && let Some(server) = server.take()
        {
            server.signal("TERM");
            assert_eq!(server.ended(), Some(0));
        }
        let address = if *asks == DataPlane { &data } else { &control };
        let words = [&words(*asks, line, address), more].concat();
        let (exited, out, error) = run(&directory, &words);
        assert_eq!(exited, *code, "{line}: {out}{error}");
        show(line, prints, (out, error));
    }
}

/// A count of one with a plural, such as `1 limits`.
fn wrong_plural(text: &str) -> Option<&str> {
    let words: Vec<&str> = text.split([' ', '\n']).collect();
    words.windows(2).find_map(|pair| {
        let is_word = pair[1].len() > 2 && pair[1].chars().all(|c| c.is_ascii_lowercase());
        let is_plural = is_word && pair[1].ends_with('s') && pair[1] != "was";
        (pair[0] == "1" && is_plural).then_some(pair[1])
    })
}

#[test]
fn each_command_has_a_row() {
    let rows: BTreeSet<String> = ROWS
        .iter()
        .map(|row| command_of(row.1))
        .chain(SERVERS)
        .map(str::to_owned)
        .collect();
    assert_eq!(rows, commands());
}

#[test]
fn each_command_says_in_words_what_it_did() {
    each_row(
        "commands-text",
        &[],
        |_| true,
        |line, prints, (out, error)| {
            let said = format!("{out}{error}");
            match prints {
                Line(expected) => {
                    assert_eq!((&*out, &*error), (&*format!("{expected}\n"), ""), "{line}");
                }
                Parts(parts) => {
                    for part in *parts {
                        assert!(said.contains(part), "{line}: no {part:?} in {said}");
                    }
                }
            }
            assert!(said.ends_with('\n'), "{line}: {said:?}");
            assert_eq!(wrong_plural(&said), None, "{line}: {said}");
            for code in ["Some(", "None", "Duration", "0s0"] {
                let is_script = ["man", "completions"].contains(&command_of(line));
                assert!(
                    is_script || !said.contains(code),
                    "{line}: {code} in {said}"
                );
            }
        },
    );
}

/// The members of the JSON of each command, by the book: those of the object, and those of each
/// element of its list.
fn documented() -> BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/commands.md");
    let book = fs::read_to_string(book).unwrap();
    let table = book
        .split("| command | members |")
        .nth(1)
        .expect("the table");
    let quoted = |cell: &str| -> BTreeSet<String> {
        cell.split('`')
            .skip(1)
            .step_by(2)
            .map(str::to_owned)
            .collect()
    };
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    rows.flat_map(|row| {
        let cells: Vec<&str> = row.split('|').collect();
        let members = (quoted(cells[2]), quoted(cells[3]));
        quoted(cells[1])
            .into_iter()
            .map(move |command| (command, members.clone()))
    })
    .collect()
}

#[test]
fn each_command_prints_the_json_that_the_book_describes() {
    let documented = documented();
    let has_json = |command: &str| help(&[command]).contains("--format <FORMAT>");
    let with_json: BTreeSet<String> = commands()
        .into_iter()
        .filter(|name| has_json(name))
        .collect();
    let named: BTreeSet<String> = documented.keys().cloned().collect();
    assert_eq!(named, with_json);
    let mut seen: BTreeMap<String, (BTreeSet<String>, BTreeSet<String>)> = BTreeMap::new();
    let takes = |command: &str| with_json.contains(command);
    each_row(
        "commands-json",
        &["--format", "json"],
        takes,
        |line, _, (out, _)| {
            let command = command_of(line);
            // They have an object for each sum, on its line.
            let is_list = ["usage", "metrics"].contains(&command);
            assert!(out.lines().count() == 1 || is_list, "{line}: {out}");
            let parsed = |line: &str| serde_json::from_str::<Map<String, Value>>(line).unwrap();
            let (members, inner) = seen.entry(command.to_owned()).or_default();
            for (name, value) in out.lines().flat_map(parsed) {
                members.insert(name.clone());
                let elements = value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_object);
                inner.extend(elements.flat_map(|element| element.keys().cloned()));
            }
        },
    );
    for (command, (members, inner)) in &documented {
        let (had, had_inner) = &seen[command];
        assert_eq!(had, members, "{command}");
        assert_eq!(had_inner, inner, "the elements of {command}");
    }
}

#[test]
fn a_server_that_is_not_there_is_an_error_of_each_command_in_both_forms() {
    let directory = directory("commands-nobody");
    for (asks, line, ..) in ROWS.iter().filter(|row| row.0 != Nothing) {
        for more in [&[][..], &["--format", "json"]] {
            // The system gives port 1 to no other test.
            let words = [&words(*asks, line, "127.0.0.1:1"), more].concat();
            let (code, out, error) = run(&directory, &words);
            assert_eq!((code, &*out), (3, ""), "{line}: {error}");
            assert!(
                error.starts_with("error: cannot reach 127.0.0.1:1: ")
                    && error.ends_with("is a server running there? (--server ADDR)\n")
                    && error.lines().count() == 1,
                "{line}: {error}"
            );
        }
    }
}

#[test]
fn a_limit_that_is_not_there_is_an_error_of_each_command_that_suggests_one() {
    let directory = directory("commands-unknown");
    let server = serving(&directory);
    for (asks, line, ..) in ROWS.iter().filter(|row| row.1.contains(" cron")) {
        let address = if *asks == DataPlane {
            &server.http
        } else {
            &server.admin
        };
        let line = line.replace(" cron", " corn");
        let (code, out, error) = run(&directory, &words(*asks, &line, address));
        assert!(
            code == 3 && out.is_empty() && error.starts_with("error: ") && error.contains("cron"),
            "{line}: {code}: {out}{error}"
        );
    }
}

#[test]
fn an_option_that_is_not_there_is_an_error_of_each_command() {
    for command in commands() {
        let (code, out, error) = run(Path::new("."), &[&command, "--formt", "json"]);
        assert!(
            code == 2
                && out.is_empty()
                && error.starts_with("error: ")
                && error.contains("--formt"),
            "{command}: {code}: {error}"
        );
    }
}
