//! `tidegate serve` and `tidegate check` as a user runs them: the real program, its output, its
//! signals.

#[cfg(all(feature = "otlp", feature = "grpc"))]
use crate::program;
#[cfg(all(feature = "otlp", feature = "grpc"))]
use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use program::{Serving, request, scratch, tidegate};
use tidegate_core::{Clock, Nanos, clock::SystemClock};
use tidegate_redis_servers::eventually;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn check(file: &Path) -> Output {
    tidegate().arg("check").arg(file).output().unwrap()
}

#[test]
fn without_options_it_prints_its_addresses_and_three_commands_that_work() {
    let server = Serving::with(&[]);
    for part in [
        "is ready",
        "built-in examples",
        "per-user, logins, everyone",
        "in memory only",
    ] {
        assert!(
            server.told.contains(part),
            "{part} is not in:\n{}",
            server.told
        );
    }
    let (_, commands) = server.told.split_once("Try:").unwrap();
    let commands: Vec<&str> = commands.trim().lines().map(str::trim).collect();
    assert_eq!(commands.len(), 3);
    for command in commands {
        let program = command.split(' ').next().unwrap();
        let there = Command::new("sh")
            .args(["-c", &format!("command -v {program}")])
            .output()
            .unwrap();
        if there.status.success() {
            let output = Command::new("sh").args(["-c", command]).output().unwrap();
            let told = text(&output.stdout);
            assert!(
                output.status.success() && !told.contains("ERR"),
                "{command}: {told}{}",
                text(&output.stderr)
            );
            assert!(
                told.contains("99") || told.contains("98") || told.contains("16"),
                "{command}: {told}"
            );
        }
    }
    // Works without curl and redis-cli.
    assert!(
        server
            .post(r#"{"limit":"per-user","key":"zoe"}"#)
            .starts_with("HTTP/1.1 200 OK")
    );
    assert!(
        server
            .ask("ACQUIRE per-user zoe")
            .starts_with("*5 :0 :100 :98 :-1 :")
    );
    assert_eq!(
        server.ask("CL.THROTTLE zoe 15 30 60"),
        "*5 :0 :16 :15 :-1 :2"
    );
}

#[test]
fn a_stop_writes_the_state_exits_with_0_and_the_next_start_continues_from_it() {
    let directory = scratch("stop");
    let state = directory.join("state");
    for (signal, remaining) in [("TERM", 3), ("INT", 2)] {
        let server = Serving::with(&["--state", state.to_str().unwrap()]);
        let reply = server.ask("ACQUIRE logins alice");
        assert!(
            reply.starts_with(&format!("*5 :0 :5 :{} :-1", remaining + 1)),
            "{reply}"
        );
        server.signal(signal);
        assert_eq!(server.ended(), Some(0), "SIG{signal}");
    }
    assert!(fs::read(&state).unwrap().starts_with(b"TIDEGATE"));
}

#[test]
fn sighup_reloads_the_rules_and_a_bad_file_logs_one_line() {
    let rules = scratch("hangup").join("rules.yaml");
    fs::write(&rules, "limits: [{name: first, limit: 1/1s}]").unwrap();
    let server = Serving::with(&[
        "--rules",
        rules.to_str().unwrap(),
        "--reload-interval",
        "1h",
    ]);
    fs::write(&rules, "limits: [{name: second, limit: 1/1s}]").unwrap();
    server.signal("HUP");
    server.logs("rules loaded");
    assert!(server.ask("PEEK second x").starts_with("*5"));
    fs::write(&rules, "limits:\n  - name: third\n    limit: 100\n").unwrap();
    server.signal("HUP");
    let line = server.logs("rules rejected");
    for part in [
        "line=3",
        "a quota is N/duration",
        "mend=",
        "the previous rules stay active",
        "rules.yaml",
    ] {
        assert!(line.contains(part), "{part} is not in {line}");
    }
    assert!(server.ask("PEEK second x").starts_with("*5"));
}

#[test]
fn a_change_of_the_file_is_noticed_without_a_signal() {
    let rules = scratch("notice").join("rules.yaml");
    fs::write(&rules, "limits: [{name: first, limit: 1/1s}]").unwrap();
    let server = Serving::with(&[
        "--rules",
        rules.to_str().unwrap(),
        "--reload-interval",
        "20ms",
    ]);
    fs::write(
        rules.with_extension("new"),
        "limits: [{name: second, limit: 1/1s}]",
    )
    .unwrap();
    fs::rename(rules.with_extension("new"), &rules).unwrap();
    server.logs("rules loaded");
    assert!(server.ask("PEEK second x").starts_with("*5"));
}

#[test]
fn a_damaged_state_is_rejected_and_renamed() {
    let state = scratch("damaged").join("state");
    fs::write(&state, "TIDEGATE but not really").unwrap();
    let server = Serving::with(&["--state", state.to_str().unwrap()]);
    let line = server.logs("state file rejected");
    assert!(line.contains("state.damaged-1"), "{line}");
    assert!(server.ask("PEEK logins alice").starts_with("*5 :0 :5 :5"));
}

#[test]
fn what_has_no_effect_is_named_when_the_server_starts() {
    let config = scratch("no-effect").join("tidegate.yaml");
    fs::write(&config, "usage-max: 2GiB\n").unwrap();
    let mut command = tidegate();
    command
        .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
        .args(["--nodes", "2", "--config", config.to_str().unwrap()])
        .env("TIDEGATE_RESP_PASSWORD", "")
        .env("TIDEGATE_MAX_KEY", "7")
        .env("TIDEGATE_SERVICE_HOST", "10.0.0.1");
    let server = Serving::run(&mut command);
    server.logs("--nodes has no effect without --store");
    server.logs("--usage-max has no effect without --usage");
    server.logs("--resp-password is empty");
    let line = server.logs("TIDEGATE_");
    assert!(
        line.contains("TIDEGATE_MAX_KEY, which has no effect: is it TIDEGATE_MAX_KEYS?"),
        "{line}"
    );
    server.signal("TERM");
    let rest: Vec<String> = server.log.iter().collect();
    assert!(
        !rest.iter().any(|line| line.contains("TIDEGATE_")),
        "{rest:?}"
    );
}

#[test]
fn a_server_on_unix_sockets_names_commands_that_reach_it() {
    let directory = scratch("unix");
    let place = |name: &str| format!("unix:{}", directory.join(name).display());
    let mut command = tidegate();
    command
        .args(["serve", "--http", &place("http"), "--resp", &place("resp")])
        .args(["--admin", &place("admin")]);
    let server = Serving::run(&mut command);
    let path = |name: &str| directory.join(name).display().to_string();
    for expected in [
        format!(
            "curl -i --unix-socket {} http://localhost/v1/acquire",
            path("http")
        ),
        format!("redis-cli -s {} ACQUIRE per-user alice", path("resp")),
        format!("redis-cli -s {} CL.THROTTLE bob 15 30 60", path("resp")),
    ] {
        assert!(server.told.contains(&expected), "{}", server.told);
    }
    let long = format!("unix:/tmp/{}", "x".repeat(150));
    let refused = tidegate()
        .args(["serve", "--http", &long])
        .output()
        .unwrap();
    let told = text(&refused.stderr);
    assert!(told.contains("a path of at most 107 bytes"), "{told}");
}

#[test]
fn every_option_is_also_a_variable_and_each_protocol_can_be_off() {
    let mut command = tidegate();
    command
        .arg("serve")
        .env("TIDEGATE_HTTP", "off")
        .env("TIDEGATE_RESP", "127.0.0.1:0");
    command
        .env("TIDEGATE_RESP_PASSWORD", "sesame")
        .env("TIDEGATE_MAX_KEYS", "77");
    let server = Serving::run(&mut command);
    assert_eq!(server.http, "off");
    assert!(
        server
            .told
            .contains("REDISCLI_AUTH=$TIDEGATE_RESP_PASSWORD redis-cli"),
        "{}",
        server.told
    );
    assert_eq!(server.ask("PING"), "-NOAUTH Authentication required.");
    assert!(server.ask("AUTH sesame").starts_with("+OK"));
    let help = text(
        &tidegate()
            .args(["serve", "--help"])
            .output()
            .unwrap()
            .stdout,
    );
    // Texts are indented further.
    for option in help
        .lines()
        .filter_map(|line| line.strip_prefix("      --")?.split(' ').next())
    {
        let variable = format!("TIDEGATE_{}", option.to_uppercase().replace('-', "_"));
        assert!(
            help.contains(&format!("[env: {variable}")),
            "--{option} has no {variable}"
        );
    }
}

#[test]
fn a_json_log_has_one_object_per_line() {
    let mut command = tidegate();
    command.args([
        "serve",
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--log-format",
        "json",
    ]);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let line = loop {
        let mut line = String::new();
        assert!(log.read_line(&mut line).unwrap() > 0, "the log ended");
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        if line["level"] == "INFO" {
            break line;
        }
        // Only this line may come first, on a machine with a low limit on open files.
        assert!(
            line["message"]
                .as_str()
                .unwrap()
                .starts_with("too few open files"),
            "{line}"
        );
    };
    assert_eq!(line["message"], "listening");
    assert!(TcpStream::connect(line["resp"].as_str().unwrap()).is_ok());
    assert!(
        Command::new("kill")
            .arg(child.id().to_string())
            .status()
            .unwrap()
            .success()
    );
    for line in log.lines() {
        serde_json::from_str::<serde_json::Value>(&line.unwrap()).unwrap();
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn an_address_in_use_is_reported_with_advice() {
    let server = Serving::with(&[]);
    let output = tidegate()
        .args(["serve", "--http", &server.http, "--resp", "off"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(
        told.contains(&server.http) && told.contains("stop it, or choose another"),
        "{told}"
    );
    let nothing = tidegate()
        .args(["serve", "--http", "off", "--resp", "off"])
        .output()
        .unwrap();
    assert!(
        text(&nothing.stderr)
            .contains("give --http, --resp, --grpc, --spoe or --sentinel-token an address")
    );
}

#[test]
fn a_bad_rules_file_keeps_the_server_from_starting() {
    let rules = scratch("bad-start").join("rules.yaml");
    fs::write(&rules, "limits:\n  - name: a\n    limit: 100\n").unwrap();
    let output = tidegate()
        .args(["serve", "--rules", rules.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("rules.yaml: line 3:"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn check_prints_the_contents_of_a_valid_file() {
    let rules = scratch("check-good").join("rules.yaml");
    fs::write(&rules, "limits:\n  - {name: per-user, limit: 100/1m, slots: 60, max_keys: 1000}\n  - {name: all, limit: 5/1s, algorithm: token-bucket, global: true, shadow: true}\n").unwrap();
    let output = check(&rules);
    assert_eq!(output.status.code(), Some(0));
    let told = text(&output.stdout);
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines[0].starts_with("LIMIT     QUOTA   ALGORITHM       FOR"),
        "{told}"
    );
    assert!(
        lines[1].starts_with("per-user  100/1m  sliding-window  each key  1000"),
        "{told}"
    );
    assert!(
        lines[1].ends_with("slots: 60") && lines[2].ends_with("shadow"),
        "{told}"
    );
    assert!(told.contains("is valid: 2 limits."), "{told}");
}

#[test]
fn check_prints_all_problems_and_exits_with_1() {
    let rules = scratch("check-bad").join("rules.yaml");
    fs::write(
        &rules,
        "limits:\n  - name: a\n    limit: 100\n  - name: b\n    limit: 1/1s\n    burts: 3\n",
    )
    .unwrap();
    let output = check(&rules);
    assert_eq!(output.status.code(), Some(1));
    let told = text(&output.stderr);
    assert!(
        told.contains("rules.yaml: line 3: ") && told.contains("rules.yaml: line 6: "),
        "{told}"
    );
    assert!(
        told.contains("did you mean `burst`?") && told.contains("has 2 problems"),
        "{told}"
    );
    let missing = check(Path::new("/nonexistent.yaml"));
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("cannot read /nonexistent.yaml"));
}

#[test]
fn an_error_at_the_start_names_the_option_that_was_given() {
    let directory = scratch("options");
    let config = directory.join("config.yaml");
    fs::write(&config, "max-memory: 5x\n").unwrap();
    let config = config.to_str().unwrap();
    for (arguments, option) in [
        (
            &["--rules", "/nonexistent"][..],
            "--rules: cannot read /nonexistent",
        ),
        (
            &["--envoy-config", "/nonexistent"],
            "--envoy-config: cannot read /nonexistent",
        ),
        (
            &[
                "--sentinel-token",
                "127.0.0.1:0",
                "--sentinel-rules",
                "/nonexistent",
            ],
            "--sentinel-rules: cannot read",
        ),
        (&["--access", "/nonexistent"], "--access: cannot read"),
        (
            &["--state", "/nonexistent/state"],
            "--state: the state cannot be kept in /nonexistent/state",
        ),
        (
            &["--audit", "/nonexistent/audit"],
            "--audit /nonexistent/audit: ",
        ),
        (
            &["--usage", "/proc/nonexistent"],
            "--usage /proc/nonexistent: ",
        ),
        (
            &["--flow-rules", "/proc/version"],
            "--flow-rules: /proc/version: it is a file; name a directory",
        ),
        (
            &["--flow-rules", "/proc/nonexistent"],
            "--flow-rules: /proc/nonexistent: ",
        ),
        (
            &["--tls-cert", "/nonexistent", "--tls-key", "/nonexistent"],
            "--tls-cert /nonexistent: ",
        ),
        (&["--store", "http://a"], "--store: "),
        (&["--metrics-path", "metrics"], "write a path, as in"),
        (&["--metrics-path", "/v1/limits"], "choose another path"),
        (
            &[
                "--store",
                "redis://127.0.0.1:1",
                "--store-password-file",
                "/nonexistent",
            ],
            "--store-password-file /nonexistent: ",
        ),
        (&["--http", "nowhere"], "(--http)"),
        (&["--max-memory", "512"], ""),
        (&["--max-memory", "5x"], "'--max-memory <BYTES>'"),
        (&["--config", config], "'--max-memory <BYTES>'"),
        (&["--config", "/nonexistent"], "--config /nonexistent: "),
    ] {
        // A value that is right gets as far as the next mistake.
        let then = if option.is_empty() {
            ["--rules", "/nonexistent"]
        } else {
            ["--resp", "off"]
        };
        let listeners = if arguments[0] == "--http" {
            &[][..]
        } else {
            &["--http", "127.0.0.1:0"]
        };
        let output = tidegate()
            .arg("serve")
            .args(arguments)
            .args(listeners)
            .args(then)
            .output()
            .unwrap();
        let told = text(&output.stdout) + &text(&output.stderr);
        assert!(
            !output.status.success() && told.contains(option),
            "{arguments:?}: {told}"
        );
    }
}

#[test]
fn a_limit_for_a_unit_of_time_and_decimal_bytes_are_read_everywhere() {
    let directory = scratch("units");
    let rules = directory.join("rules.yaml");
    fs::write(
        &rules,
        "max_memory: 512MB\nlimits:\n  - {name: a, limit: 100/m, overrides: {vip: 7/h}}\n",
    )
    .unwrap();
    assert!(check(&rules).status.success());
    let rules = rules.to_str().unwrap();
    let memory = [
        "--max-memory",
        "512MB",
        "--history-memory",
        "64MB",
        "--trace-memory",
        "64MB",
    ];
    let server = Serving::with(&[&["--rules", rules, "--trace-keys", "10%"][..], &memory].concat());
    let run = |arguments: &[&str], address: &str| {
        let output = tidegate()
            .args(arguments)
            .args(["--server", address])
            .output()
            .unwrap();
        (
            output.status.code(),
            text(&output.stdout) + &text(&output.stderr),
        )
    };
    let (code, told) = run(&["override", "a", "bob", "3/d"], &server.admin);
    assert_eq!(code, Some(0), "{told}");
    assert!(
        server.ask("PEEK a bob").starts_with("*5 :0 :3 "),
        "{}",
        server.ask("PEEK a bob")
    );
    assert!(
        server.ask("PEEK a alice").starts_with("*5 :0 :100 ")
            && server.ask("PEEK a vip").starts_with("*5 :0 :7 ")
    );
}

#[test]
fn the_examples_in_the_help_of_check_are_valid() {
    let help = text(
        &tidegate()
            .args(["check", "--help"])
            .output()
            .unwrap()
            .stdout,
    );
    let example = |begin: &str| {
        let from = help.find(begin).unwrap();
        let to = help[from..].find("\n\n").map_or(help.len(), |to| from + to);
        format!("{}\n", &help[from..to])
    };
    let rules = scratch("help").join("rules.yaml");
    fs::write(&rules, example("  limits:") + &example("  flow:")).unwrap();
    let output = check(&rules);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let told = text(&output.stdout);
    let kinds =
        "flow: 1, isolation: 1, adaptive: 1, breakers: 1, hot_params: 1, system: 1, authority: 1";
    assert!(
        told.contains("1 limit; flow control for programs with a gate") && told.contains(kinds),
        "{told}"
    );
}

#[test]
fn flow_control_is_checked_and_logged_but_not_served() {
    let rules = scratch("gate").join("rules.yaml");
    fs::write(&rules, "flow:\n  - {resource: a, limit: 5/1s}\n").unwrap();
    assert_eq!(check(&rules).status.code(), Some(0));
    let output = tidegate()
        .args(["serve", "--rules", rules.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("nothing to serve"),
        "{}",
        text(&output.stderr)
    );

    fs::write(
        &rules,
        "limits: [{name: a, limit: 5/1s}]\nflow:\n  - {resource: a, limit: 5/1s}\n",
    )
    .unwrap();
    let serving = Serving::with(&["--rules", rules.to_str().unwrap()]);
    assert!(serving.logs("flow control").contains("flow: 1"));

    fs::write(
        &rules,
        "limits: [{name: a, limit: 5/1s}]\nflow:\n  - {resource: a, limit: 5}\n",
    )
    .unwrap();
    let output = check(&rules);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("rules.yaml: line 3: `limit` is `5`"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_store_is_printed_without_its_password_and_unsupported_limits_are_refused() {
    // Nothing listens there. The server starts anyway, and reports that it is not ready.
    let serving = Serving::with(&[
        "--store",
        "redis://:secret@127.0.0.1:1",
        "--store-prefix",
        "mine",
    ]);
    assert!(
        serving.told.contains("store  redis://127.0.0.1:1, shared"),
        "{}",
        serving.told
    );
    assert!(
        serving
            .logs("the shared store is down")
            .contains("127.0.0.1:1")
    );
    let rules = scratch("shared").join("rules.yaml");
    fs::write(
        &rules,
        "limits:\n  - {name: a, limit: 2, algorithm: concurrency}\n",
    )
    .unwrap();
    assert_eq!(check(&rules).status.code(), Some(0));
    let output = tidegate()
        .args(["check", "--shared", rules.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("line 2: limit `a` cannot be shared"),
        "{}",
        text(&output.stderr)
    );
    fs::write(
        &rules,
        "limits:\n  - {name: a, limit: 2/1s, on_error: closed, deadline: 20ms}\n",
    )
    .unwrap();
    let told = text(&check(&rules).stdout);
    assert!(told.contains("on_error: closed, deadline: 20ms"), "{told}");
    fs::write(
        &rules,
        "limits:\n  - {name: a, limit: 2/1s, deadline: auto}\n",
    )
    .unwrap();
    assert!(text(&check(&rules).stdout).contains("deadline: auto"));
    fs::write(
        &rules,
        "limits:\n  - {name: a, limit: 2/1s, deadline: soon}\n",
    )
    .unwrap();
    let told = text(&check(&rules).stderr);
    assert!(
        told.contains("line 2: `deadline` is `soon`; it must be `auto`, or a duration"),
        "{told}"
    );
    let output = tidegate()
        .args(["serve", "--store-deadline", "soon"])
        .output()
        .unwrap();
    assert!(
        text(&output.stderr).contains("it must be `auto`, or a duration"),
        "{}",
        text(&output.stderr)
    );
    let serving = Serving::with(&["--store", "redis://127.0.0.1:1", "--store-deadline", "auto"]);
    assert!(
        serving.told.contains("store  redis://127.0.0.1:1, shared"),
        "{}",
        serving.told
    );
    let output = tidegate()
        .args(["serve", "--store", "localhost"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("an address begins with redis://"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn a_configuration_file_has_the_options_and_the_command_line_goes_before_it() {
    let directory = scratch("config");
    let (config, rules) = (
        directory.join("tidegate.yaml"),
        directory.join("rules.yaml"),
    );
    fs::write(&rules, "limits: [{name: from-file, limit: 3/1m}]").unwrap();
    let text = format!(
        "# as in --help\nhttp: off\nresp: 127.0.0.1:1\nrules: {}\nhttp-origin: [https://a.example, https://b.example]\ntop-keys: 0\ninsecure: true\n",
        rules.display()
    );
    fs::write(&config, text).unwrap();
    let path = config.to_str().unwrap();
    let server = Serving::with(&["--config", path]);
    assert!(
        server.ask("PEEK from-file a").starts_with("*5"),
        "the file's rules, the command line's address"
    );
    assert!(server.ask("TOP from-file").contains("--top-keys 0"));
    // A file that makes no sense ends with all of its mistakes.
    let mistakes = "http: 1\nmax-keys: none\nconfig: x\ntls-crt: a\ninsecure: maybe\nresp: [a]\nlog-format: yaml\n";
    fs::write(&config, mistakes).unwrap();
    let output = tidegate()
        .args(["serve", "--config", path])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{told}");
    for part in [
        ":2: invalid value 'none' for '--max-keys <N>'",
        ":3: the configuration has no option `config`",
        ":4: the configuration has no option `tls-crt`; did you mean `tls-cert`?",
        ":5: `insecure` is `maybe`; write true or false",
        ":6: `resp` is a list; write one value",
        ":7: invalid value 'yaml' for '--log-format <FORMAT>'; choose one of: text, json",
    ] {
        assert!(
            told.contains(&format!("tidegate.yaml{part}")),
            "{part}: {told}"
        );
    }
    // Half of what belongs together is no TLS.
    fs::write(&config, "tls-cert: nowhere.pem\n").unwrap();
    let output = tidegate()
        .args(["serve", "--config", path])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("give both --tls-cert and --tls-key"));
    assert_eq!(output.status.code(), Some(1));
    let output = tidegate()
        .args(["serve", "--config", "/nonexistent"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent: cannot be read"));
}

#[test]
fn an_access_file_is_checked_and_no_mistake_repeats_a_token() {
    let file = scratch("check-access").join("access.yaml");
    let digest = format!("sha256:{}", "0".repeat(64));
    let check = || {
        let output = tidegate().arg("check").arg(&file).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    fs::write(&file, format!("access:\n  - {{name: shop, roles: [decide], limits: [shop.], tokens: ['{digest}']}}\n  - {{name: ops, roles: [operate], certificates: [ops.example]}}\n")).unwrap();
    let (code, told) = check();
    assert_eq!(code, Some(0), "{told}");
    assert!(
        told.contains("shop    decide            shop.   1 token\n"),
        "{told}"
    );
    assert!(
        told.contains("ops     observe, operate  all     1 certificate name\n"),
        "{told}"
    );
    assert!(
        told.contains("is valid: 2 clients.") && !told.contains("note:"),
        "{told}"
    );
    fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    assert!(
        check()
            .1
            .contains("note: every user of this machine may change it: chmod o-w")
    );
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let text = fs::read_to_string(&file)
        .unwrap()
        .replace("[shop.]", "[shop]");
    fs::write(&file, text).unwrap();
    let (code, told) = check();
    assert!(
        code == Some(0)
            && told.contains("note: `shop` of shop also covers limits such as `shop-2`"),
        "{told}"
    );
    fs::write(
        &file,
        "access:\n  - {name: shop, roles: [decide], tokens: [tg_secret]}\n  - {name: shop, roles: [admin]}\n",
    )
    .unwrap();
    let (code, told) = check();
    assert_eq!(code, Some(1), "{told}");
    assert!(
        told.contains("line 2:") && told.contains("line 3:"),
        "{told}"
    );
    assert!(
        !told.contains("tg_secret") && told.contains("it would not be used"),
        "{told}"
    );
}

#[test]
fn the_demo_has_traffic_with_denials_of_each_kind_and_leaves_nothing() {
    let listeners = [
        "--http",
        "127.0.0.1:0",
        "--resp",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
    ];
    let state = scratch("demo-state").join("state");
    let mut demo = Serving::run(
        tidegate()
            .arg("demo")
            .args(listeners)
            .args(["--rate", "2000"])
            // Of a server that runs elsewhere.
            .env("TIDEGATE_STATE", &state)
            .env("TIDEGATE_STORE", "redis://127.0.0.1:1"),
    );
    let rules = demo
        .told
        .lines()
        .find_map(|line| line.trim().strip_prefix("rules"))
        .unwrap();
    let rules = rules.trim().split(": ").next().unwrap().to_owned();
    assert!(Path::new(&rules).is_file(), "{rules}");
    let mut metrics = String::new();
    eventually("denials of each kind", || {
        metrics = demo.get("/metrics");
        [
            r#"tidegate_denials_total{limit="per-user",reason="quota"}"#,
            r#"tidegate_denials_total{limit="logins",reason="deny-listed"}"#,
            r#"tidegate_denials_total{limit="exports",reason="in-flight"}"#,
            r#"tidegate_decisions_total{limit="everyone",outcome="allowed"}"#,
        ]
        .iter()
        .all(|series| metrics.contains(series))
    });
    let page = request(&demo.admin, "GET", "/", "");
    assert!(
        page.contains("Denied now") && page.contains("scraper"),
        "{page}"
    );
    demo.signal("INT");
    assert!(demo.child.wait().unwrap().success());
    assert!(!Path::new(&rules).exists() && !state.exists(), "{rules}");
}

#[test]
fn the_default_number_of_connections_fits_the_limit_on_open_files_in_silence() {
    let log = |options: &str| {
        let serve = format!(
            "ulimit -n 2000 && exec \"$0\" serve --http 127.0.0.1:0 --resp 127.0.0.1:0 --log-level debug {options}"
        );
        let mut command = Command::new("setpriv");
        // As root, the limit could be raised.
        command
            .args(["--bounding-set", "-sys_resource", "sh", "-c", &serve])
            .arg(env!("CARGO_BIN_EXE_tidegate"))
            .env("TIDEGATE_ADMIN", "127.0.0.1:0");
        let server = Serving::run(&mut command);
        let line = server.logs("open files");
        server.signal("TERM");
        assert_eq!(server.ended(), Some(0));
        line
    };
    let silent = log("");
    assert!(
        silent.contains("DEBUG") && silent.contains("max_connections=744"),
        "{silent}"
    );
    let asked = log("--max-connections 10000");
    assert!(
        asked.contains("WARN") && asked.contains("needed=20512"),
        "{asked}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn no_thread_of_a_timer_wakes_callers_in_line() {
    let rules = scratch("line").join("rules.yaml");
    let one = "limits: [{name: line, limit: 1/50ms, algorithm: token-bucket}]";
    fs::write(&rules, one).unwrap();
    let server = Serving::with(&["--rules", rules.to_str().unwrap()]);
    let clock = SystemClock::new();
    let began = clock.now();
    for _ in 0..4 {
        let reply = server.ask("ACQUIRE line k 1 WAIT 60000");
        assert!(reply.starts_with("*5 :0"), "{reply}");
        let reply = server.post(r#"{"limit":"line","key":"k","wait":"1m"}"#);
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
    let took = clock.now().saturating_since(began);
    assert!(took >= Nanos::from_millis(7 * 50), "they wait");
    let tasks = fs::read_dir(format!("/proc/{}/task", server.child.id())).unwrap();
    let name = |task: std::io::Result<fs::DirEntry>| {
        fs::read_to_string(task.unwrap().path().join("comm")).unwrap()
    };
    let names: Vec<_> = tasks.map(name).collect();
    let has = |prefix: &str| names.iter().any(|name| name.starts_with(prefix));
    assert!(has("tidegate-resp"), "{names:?}");
    assert!(!has("futures-timer"), "{names:?}");
}
