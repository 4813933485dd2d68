//! A trace as a file has it: lines of JSON, which other programs can read, too.
//!
//! ```text
//! {"tidegate_trace":1,"server":"0.1.0","share":"10%","fresh":false,"from":"1790000000.000000000","until":"1790000900.250000000"}
//! {"limit":"per-user","rule":"{algorithm: sliding-log, limit: 5/1s}","requests":81200,"denied":310}
//! {"key":"00a1b2c3d4e5f607","name":"alice"}
//! {"time":"1790000000.120000000","limit":"per-user","key":"00a1b2c3d4e5f607","cost":1,"verdict":"denied","reason":"quota"}
//! {"end":1}
//! ```
//!
//! The first line has the share of all keys that was traced, and since when the trace is complete
//! for them. Then come the limits with their decisions for all keys in that time, the names of
//! heavy keys, and the requests in order of time. The last line has their number. Times are seconds
//! since 1970.

use std::{borrow::Cow, collections::HashMap, io::BufRead};

use serde::{Deserialize, Serialize};
use tidegate_core::{DenialReason, MAX_LIMIT};

use super::{Event, KeyShare, ParseKeyShareError, Verdict};

/// The first bytes of a file that holds a trace.
const BEGINNING: &[u8] = b"{\"tidegate_trace\":";
/// The version of the format that is written and read.
const VERSION: u32 = 1;
/// Bytes of lines that are sent together.
const PIECE: usize = 64 * 1024;

/// Whether a file that begins with these bytes holds a trace.
pub fn is_recording(head: &[u8]) -> bool {
    head.starts_with(BEGINNING)
}

/// A trace that was taken at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Which part of all keys it has.
    pub share: KeyShare,
    /// Whether the limits were fresh when it began.
    pub fresh: bool,
    /// Since when it has every request of these keys, in nanoseconds since the epoch.
    pub from: u64,
    /// When it was taken.
    pub until: u64,
    /// The limits, by the numbers that events give them.
    pub limits: Vec<RecordedLimit>,
    /// The names of keys that the server knows by name, by their hashes.
    pub names: HashMap<u64, String>,
    /// The requests, in order of time.
    pub events: Vec<Event>,
    /// Whether the file ended before its last line.
    pub is_cut: bool,
}

/// A limit of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedLimit {
    /// Its name.
    pub name: String,
    /// Its policy when the trace was taken, as rules have it; `None` for a limit that was gone by
    /// then, and for `CL.THROTTLE`.
    pub rule: Option<String>,
    /// The requests of all keys in the time of the trace, if the server's history covers it.
    pub requests: Option<u64>,
    /// How many of them it denied.
    pub denied: Option<u64>,
}

/// Why a file cannot be read as a trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// It was written by another version.
    #[error(
        "the trace has format {0}, and this program reads format {VERSION}: use the tidegate of that server's version"
    )]
    Version(u32),
    /// A line makes no sense.
    #[error("line {line}: {what}; record the trace again")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// The mistake.
        what: String,
    },
}

/// A line of any kind, as it is read.
#[derive(Deserialize)]
struct Line<'a> {
    tidegate_trace: Option<u32>,
    #[serde(borrow)]
    share: Option<Cow<'a, str>>,
    #[serde(default)]
    fresh: bool,
    #[serde(borrow)]
    from: Option<Cow<'a, str>>,
    #[serde(borrow)]
    until: Option<Cow<'a, str>>,
    #[serde(borrow)]
    limit: Option<Cow<'a, str>>,
    #[serde(borrow)]
    rule: Option<Cow<'a, str>>,
    requests: Option<u64>,
    denied: Option<u64>,
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow)]
    time: Option<Cow<'a, str>>,
    cost: Option<u64>,
    verdict: Option<Verdict>,
    #[serde(borrow)]
    reason: Option<Cow<'a, str>>,
    end: Option<u64>,
}

fn seconds(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn nanos(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if fraction.len() > 9 || !fraction.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<9}").parse().ok()?;
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(fraction)
}

impl Recording {
    /// The trace as text, in pieces of some kilobytes.
    pub fn pieces(self) -> impl Iterator<Item = Vec<u8>> + Send + 'static {
        let (share, fresh, version) = (self.share, self.fresh, env!("CARGO_PKG_VERSION"));
        let (from, until) = (seconds(self.from), seconds(self.until));
        let head = format!(
            r#"{{"tidegate_trace":{VERSION},"server":"{version}","share":"{share}","fresh":{fresh},"from":"{from}","until":"{until}"}}"#
        );
        let mut first = (head + "\n").into_bytes();
        for RecordedLimit {
            name,
            rule,
            requests,
            denied,
        } in &self.limits
        {
            push(
                &mut first,
                &serde_json::json!({"limit": name, "rule": rule, "requests": requests, "denied": denied}),
            );
        }
        for (key, name) in &self.names {
            push(
                &mut first,
                &serde_json::json!({"key": format!("{key:016x}"), "name": name}),
            );
        }
        // Names of limits are letters, digits and . _ : - and need no escapes.
        let names: Vec<String> = self.limits.into_iter().map(|limit| limit.name).collect();
        let mut events = self.events.into_iter();
        let mut end = Some(events.len());
        std::iter::once(first).chain(std::iter::from_fn(move || {
            let mut piece = Vec::with_capacity(PIECE + 256);
            for Event { time, key, cost, limit, verdict, reason } in events.by_ref() {
                use std::io::Write as _;

                let (limit, time) = (&names[usize::from(limit)], seconds(time));
                let _ = write!(
                    piece,
                    r#"{{"time":"{time}","limit":"{limit}","key":"{key:016x}","cost":{cost},"verdict":"#
                );
                let _ = serde_json::to_writer(&mut piece, &verdict);
                if let Some(reason) = reason {
                    let _ = write!(piece, r#","reason":"{reason}""#);
                }
                piece.extend_from_slice(b"}\n");
                if piece.len() >= PIECE {
                    return Some(piece);
                }
            }
            if let Some(count) = end.take() {
                push(&mut piece, &serde_json::json!({"end": count}));
            }
            (!piece.is_empty()).then_some(piece)
        }))
    }

