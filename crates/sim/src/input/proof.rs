//! How a log was read, for the reader of its findings to check.

use std::{fmt, time::Duration};

use super::{request::Stamp, timestamp::Zone, timestamp::write_time};
use crate::{escape::printable, numbers::counted};

/// How many characters of a sample line are kept.
const KEPT: usize = 400;

/// One line of the log, and what was taken from it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Sample {
    /// The line; a long one is cut.
    pub line: String,
    /// The request's key in each limit; `None` for a limit that does not apply to it.
    pub keys: Vec<Option<String>>,
    /// When the request arrived, in UTC.
    pub time: String,
    /// The request's path, if the log has it.
    pub path: Option<String>,
    /// The cost of the request.
    pub cost: u64,
}

impl Sample {
    pub(super) fn new(
        line: &[u8],
        keys: Vec<Option<String>>,
        time: u64,
        path: Option<&[u8]>,
        cost: u64,
    ) -> Self {
        Self {
            line: String::from_utf8_lossy(line).chars().take(KEPT).collect(),
            keys,
            time: write_time(time, "%Y-%m-%d %H:%M:%S%.f"),
            path: path.map(|path| String::from_utf8_lossy(path).into_owned()),
            cost,
        }
    }
}

/// `key 192.0.2.7, time 2015-05-17 10:05:03, path /login, cost 1`.
impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.iter().map(|key| {
            key.as_deref()
                .map_or("none".to_owned(), |key| printable(key, 60))
        });
        let keys = keys.collect::<Vec<_>>();
        let path = printable(self.path.as_deref().unwrap_or("none"), 60);
        let (time, cost) = (&self.time, self.cost);
        let word = if keys.len() == 1 { "key" } else { "keys" };
        write!(
            f,
            "{word} {}, time {time}, path {path}, cost {cost}",
            keys.join(" | ")
        )
    }
}

/// How a log was read: samples, and what may change the findings.
#[derive(Clone, Debug, Default)]
pub struct Proof {
    /// Up to three requests, of different keys if possible.
    pub samples: Vec<Sample>,
    /// Requests whose line has the time of their end, and says how long they took, so that they
    /// count at their start.
    pub moved: u64,
    /// Requests whose line has the time of their end, and does not say how long they took.
    pub late: u64,
    /// Requests whose line has a time that may be that of the start or of the end.
    pub unstamped: u64,
    /// The longest of the requests whose duration is known, in nanoseconds.
    pub longest: Option<u64>,
    /// Connections without a request.
    pub requestless: u64,
    /// The zone of times that state none, if there were such times.
    pub zone: Option<String>,
    /// Pairs of sources with the same lines.
    pub repeated: Vec<(String, String)>,
    /// The moment that `--stamped` names.
    pub stamped: Option<Stamp>,
    /// The number of lines after which reading was stopped.
    pub stopped: Option<u64>,
}

impl Proof {
    /// How many sample lines are kept.
    pub const SAMPLES: usize = 3;

    pub(super) fn time_without_zone(&mut self, zone: &Zone) {
        self.zone = Some(zone.to_string());
    }

    /// Facts that may change the findings, each in one sentence with the option that changes it. `window`
    /// is the shortest of the limits.
    pub fn notes(&self, window: Option<Duration>) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(lines) = self.stopped {
            notes.push(format!(
                "reading was stopped after {}: these are the results of what was read",
                counted(lines, "line")
            ));
        }
        let within = window.map_or(String::new(), |window| {
            format!(
                " A request that takes {} or longer may count in another window.",
                length(window)
            )
        });
        let longest = self
            .longest
            .filter(|longest| *longest > 0)
            .map(|longest| length(Duration::from_nanos(longest)));
        if self.late > 0 {
            let late = counted(self.late, "request");
            notes.push(format!(
                "the time of {late} is that of the end, without a duration, so each counts as much later as it took.{within} \
                 Log the duration and name it with --took, or use --stamped start if the times are those of the start"
            ));
        }
        match longest {
            _ if self.unstamped == 0 => {}
            Some(longest) => notes.push(format!(
                "this format does not say if its times are those of the start or of the end (nginx, Tomcat and gunicorn write the \
                 end, Apache the start). They count as the start; with --stamped end requests move by up to {longest}"
            )),
            None => notes.push(format!(
                "this format does not say if its times are those of the start or of the end (nginx, Tomcat and gunicorn write the \
                 end, Apache the start), and has no durations.{within} Log the duration, and name it with --took and --stamped end"
            )),
        }
        if let Some(zone) = &self.zone {
            notes.push(format!(
                "times without a time zone are taken as {zone}; --zone names another"
            ));
        }
        if self.requestless > 0 {
            let lines = counted(self.requestless, "line");
            notes.push(format!(
                "connections without an HTTP request (such as <BADREQ>, or \"-\" 408), which count as requests: {lines}; \
                 --exclude method=- leaves them out"
            ));
        }
        for (first, second) in &self.repeated {
            notes.push(format!(
                "{second} has the same lines as {first}, and they count twice: leave one of the two out"
            ));
        }
        notes
    }
}

fn length(length: Duration) -> String {
    tidegate_core::Nanos::from(length).to_string()
}

/// The first and the last lines of a source, to find the same log given twice, such as `x` and
/// `x.gz`.
#[derive(Clone, Debug, Default)]
pub(super) struct Ends {
    first: Vec<Vec<u8>>,
    last: Vec<u8>,
}

impl Ends {
    /// How many of the first lines are compared: one alone may be the same in two logs by chance.
    const FIRST: usize = 8;

    pub fn add(&mut self, line: &[u8]) {
        if self.first.len() < Self::FIRST {
            self.first.push(line.to_vec());
        }
        self.last.clear();
        self.last.extend_from_slice(line);
    }

    /// Whether both begin with the same lines; short ones must end with the same line too.
    pub fn same(&self, other: &Self) -> bool {
        let is_full = self.first.len() == Self::FIRST;
        self.first == other.first && (is_full || self.last == other.last)
    }
}
