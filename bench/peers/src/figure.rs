//! A figure: one line of JSON.

use serde::{Deserialize, Serialize};

/// A measured value of one limiter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The work, as the table of figures names it.
    pub work: String,
    /// `tidegate`, or the rival crate's name.
    pub who: String,
    /// Which of its ways was taken.
    pub how: String,
    pub threads: usize,
    #[serde(flatten)]
    pub measure: Measure,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Measure {
    Speed(Speed),
    Memory(Memory),
    Flood(Flood),
}

/// Time of a decision as one thread sees it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Nanoseconds a decision: the median of the rounds.
    pub ns_per_op: f64,
    /// The fastest round.
    pub min: f64,
    /// The slowest one.
    pub max: f64,
    pub rounds: usize,
    /// Share of the decisions that admitted.
    pub admitted: f64,
    /// Share of the stretches that were left out because a thread was preempted in them.
    pub preempted: f64,
}

/// Memory that keys take.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Resident bytes more than before, by the number of keys.
    pub bytes_per_key: f64,
    pub keys: u64,
    /// The bound that the store was given.
    pub max_keys: u64,
    /// Keys that it says it holds; `null` where it does not say.
    pub held: Option<u64>,
    pub resident_bytes: u64,
}

/// Real keys' decisions while a flood of made-up keys goes through the store.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flood {
    pub made_up: u64,
    pub max_keys: u64,
    /// Of the real keys' decisions, in nanoseconds; the two clock reads around each are in it.
    pub p50: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    pub decisions: u64,
    /// Nanoseconds a made-up key.
    pub ns_per_made_up: f64,
    /// Share of the made-up keys that were admitted.
    pub made_up_admitted: f64,
    /// Limited real keys.
    pub limited: u64,
    /// Of these, how many were ever admitted more than their quota allows: must be 0.
    pub resets: u64,
    /// How often real keys that stay below their quota asked, and how often they were denied all
    /// the same.
    pub modest_asked: u64,
    pub modest_denied: u64,
    /// Resident bytes: of the empty store; when twice the bound has gone through; half way; at the
    /// end.
    pub rss_empty: u64,
    pub rss_full: u64,
    pub rss_mid: u64,
    pub rss_end: u64,
    pub seconds: f64,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn figure(measure: Measure) -> Figure {
        Figure {
            work: "w".into(),
            who: "tidegate".into(),
            how: "h".into(),
            threads: 1,
            measure,
        }
    }

    #[test]
    fn a_speed_is_one_flat_line() {
        let speed = Speed {
            ns_per_op: 9.5,
            min: 9.0,
            max: 11.0,
            rounds: 3,
            admitted: 1.0,
            preempted: 0.0,
        };
        let line = serde_json::to_string(&figure(Measure::Speed(speed))).unwrap();
        assert!(!line.contains('\n'));
        let expected = json!({"work": "w", "who": "tidegate", "how": "h", "threads": 1, "ns_per_op": 9.5, "min": 9.0,
            "max": 11.0, "rounds": 3, "admitted": 1.0, "preempted": 0.0});
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
    }

    #[test]
    fn a_figure_is_read_back_as_what_it_was() {
        let memory = Memory {
            bytes_per_key: 20.5,
            keys: 10,
            max_keys: 16,
            held: None,
            resident_bytes: 205,
        };
        let flood: Flood = serde_json::from_value(json!({"made_up": 1, "max_keys": 1, "p50": 1, "p99": 1, "p999": 1,
            "max": 1, "decisions": 1, "ns_per_made_up": 1.0, "made_up_admitted": 1.0, "limited": 1, "resets": 0,
            "modest_asked": 1, "modest_denied": 0, "rss_empty": 1, "rss_full": 1, "rss_mid": 1, "rss_end": 1,
            "seconds": 1.0}))
        .unwrap();
        for measure in [Measure::Memory(memory), Measure::Flood(flood)] {
            let one = figure(measure);
            let line = serde_json::to_string(&one).unwrap();
            assert_eq!(serde_json::from_str::<Figure>(&line).unwrap(), one);
        }
    }
}
