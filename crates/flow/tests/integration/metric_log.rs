//! The metric log is written second by second, can be read back, and has a bounded size.
#![cfg(not(loom))]

use std::{
    fs,
    future::Future,
    io::{ErrorKind, Write},
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_core::{Clock, clock::Timer};
use tidegate_flow::{
    Gate, ManualTimer,
    metric_log::{Found, INBOUND, MetricLine, MetricLog, ParseLineError, Query, read, read_files},
    rules::{FlowRule, Rules},
};

const START: u64 = 1_529_998_904;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir =
            std::env::temp_dir().join(format!("tidegate-metrics-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Self(dir)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort_unstable();
        names
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn gate() -> (Gate, Arc<ManualTimer>) {
    let timer = Arc::new(ManualTimer::new(Nanos::from_secs(START)));
    let gate = Gate::builder().timer(timer.clone()).build();
    gate.load(Rules::from(vec![FlowRule::new("/foo|\nx", 3)]))
        .unwrap();
    (gate, timer)
}

fn call(gate: &Gate, timer: &ManualTimer, times: usize) {
    let resource = gate.resource("/foo|\nx");
    let calls: Vec<_> = (0..times)
        .filter_map(|_| resource.entry().inbound().enter().ok())
        .collect();
    timer.advance(Duration::from_millis(40));
    drop(calls);
    timer.advance(Duration::from_millis(960));
}

#[test]
fn each_second_has_its_lines_and_they_read_back() {
    let dir = Dir::new("lines");
    let (gate, timer) = gate();
    let mut log = MetricLog::open(&dir.0, "my app").unwrap();
    for times in [5, 0, 2] {
        call(&gate, &timer, times);
        log.record(&gate).unwrap();
    }
    assert_eq!(log.record(&gate).unwrap(), 0, "no second is written twice");
    assert_eq!(
        dir.names(),
        [
            "my_app-metrics.log.2018-06-26",
            "my_app-metrics.log.2018-06-26.idx"
        ]
    );
    let text = fs::read_to_string(dir.0.join("my_app-metrics.log.2018-06-26")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [
            "1529998904000|2018-06-26 07:41:44|__total_inbound_traffic__|3|2|3|0|40|0|3|0",
            "1529998904000|2018-06-26 07:41:44|/foo__x|3|2|3|0|40|0|3|0",
            "1529998906000|2018-06-26 07:41:46|__total_inbound_traffic__|2|0|2|0|40|0|2|0",
            "1529998906000|2018-06-26 07:41:46|/foo__x|2|0|2|0|40|0|2|0",
        ]
    );
    let index = fs::read(dir.0.join("my_app-metrics.log.2018-06-26.idx")).unwrap();
    assert_eq!(index.len(), 32);
    assert_eq!(
        index[24..],
        (lines[0].len() as u64 + lines[1].len() as u64 + 2).to_be_bytes()
    );

    let find = |query: Query| read(&dir.0, log.app(), &query).unwrap().lines;
    assert_eq!(find(Query::default()).len(), 4);
    let second = find(Query {
        resource: Some("/foo__x".into()),
        from: Some(START + 1),
        ..Query::default()
    });
    assert_eq!(second.iter().map(|line| line.pass).collect::<Vec<_>>(), [2]);
    let first = find(Query {
        resource: Some(INBOUND.into()),
        to: Some(START + 1),
        ..Query::default()
    });
    assert_eq!(first.iter().map(|line| line.block).collect::<Vec<_>>(), [2]);
    assert_eq!(
        find(Query {
            from: Some(START + 3),
            ..Query::default()
        }),
        []
    );
    assert_eq!(
        find(Query {
            limit: Some(3),
            ..Query::default()
        })
        .len(),
        3
    );
}

/// A clock that returns the last moment of a second while it is held.
#[derive(Clone)]
struct Held {
    timer: ManualTimer,
    shown: Arc<Mutex<Option<Nanos>>>,
}

impl Clock for Held {
    fn now(&self) -> Nanos {
        self.shown
            .lock()
            .unwrap()
            .unwrap_or_else(|| self.timer.now())
    }
}

impl Timer for Held {
    fn sleep_until(&self, at: Nanos) -> impl Future<Output = ()> + Send + use<> {
        self.timer.sleep_until(at)
    }
}

#[test]
fn a_second_of_a_node_has_ended_when_the_next_one_began() {
    let (gate, timer) = gate();
    let resource = gate.resource("/foo|\nx");
    let ended = || resource.node().ended(gate.now());
    drop(resource.enter().unwrap());
    timer.advance(Duration::from_nanos(999_999_999));
    drop(resource.enter().unwrap());
    assert_eq!(ended(), []);
    timer.advance(Duration::from_nanos(1));
    let [second] = ended().try_into().unwrap();
    let line = MetricLine::new(resource.name(), &second);
    assert_eq!(
        (line.at_ms, &*line.resource, line.pass),
        (START * 1_000, "/foo__x", 2)
    );
    // A call in the current second is not among them.
    drop(resource.enter().unwrap());
    assert_eq!(ended(), [second]);
    timer.advance(Duration::from_mins(2));
    assert_eq!(ended(), [], "the last minute had no traffic");
}

#[test]
fn a_call_that_is_counted_after_its_second_was_written_is_not_lost() {
    let dir = Dir::new("late");
    let timer = Arc::new(Held {
        timer: ManualTimer::new(Nanos::from_secs(START)),
        shown: Arc::default(),
    });
    let gate = Gate::builder().timer(timer.clone()).build();
    let mut log = MetricLog::open(&dir.0, "app").unwrap();
    let r = gate.resource("r");
    drop(r.enter());
    timer.timer.advance(Duration::from_secs(1));
    assert_eq!(log.record(&gate).unwrap(), 1);
    // The call read the clock before the second ended and was then suspended for a while.
    *timer.shown.lock().unwrap() = Some(Nanos::new(Nanos::from_secs(START + 1).get() - 1));
    drop(r.enter());
    *timer.shown.lock().unwrap() = None;
    timer.timer.advance(Duration::from_secs(1));
    log.record(&gate).unwrap();
    let lines = read(&dir.0, "app", &Query::default()).unwrap().lines;
    assert_eq!(lines.iter().map(|line| line.pass).sum::<u64>(), 2);
}

/// Polls until the condition holds, for minutes if necessary, because the logger's thread writes
/// once a second.
fn until(is_so: impl Fn() -> bool) {
    let so = (0..30_000).any(|_| {
        thread::park_timeout(Duration::from_millis(10));
        is_so()
    });
    assert!(so, "it does not happen");
}

fn passed(dir: &Dir) -> Vec<u64> {
    let query = Query {
        resource: Some("/foo__x".into()),
        ..Query::default()
    };
    read(&dir.0, "app", &query)
        .unwrap()
        .lines
        .iter()
        .map(|line| line.pass)
        .collect()
}

#[test]
fn a_logger_writes_each_second_and_the_rest_at_its_end() {
    let dir = Dir::new("logger");
    let (gate, timer) = gate();
    let log = MetricLog::open(&dir.0, "app").unwrap();
    let logger = gate.log_metrics(log, |error| panic!("{error}")).unwrap();
    call(&gate, &timer, 2);
    until(|| passed(&dir) == [2]);
    drop(gate.resource("/foo|\nx").enter());
    drop(logger);
    assert_eq!(passed(&dir), [2, 1], "including the current second");
}

#[test]
fn a_program_that_lives_for_less_than_a_second_has_its_lines() {
    let dir = Dir::new("short");
    let (gate, _timer) = gate();
    let logger = gate
        .log_metrics(MetricLog::open(&dir.0, "app").unwrap(), |error| {
            panic!("{error}")
        })
        .unwrap();
    drop(gate.resource("/foo|\nx").enter());
    drop(logger);
    assert_eq!(passed(&dir), [1]);
}

#[test]
fn a_log_that_cannot_be_written_reports_it_and_delays_no_call() {
    let dir = Dir::new("stuck");
    let (gate, timer) = gate();
    let log = MetricLog::open(&dir.0, "app").unwrap();
    fs::remove_dir_all(&dir.0).unwrap();
    let (told, failures) = mpsc::channel();
    let (go_on, going_on) = mpsc::channel::<()>();
    let going_on = Mutex::new(going_on);
    let logger = gate
        .log_metrics(log, move |error| {
            let _ = told.send((error.kind(), thread::current().name().map(str::to_owned)));
            let _ = going_on.lock().unwrap().recv();
        })
        .unwrap();
    call(&gate, &timer, 1);
    let (kind, name) = failures.recv_timeout(Duration::from_mins(5)).unwrap();
    assert_eq!(
        (kind, name.as_deref()),
        (ErrorKind::NotFound, Some("tidegate-metrics"))
    );
    // The thread now hangs, as on a disk that does not respond.
    for _ in 0..3 {
        call(&gate, &timer, 1);
    }
    assert_eq!(
        gate.resource("/foo|\nx").node().seconds(gate.now()).len(),
        4
    );
    drop(go_on);
    drop(logger);
}

#[test]
fn seconds_that_passed_between_two_writes_are_all_written() {
    let dir = Dir::new("gap");
    let (gate, timer) = gate();
    let mut log = MetricLog::open(&dir.0, "app").unwrap();
    log.record(&gate).unwrap();
    for _ in 0..30 {
        call(&gate, &timer, 1);
    }
    assert_eq!(log.record(&gate).unwrap(), 60);
}

#[test]
fn files_are_bounded_in_size_and_number_and_days_are_apart() {
    let dir = Dir::new("bounds");
    let (gate, timer) = gate();
    let mut log = MetricLog::open(&dir.0, "app")
        .unwrap()
        .max_bytes(200)
        .max_files(4);
    for _ in 0..20 {
        call(&gate, &timer, 1);
        log.record(&gate).unwrap();
    }
    let names = dir.names();
    assert_eq!(names.len(), 8, "four files and their indices: {names:?}");
    assert!(
        names.contains(&"app-metrics.log.2018-06-26.9".into()),
        "{names:?}"
    );
    timer.advance(Duration::from_hours(24));
    call(&gate, &timer, 1);
    log.record(&gate).unwrap();
    assert!(dir.names().contains(&"app-metrics.log.2018-06-27".into()));
    assert_eq!(dir.names().len(), 8);
    // A new writer appends to the existing file.
    call(&gate, &timer, 1);
    MetricLog::open(&dir.0, "app")
        .unwrap()
        .record(&gate)
        .unwrap();
    assert!(dir.names().contains(&"app-metrics.log.2018-06-27.1".into()));
    let lines = read(&dir.0, "app", &Query::default()).unwrap().lines;
    assert!(lines.is_sorted_by_key(|line| line.at_ms));
}

#[test]
fn a_torn_line_and_a_missing_index_lose_nothing_else() {
    let dir = Dir::new("torn");
    let (gate, timer) = gate();
    let mut log = MetricLog::open(&dir.0, "app").unwrap();
    call(&gate, &timer, 1);
    log.record(&gate).unwrap();
    let path = dir.0.join("app-metrics.log.2018-06-26");
    fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap()
        .write_all(b"15299989050")
        .unwrap();
    let Found {
        lines, unreadable, ..
    } = read(&dir.0, "app", &Query::default()).unwrap();
    assert_eq!((lines.len(), unreadable), (2, 1));
    fs::remove_file(dir.0.join("app-metrics.log.2018-06-26.idx")).unwrap();
    let from = Query {
        from: Some(START),
        ..Query::default()
    };
    assert_eq!(read(&dir.0, "app", &from).unwrap().lines.len(), 2);
}

#[test]
fn an_index_speeds_up_reading_and_a_wrong_one_only_slows_it() {
    let dir = Dir::new("index");
    let (gate, timer) = gate();
    let mut log = MetricLog::open(&dir.0, "app").unwrap();
    for _ in 0..3 {
        call(&gate, &timer, 1);
        log.record(&gate).unwrap();
    }
    let path = dir.0.join("app-metrics.log.2018-06-26");
    let index = dir.0.join("app-metrics.log.2018-06-26.idx");
    let last = Query {
        from: Some(START + 2),
        ..Query::default()
    };
    // The reader skips everything before the indexed offset, so it does not count an unreadable
    // line there.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(
        &path,
        text.replacen("15299989", "x", 1)
            .replacen('\n', "0000000\n", 1),
    )
    .unwrap();
    assert_eq!(fs::read(&path).unwrap().len(), text.len());
    let found = read_files([&path], &last).unwrap();
    assert_eq!((found.lines.len(), found.unreadable), (2, 0));
    // One offset is in the middle of a line, and one is past the end of the file.
    for offset in [7_u64, 1 << 40] {
        let entries: Vec<u8> = (0..3)
            .flat_map(|n| [START + n, offset])
            .flat_map(u64::to_be_bytes)
            .collect();
        fs::write(&index, entries).unwrap();
        let found = read_files([&path], &last).unwrap();
        assert_eq!((found.lines.len(), found.unreadable), (2, 1));
    }
}

#[test]
fn files_in_any_order_read_as_one_log() {
    let dir = Dir::new("order");
    let (gate, timer) = gate();
    let mut log = MetricLog::open(&dir.0, "app").unwrap().max_bytes(1);
    for _ in 0..3 {
        call(&gate, &timer, 1);
        log.record(&gate).unwrap();
    }
    let path = |suffix: &str| dir.0.join(format!("app-metrics.log.2018-06-26{suffix}"));
    let all = read_files([path(".2"), path(""), path(".1")], &Query::default()).unwrap();
    assert_eq!(all, read(&dir.0, "app", &Query::default()).unwrap());
    let first = Query {
        limit: Some(1),
        resource: Some("/foo__x".into()),
        ..Query::default()
    };
    let first = read_files([path(".2"), path("")], &first).unwrap();
    assert_eq!(
        first
            .lines
            .iter()
            .map(|line| line.at_ms)
            .collect::<Vec<_>>(),
        [START * 1_000]
    );
    let error = read_files([path(""), path(".7")], &Query::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("cannot read") && error.contains("2018-06-26.7"),
        "{error}"
    );
}

#[test]
fn a_log_is_found_by_the_name_it_was_opened_with() {
    let dir = Dir::new("dots");
    let (gate, timer) = gate();
    let mut log = MetricLog::open(&dir.0, "my.app").unwrap();
    call(&gate, &timer, 1);
    log.record(&gate).unwrap();
    assert_eq!(
        dir.names()[0],
        "my-app-metrics.log.2018-06-26",
        "as Sentinel writes it"
    );
    let found = read(&dir.0, "my.app", &Query::default()).unwrap();
    assert_eq!((found.lines.len(), found.files), (2, 1));
    let none = read(&dir.0, "other", &Query::default()).unwrap();
    assert_eq!(
        (none.lines.len(), none.files),
        (0, 0),
        "there is no log with that name"
    );
}

#[test]
fn a_line_reads_back_as_it_was_written() {
    let line = MetricLine {
        at_ms: 1_529_998_904_000,
        pass: 3,
        rt_ms: 7,
        ..MetricLine::default()
    };
    let line = MetricLine {
        resource: "/foo/*".into(),
        ..line
    };
    assert_eq!(
        line.to_string(),
        "1529998904000|2018-06-26 07:41:44|/foo/*|3|0|0|0|7|0|0|0"
    );
    assert_eq!(line.to_string().parse(), Ok(line));
    assert_eq!(
        "1|2|3".parse::<MetricLine>(),
        Err(ParseLineError::Fields(3))
    );
    assert!("x|d|r|1|2|3|4|5|6|7|8".parse::<MetricLine>().is_err());
}

#[test]
fn lines_of_older_writers_with_eight_to_ten_fields_are_read() {
    let whole = "1529998904000|2018-06-26 07:41:44|/foo|3|2|1|4|7|5|6|8";
    let line: MetricLine = whole.parse().unwrap();
    let of = |fields: usize| {
        let text: Vec<&str> = whole.split('|').take(fields).collect();
        text.join("|").parse::<MetricLine>()
    };
    assert_eq!(of(11), Ok(line.clone()));
    assert_eq!(
        of(10),
        Ok(MetricLine {
            class: 0,
            ..line.clone()
        })
    );
    assert_eq!(
        of(9),
        Ok(MetricLine {
            class: 0,
            concurrency: 0,
            ..line.clone()
        })
    );
    assert_eq!(
        of(8),
        Ok(MetricLine {
            class: 0,
            concurrency: 0,
            occupied: 0,
            ..line
        })
    );
    assert_eq!(of(7), Err(ParseLineError::Fields(7)));
    assert_eq!(
        format!("{whole}|9").parse::<MetricLine>(),
        Err(ParseLineError::Fields(12))
    );
}

#[test]
fn dates_follow_the_calendar() {
    for (second, date) in [
        (0, "1970-01-01"),
        (951_782_400, "2000-02-29"),
        (951_868_800, "2000-03-01"),
        (1_709_164_800, "2024-02-29"),
        (1_735_689_599, "2024-12-31"),
        (1_735_689_600, "2025-01-01"),
        (4_107_542_400, "2100-03-01"),
    ] {
        let line = MetricLine {
            at_ms: second * 1_000,
            ..MetricLine::default()
        };
        assert!(line.to_string().contains(&format!("|{date} ")), "{line}");
    }
}
