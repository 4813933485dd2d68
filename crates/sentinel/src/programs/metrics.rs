//! The metrics of one program, as its command `metric` prints them.

use std::{collections::BTreeMap, net::SocketAddr};

use tidegate_service::flow::{MINUTE, ResourceReport};
use url::form_urlencoded::Serializer;

use super::call::{CallError, call};

/// Seconds that are asked for again: the program writes the lines of a second one after another.
const AGAIN: u64 = 2;
/// Seconds that the first call asks for at least. It begins with the last minute, which the program
/// has in its log: what a server that started again has not seen. After a call that failed, as one
/// with too long an answer does, the next one asks for half as much.
const FIRST: u64 = 6;
/// Resources of one program.
const MAX_RESOURCES: usize = 2_000;

#[derive(Debug)]
pub(super) struct Metrics {
    /// How far the program's clock is ahead, in milliseconds.
    ahead: i128,
    /// Seconds that the first call asks for.
    first: u64,
    /// The program's current second.
    now: u64,
    /// The newest second of the program's metrics.
    newest: Option<u64>,
    /// Each resource of the last minute: its newest second, and the calls in flight then.
    known: BTreeMap<String, (u64, u64)>,
    /// The seconds of the last call.
    seconds: BTreeMap<String, Vec<[u64; 7]>>,
}

impl Metrics {
    pub fn new(ahead: i128) -> Self {
        let first = MINUTE as u64;
        Self {
            ahead,
            first,
            now: 0,
            newest: None,
            known: BTreeMap::new(),
            seconds: BTreeMap::new(),
        }
    }

    /// Asks the program at this time of the server.
    pub async fn pull(&mut self, address: SocketAddr, now_ms: u64) -> Result<(), CallError> {
        let now = u64::try_from((i128::from(now_ms) + self.ahead) / 1_000).unwrap_or(0);
        let first = self
            .newest
            .map_or(now.saturating_sub(self.first), |newest| {
                newest.saturating_sub(AGAIN - 1)
            });
        let form = Serializer::new(String::new())
            .append_pair("startTime", &first.saturating_mul(1_000).to_string())
            .append_pair(
                "endTime",
                &now.saturating_add(MINUTE as u64)
                    .saturating_mul(1_000)
                    .to_string(),
            )
            .finish();
        let answer = call(address, "metric", form, false).await;
        if answer.is_err() {
            self.first = (self.first / 2).max(FIRST);
        }
        let text = answer?;
        self.take(&text, now);
        Ok(())
    }

    /// Takes the lines of an answer in. A line that cannot be read is left out.
    fn take(&mut self, text: &str, now: u64) {
        self.seconds.clear();
        for (name, second) in text.lines().filter_map(line) {
            // Sums and figures of the machine are no resources.
            if name.starts_with("__") && name.ends_with("__") {
                continue;
            }
            if self.known.len() >= MAX_RESOURCES && !self.known.contains_key(name) {
                continue;
            }
            let newest = self.known.entry(name.to_owned()).or_default();
            *newest = (second[0], second[6]).max(*newest);
            self.newest = self.newest.max(Some(second[0]));
            self.seconds
                .entry(name.to_owned())
                .or_default()
                .push(second);
        }
        for seconds in self.seconds.values_mut() {
            seconds.sort_unstable();
        }
        // The clock of the first heartbeat may have been wrong.
        self.now = now.max(self.newest.map_or(0, |newest| newest.saturating_add(1)));
        let first = self.now.saturating_sub(MINUTE as u64);
        self.known.retain(|_, (newest, _)| *newest >= first);
    }

    /// The program's current second, and its resources of the last minute with the seconds of the
    /// last answer.
    pub fn reports(&mut self) -> (u64, Vec<ResourceReport>) {
        let reports = self
            .known
            .iter()
            .map(|(name, (newest, in_flight))| ResourceReport {
                name: name.clone(),
                in_flight: if self.now.saturating_sub(*newest) <= 3 {
                    *in_flight
                } else {
                    0
                },
                seconds: self.seconds.remove(name).unwrap_or_default(),
                ..ResourceReport::default()
            });
        (self.now, reports.collect())
    }
}

/// A line without a date: `ms|resource|pass|block|success|exception|rt|occupied|concurrency|class`,
/// in the order of a report's second.
fn line(text: &str) -> Option<(&str, [u64; 7])> {
    let mut fields = text.split('|');
    let at = fields.next()?.parse::<u64>().ok()?;
    let name = fields.next()?;
    let numbers: Vec<u64> = fields
        .map(|field| field.parse().ok())
        .collect::<Option<_>>()?;
    let [pass, block, success, exception, rt, rest @ ..] = &numbers[..] else {
        return None;
    };
    let micros = rt.saturating_mul(1_000).saturating_mul(*success);
    let in_flight = rest.get(1).copied().unwrap_or(0);
    Some((
        name,
        [
            at / 1_000,
            *pass,
            *block,
            *exception,
            *success,
            micros,
            in_flight,
        ],
    ))
}
