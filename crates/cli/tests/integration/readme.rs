//! The console blocks of the README run as they are written, with the program of this build and on
//! free ports.
#![cfg(feature = "sim")]

use crate::program;

use std::{
    fs::{self, File},
    io::Write as _,
    path::Path,
    process::Command,
};

use flate2::{Compression, write::GzEncoder};
use program::{Serving, scratch, tidegate};
use tidegate_redis_servers::eventually;

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap()
}

/// The blocks of a language.
fn blocks(language: &str) -> Vec<String> {
    let text = readme();
    let fence = format!("```{language}\n");
    text.split(&fence)
        .skip(1)
        .map(|rest| rest.split_once("```").unwrap().0.to_owned())
        .collect()
}

/// Runs a line in a shell in this directory, if it has the line's program. Returns what the line
/// printed.
fn run(line: &str, directory: &Path) -> Option<String> {
    let command = line.split(" #").next().unwrap().trim();
    let program = command.split(' ').next().unwrap();
    let exists = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .unwrap();
    if !exists.status.success() {
        return None;
    }
    let output = Command::new("sh")
        .args(["-c", command])
        .current_dir(directory)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Some(text)
}

/// A log of 10,000 requests in an hour, a quarter of them from one client.
fn log(directory: &Path) {
    let mut log = GzEncoder::new(
        File::create(directory.join("access.log.gz")).unwrap(),
        Compression::fast(),
    );
    for at in 0..10_000 {
        let (client, minute, second) = (
            if at % 4 == 0 { 0 } else { at % 997 },
            at / 167,
            at / 3 % 60,
        );
        let time = format!("17/May/2015:10:{minute:02}:{second:02} +0000");
        writeln!(
            log,
            "10.0.{}.{} - - [{time}] \"GET / HTTP/1.1\" 200 5",
            client / 250,
            client % 250
        )
        .unwrap();
    }
    log.finish().unwrap();
}

/// The numbers in a line, of which 20/1m has two.
fn numbers(line: &str) -> Vec<f64> {
    let plain = line.replace(',', "");
    let digits = |c: char| !c.is_ascii_digit() && c != '.';
    plain
        .split(digits)
        .filter_map(|word| word.trim_end_matches('.').parse().ok())
        .collect()
}

