//! Operators' mistakes.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::Path,
    process::Command,
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_server::{Ended, Options, Order};

use crate::{
    RULES,
    harness::{Running, scratch},
};

const START: Nanos = Nanos::from_secs(1_700_049_600);

fn options(directory: &Path) -> Options {
    let rules = directory.join("rules.yaml");
    fs::write(&rules, RULES).unwrap();
    Options {
        rules: Some(rules),
        state: Some(directory.join("state")),
        state_interval: Duration::from_secs(1_000_000),
        reload_interval: Duration::from_secs(1_000_000),
        max_keys: 1_000,
        ..Options::default()
    }
}

fn refusal(directory: &Path, state: &Path) -> String {
    let options = Options {
        state: Some(state.to_owned()),
        ..options(directory)
    };
    Running::try_start_at(options, START)
        .err()
        .unwrap_or_else(|| panic!("{} was taken", state.display()))
}

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn the_state_never_replaces_a_file_that_is_not_a_state_file() {
    let directory = scratch("attack-state");
    let path = |name: &str| directory.join(name);
    mkfifo(&path("fifo"));
    fs::create_dir(path("directory")).unwrap();
    let _socket = UnixListener::bind(path("socket")).unwrap();
    symlink("/dev/null", path("link")).unwrap();
    fs::write(path("notes"), "not a state, but somebody's work").unwrap();
    for (state, told) in [
        (path("fifo"), "it is a FIFO"),
        (path("directory"), "it is a directory"),
        (path("socket"), "it is a socket"),
        (path("link"), "it is a device"),
        ("/dev/full".into(), "it is a device"),
        (path("notes"), "not a Tidegate state file"),
    ] {
        let error = refusal(&directory, &state);
        assert!(error.contains(told), "{}: {error}", state.display());
    }
    assert_eq!(
        fs::read(path("notes")).unwrap(),
        b"not a state, but somebody's work"
    );
    assert!(!fs::metadata("/dev/full").unwrap().is_file());
    let mut left: Vec<_> = fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    assert_eq!(
        left,
        ["directory", "fifo", "link", "notes", "rules.yaml", "socket"]
    );
}

#[test]
fn a_symlink_to_the_state_stays_a_symlink() {
    let directory = scratch("attack-symlink");
    let target = scratch("attack-symlink-target").join("kept");
    symlink(&target, directory.join("middle")).unwrap();
    symlink("middle", directory.join("state")).unwrap();
    symlink("round", directory.join("round")).unwrap();
    assert!(refusal(&directory, &directory.join("round")).contains("round"));
    for remaining in [2, 1] {
        let server = Running::start_at(options(&directory), START);
        assert!(
            server
                .resp("ACQUIRE per-user alice")
                .starts_with(&format!("[0 3 {remaining}"))
        );
        assert_eq!(server.stop(), Ended::Complete);
        assert!(
            fs::symlink_metadata(directory.join("state"))
                .unwrap()
                .is_symlink()
        );
        assert!(fs::read(&target).unwrap().starts_with(b"TIDEGATE"));
    }
}

#[test]
fn a_second_server_on_one_state_is_refused_with_the_pid_of_the_first() {
    let directory = scratch("attack-lock");
    let first = Running::start_at(options(&directory), START);
    symlink("state", directory.join("alias")).unwrap();
    for name in ["state", "alias"] {
        let error = refusal(&directory, &directory.join(name));
        let expected = format!(
            "the server with process id {} keeps its state there",
            std::process::id()
        );
        assert!(error.contains(&expected), "{error}");
    }
    assert_eq!(first.stop(), Ended::Complete);
    assert_eq!(
        Running::start_at(options(&directory), START).stop(),
        Ended::Complete
    );
}

#[test]
fn a_state_that_could_not_be_written_at_the_end_is_reported() {
    let directory = scratch("attack-unsaved");
    let server = Running::start_at(options(&directory), START);
    fs::create_dir(directory.join("state")).unwrap();
    assert_eq!(server.stop(), Ended::Unsaved);
}

#[test]
fn units_in_a_state_from_the_future_count_from_now_on() {
    let directory = scratch("attack-future");
    let server = Running::start_at(
        options(&directory),
        START.saturating_add(Nanos::from_secs(3_600)),
    );
    assert!(server.resp("ACQUIRE per-user alice").starts_with("[0 3 2"));
    assert_eq!(server.stop(), Ended::Complete);
    let server = Running::start_at(options(&directory), START);
    assert!(server.resp("PEEK per-user alice").starts_with("[0 3 2"));
    assert!(!directory.join("state.damaged-1").exists());
    assert_eq!(server.stop(), Ended::Complete);
}

#[test]
fn rules_that_become_a_fifo_are_rejected_and_block_nothing() {
    let directory = scratch("attack-fifo");
    let mut server = Running::start_at(options(&directory), START);
    assert!(server.resp("ACQUIRE per-user alice").starts_with("[0 3 2"));
    let rules = directory.join("rules.yaml");
    fs::remove_file(&rules).unwrap();
    mkfifo(&rules);
    let orders = server.orders();
    server.reloading(|| orders.blocking_send(Order::Reload).unwrap());
    assert_eq!(
        server.metric(r#"tidegate_rules_reloads_total{result="failed"}"#),
        1
    );
    assert_eq!(server.stop(), Ended::Complete);
    fs::remove_file(&rules).unwrap();
    let server = Running::start_at(options(&directory), START);
    assert!(
        server.resp("PEEK per-user alice").starts_with("[0 3 2"),
        "the state was written"
    );
}

#[test]
fn a_full_limit_with_when_full_deny_refuses_new_keys_and_keeps_every_exhausted_key() {
    let rules = "limits:\n  - {name: a, limit: 1/1h, algorithm: sliding-log, max_keys: 8, when_full: deny}\n";
    let mut server = Running::with_rules_and("attack-deny", rules, |options| {
        options.reload_interval = Duration::from_secs(1_000_000);
    });
    let mut client = crate::harness::Resp::connect(server.resp);
    let mut took = Vec::new();
    for key in 0..400 {
        if client
            .ask(&format!("ACQUIRE a key-{key}"))
            .starts_with("[0")
        {
            took.push(key);
        }
    }
    assert!(took.len() < 400, "strangers are refused in the end");
    for key in &took {
        assert!(
            client
                .ask(&format!("ACQUIRE a key-{key}"))
                .starts_with("[1"),
            "key-{key} got a fresh allowance"
        );
    }
    assert!(server.metric("tidegate_keys_refused_total{limit=\"a\"}") > 0);
    assert_eq!(
        server.metric("tidegate_keys_forgotten_exhausted_total{limit=\"a\"}"),
        0
    );
    // The rules can change this later; the use stays.
    let path = std::env::temp_dir().join(format!(
        "tidegate-server-{}-attack-deny/rules.yaml",
        std::process::id()
    ));
    fs::write(path, rules.replace("deny", "forget")).unwrap();
    let orders = server.orders();
    server.reloading(|| orders.blocking_send(Order::Reload).unwrap());
    assert!(client.ask("ACQUIRE a stranger").starts_with("[0"));
}