    /// Reads a trace. Of a file that was cut off, everything up to the last whole line is used.
    ///
    /// # Errors
    /// When the text is not a trace, or has another version.
    pub fn read(text: &mut dyn BufRead) -> Result<Self, RecordingError> {
        let mut reader = Reader::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            // Nothing is read after the last line: how a connection ends then does not matter.
            if reader.ended || text.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            reader.number += 1;
            if line.last() != Some(&b'\n') {
                // The last line was cut.
                break;
            }
            reader.take(&line)?;
        }
        reader.finish()
    }
}

fn push(lines: &mut Vec<u8>, line: &impl Serialize) {
    // Texts and numbers always serialize, and memory takes them.
    let _ = serde_json::to_writer(&mut *lines, line);
    lines.push(b'\n');
}

#[derive(Default)]
struct Reader {
    number: u64,
    recording: Option<Recording>,
    numbers: HashMap<String, u16>,
    ended: bool,
}

impl Reader {
    fn take(&mut self, line: &[u8]) -> Result<(), RecordingError> {
        let number = self.number;
        let wrong = |what: &str| RecordingError::Line {
            line: number,
            what: what.to_owned(),
        };
        let read: Line<'_> =
            serde_json::from_slice(line).map_err(|error| wrong(&error.to_string()))?;
        if let Some(version) = read.tidegate_trace {
            if version != VERSION {
                return Err(RecordingError::Version(version));
            }
            let share = read.share.as_deref().unwrap_or_default();
            let share = share
                .parse()
                .map_err(|error: ParseKeyShareError| wrong(&error.to_string()))?;
            let time = |text: &Option<Cow<'_, str>>| text.as_deref().and_then(nanos);
            let (Some(from), Some(until)) = (time(&read.from), time(&read.until)) else {
                return Err(wrong("`from` or `until` is not a number of seconds"));
            };
            self.recording = Some(Recording {
                share,
                fresh: read.fresh,
                from,
                until,
                limits: Vec::new(),
                names: HashMap::new(),
                events: Vec::new(),
                is_cut: true,
            });
            return Ok(());
        }
        let recording = self
            .recording
            .as_mut()
            .ok_or_else(|| wrong("a trace begins with `tidegate_trace`"))?;
        let key = || u64::from_str_radix(read.key.as_deref()?, 16).ok();
        match (&read.limit, &read.name, &read.time, read.end) {
            (Some(limit), None, Some(time), None) => {
                let limit = self
                    .numbers
                    .get(limit.as_ref())
                    .ok_or_else(|| wrong("its limit is not listed before"))?;
                let (Some(time), Some(key), Some(verdict)) = (nanos(time), key(), read.verdict)
                else {
                    return Err(wrong("a request has a time, a key and a verdict"));
                };
                let named = |reason: &DenialReason| read.reason.as_deref() == Some(reason.name());
                let reason = DenialReason::ALL.into_iter().find(named);
                let cost = read.cost.unwrap_or(1);
                if cost > MAX_LIMIT {
                    return Err(wrong("a cost is at most 9007199254740991"));
                }
                let event = Event {
                    time,
                    key,
                    cost,
                    limit: *limit,
                    verdict,
                    reason,
                };
                if recording.events.last().is_some_and(|last| last.time > time) {
                    return Err(wrong("the requests are not in order of time"));
                }
                recording.events.push(event);
            }
            (Some(name), None, None, None) => {
                let next =
                    u16::try_from(recording.limits.len()).map_err(|_| wrong("too many limits"))?;
                self.numbers.insert(name.as_ref().to_owned(), next);
                let rule = read.rule.as_deref().map(str::to_owned);
                let (requests, denied) = (read.requests, read.denied);
                recording.limits.push(RecordedLimit {
                    name: name.as_ref().to_owned(),
                    rule,
                    requests,
                    denied,
                });
            }
            (None, Some(name), None, None) => {
                let key = key().ok_or_else(|| wrong("a name has no key"))?;
                recording.names.insert(key, name.as_ref().to_owned());
            }
            (None, None, None, Some(count)) => {
                if count != recording.events.len() as u64 {
                    return Err(wrong("it has another number of requests than were written"));
                }
                (recording.is_cut, self.ended) = (false, true);
            }
            _ => return Err(wrong("it is neither a limit, nor a name, nor a request")),
        }
        Ok(())
    }

    fn finish(self) -> Result<Recording, RecordingError> {
        let what = "a trace begins with `tidegate_trace`".to_owned();
        let mut recording = self
            .recording
            .ok_or(RecordingError::Line { line: 1, what })?;
        if recording.is_cut {
            recording.until = recording
                .events
                .last()
                .map_or(recording.from, |event| event.time);
        }
        Ok(recording)
    }
}