#[test]
fn every_command_of_the_readme_runs_and_says_what_it_says_there() {
    let directory = scratch("readme");
    fs::write(directory.join("rules.yaml"), &blocks("yaml")[0]).unwrap();
    log(&directory);
    let mut ran = 0;
    let (mut server, mut shadows) = (None, Vec::new());
    for block in blocks("console") {
        let mut lines = block.lines().peekable();
        while let Some(line) = lines.next() {
            let line = line
                .strip_prefix("$ ")
                .unwrap_or_else(|| panic!("{line} is output of nothing"));
            let command = line.split(" #").next().unwrap().trim();
            let shown: Vec<&str> =
                std::iter::from_fn(|| lines.next_if(|next| !next.starts_with("$ "))).collect();
            ran += 1;
            // The program of the tests has all features.
            let full = command.replace("--release --features full -- ", "--release -- ");
            if let Some(arguments) = full.strip_prefix("cargo run --release -- ") {
                // Ctrl-C ends it well.
                let ports = ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
                let mut server = tidegate();
                server
                    .args(arguments.split(' '))
                    .args(ports)
                    .current_dir(&directory);
                let server = Serving::run(&mut server);
                server.signal("INT");
                assert_eq!(server.ended(), Some(0), "{line}");
            // A checkout has these, and the library: their tests are elsewhere.
            } else if [
                "scripts/test.sh",
                "cargo add tidegate",
                "cargo install --path crates/cli",
            ]
            .contains(&command)
            {
                let library = include_str!("../../../tidegate/Cargo.toml");
                let program = include_str!("../../Cargo.toml");
                assert!(library.contains("name = \"tidegate\""));
                assert!(program.contains("[[bin]]\nname = \"tidegate\""));
                let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
                assert!(checkout.join("scripts/test.sh").is_file());
            } else if let Some(arguments) = command.strip_prefix("tidegate serve ") {
                let ports = ["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
                let mut serve = tidegate();
                server = Some(Serving::run(
                    serve
                        .args(ports)
                        .args(arguments.split(' '))
                        .current_dir(&directory),
                ));
            } else if command.starts_with("sed -i ") {
                run(command, &directory).expect("sed is there");
                // The server follows the file.
                let server = server.as_ref().expect("the server was started before");
                let shadow = format!("\"shadow\":{}", command.contains("shadow: true"));
                eventually("the change is in force", || {
                    server.get("/v1/rules").contains(&shadow)
                });
                shadows.push(shadow);
            } else if let Some(arguments) = command.strip_prefix("tidegate ") {
                let admin = server.as_ref().map(|server| &server.admin);
                let output = tidegate()
                    .args(arguments.split(' '))
                    .envs(admin.map(|admin| ("TIDEGATE_ADMIN_SERVER", admin)))
                    .current_dir(&directory)
                    .output()
                    .unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                assert!(
                    output.status.success(),
                    "{command}: {}",
                    String::from_utf8_lossy(&output.stderr)
                );
                if arguments.starts_with("explain") {
                    let only_counts = "verdict      admitted, by a limit that only counts";
                    assert!(text.starts_with(only_counts), "{text}");
                }
                // The numbers, and which algorithm denies most, are those of another log: they only
                // have to add up.
                let words = |text: &str| -> Vec<String> {
                    text.split_whitespace()
                        .filter(|word| !word.contains(|c: char| c.is_ascii_digit() || c == '-'))
                        .map(str::to_owned)
                        .collect()
                };
                for shown in shown {
                    let printed = text.lines().find(|line| words(line) == words(shown));
                    let printed = printed
                        .unwrap_or_else(|| panic!("{command} does not print {shown:?}:\n{text}"));
                    assert!(printed.contains(" of 10,000 requests "), "{printed}");
                    for line in [printed, shown] {
                        let [_, _, denied, requests, percent, touched, keys, of_keys] =
                            numbers(line)[..]
                        else {
                            panic!("{line} has other numbers")
                        };
                        // Three digits of each percentage are printed.
                        let adds_up =
                            |percent: f64, of: f64| (percent / (100.0 * of) - 1.0).abs() < 0.006;
                        assert!(
                            adds_up(percent, denied / requests) && adds_up(of_keys, touched / keys),
                            "{line}"
                        );
                    }
                }
            } else {
                let server = server.as_ref().expect("the server was started before");
                let (_, port) = server.resp.rsplit_once(':').unwrap();
                let command = command
                    .replace("127.0.0.1:8080", &server.http)
                    .replace("-p 6380", &format!("-p {port}"));
                let printed = run(&command, &directory);
                // scripts/test.sh installs both programs.
                assert!(
                    printed.is_some() || cfg!(not(feature = "servers")),
                    "{command} needs a program"
                );
                let Some(text) = printed else { continue };
                if command.starts_with("curl") {
                    assert!(
                        text.starts_with("HTTP/1.1 200") && text.contains("\"allowed\":true"),
                        "{text}"
                    );
                } else {
                    // As its comment says: allowed, limit, remaining, retry-after and reset-after.
                    let values: Vec<i64> = text
                        .lines()
                        .map(|value| value.trim().parse().unwrap())
                        .collect();
                    assert!(
                        matches!(values[..], [0, 100, 98, -1, reset] if reset > 0),
                        "{text}"
                    );
                }
                assert!(
                    text.contains("99") || text.contains("98"),
                    "{command}: {text}"
                );
            }
        }
    }
    assert!(ran >= 11, "{ran} commands");
    assert_eq!(shadows, ["\"shadow\":true", "\"shadow\":false"]);
    assert!(directory.join("report.html").is_file());
}
