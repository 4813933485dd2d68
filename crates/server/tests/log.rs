//! What a server logs, and how often. This is a separate test binary because its log is that of the
//! whole process.

#[path = "integration/harness/mod.rs"]
mod harness;

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt as _,
    sync::{Mutex, Once},
    time::Duration,
};

use harness::{Resp, Running, scratch};
use tidegate_redis_servers::eventually;
use tidegate_server::access::check;

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static BEGINS: Once = Once::new();

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The lines with this text since the start of the process.
fn logged(text: &str) -> Vec<String> {
    let log = String::from_utf8(LOG.lock().unwrap().clone()).unwrap();
    log.lines()
        .filter(|line| line.contains(text))
        .map(str::to_owned)
        .collect()
}

fn begin() {
    BEGINS.call_once(|| {
        tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(|| Log)
            .init();
    });
}

#[test]
fn a_full_table_is_reported_once_and_forgotten_keys_at_most_once_a_minute() {
    begin();
    let limit =
        |name| format!("  - {{name: {name}, limit: 1/1h, algorithm: sliding-log, max_keys: 8}}\n");
    let rules: String = ["watched", "first", "second", "third"].map(limit).concat();
    let server = Running::with_rules("log-occupancy", &format!("limits:\n{rules}"));
    let mut client = Resp::connect(server.resp);
    let mut use_keys = |limit: &str, keys: std::ops::Range<u32>| {
        for key in keys {
            client.ask(&format!("ACQUIRE {limit} key-{key}"));
        }
    };
    let told = || logged("limit=\"watched\"");
    // A look at all limits, in their order, reports another one that is full now.
    let look = |limit: &str| {
        eventually("the server looks", || {
            !logged(&format!("limit=\"{limit}\"")).is_empty()
        });
    };
    use_keys("watched", 0..3);
    use_keys("first", 0..8);
    look("first");
    assert_eq!(told(), [""; 0], "there is room");
    use_keys("watched", 3..8);
    use_keys("second", 0..8);
    look("second");
    let full = told();
    assert!(
        matches!(&full[..], [line] if line.contains("WARN") && line.contains("max_keys=8") && line.contains("nearly reached")),
        "{full:?}"
    );
    use_keys("watched", 8..1_000);
    eventually("forgotten keys are reported", || told().len() == 2);
    let forgotten = told();
    assert!(
        forgotten[1].contains("exhausted=") && forgotten[1].contains("when_full: deny"),
        "{forgotten:?}"
    );
    use_keys("watched", 1_000..2_000);
    server.advance(Duration::from_secs(59));
    use_keys("third", 0..8);
    look("third");
    assert_eq!(told(), forgotten, "a minute is not over");
    server.advance(Duration::from_secs(1));
    eventually("what was forgotten meanwhile is reported", || {
        told().len() == 3
    });
}

#[test]
fn a_state_that_cannot_be_written_is_logged_at_most_once_a_minute() {
    begin();
    let directory = scratch("log-state");
    let server = Running::with_rules_and(
        "log-state-rules",
        "limits: [{name: a, limit: 1/1h}]",
        |options| {
            options.state = Some(directory.join("state"));
            options.state_interval = Duration::from_millis(1);
        },
    );
    // Each write makes a new file there.
    let new = directory.join(".state.new");
    eventually("no write is under way", || fs::create_dir(&new).is_ok());
    let told = || logged("cannot write the state").len();
    let fail = || {
        let failed = || server.metric("tidegate_state_writes_total{result=\"failed\"}");
        let before = failed();
        eventually("writes fail", || failed() > before + 5);
    };
    fail();
    assert_eq!(told(), 1);
    server.advance(Duration::from_secs(59));
    fail();
    assert_eq!(told(), 1);
    server.advance(Duration::from_secs(1));
    eventually("another minute has begun", || told() == 2);
    fail();
    assert_eq!(told(), 2);
}

#[test]
fn an_access_file_that_every_user_may_change_is_logged() {
    begin();
    let path = scratch("log-access").join("access.yaml");
    fs::write(&path, "access: []\n").unwrap();
    let mut warnings = 0;
    for (mode, is_open) in [(0o600, false), (0o664, false), (0o666, true), (0o602, true)] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        check(&path).unwrap().unwrap();
        warnings += usize::from(is_open);
        assert_eq!(logged("chmod o-w").len(), warnings, "{mode:o}");
    }
}
