//! The scripts that decide in Redis, each put together from its pieces in `lua/`.
//!
//! A script translates an algorithm of `tidegate-core` far enough to say yes or no and to write the state; what a caller
//! is told is computed here, from the state as it was, by the algorithm itself. The tests hold each script to the
//! algorithm, step by step, on a real server.

use std::sync::Arc;

const VALUE: &str = include_str!("lua/value.lua");
const SPAN: &str = include_str!("lua/span.lua");
const BATCH: &str = include_str!("lua/batch.lua");
const LOG: &str = include_str!("lua/log.lua");
const BATCH_LOG: &str = include_str!("lua/batch_log.lua");
const JOINT: &str = include_str!("lua/joint.lua");
const PERMITS: &str = include_str!("lua/permits.lua");
const LEASE: &str = include_str!("lua/lease.lua");
const LEASE_LOG: &str = include_str!("lua/lease_log.lua");

/// Which script decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    FixedWindow,
    SlidingWindow,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    /// Sliding log, and permits.
    Log,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Log,
    ];

    const VALUES: [Self; 5] =
        [Self::FixedWindow, Self::SlidingWindow, Self::SlidingCounter, Self::TokenBucket, Self::LeakyBucket];

    const fn source(self) -> &'static str {
        match self {
            Self::FixedWindow => include_str!("lua/fixed_window.lua"),
            Self::SlidingWindow => include_str!("lua/sliding_window.lua"),
            Self::SlidingCounter => include_str!("lua/sliding_counter.lua"),
            Self::TokenBucket => include_str!("lua/token_bucket.lua"),
            Self::LeakyBucket => include_str!("lua/leaky_bucket.lua"),
            Self::Log => LOG,
        }
    }

    /// What taking ahead needs beside the decision.
    const fn ahead(self) -> Option<&'static str> {
        match self {
            Self::FixedWindow => Some(include_str!("lua/ahead/fixed_window.lua")),
            Self::SlidingWindow => Some(include_str!("lua/ahead/sliding_window.lua")),
            Self::SlidingCounter => Some(include_str!("lua/ahead/sliding_counter.lua")),
            Self::TokenBucket => Some(include_str!("lua/ahead/token_bucket.lua")),
            Self::LeakyBucket | Self::Log => None,
        }
    }

    /// What `joint.lua` calls it.
    pub const fn letter(self) -> &'static str {
        match self {
            Self::FixedWindow => "f",
            Self::SlidingWindow => "w",
            Self::SlidingCounter => "c",
            Self::TokenBucket => "t",
            Self::LeakyBucket => "l",
            Self::Log => "g",
        }
    }
}

/// A script's text, and the name that Redis knows it by once it has seen it.
#[derive(Debug)]
pub struct Script {
    pub text: String,
    pub sha: String,
}

impl Script {
    pub fn new(text: String) -> Self {
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self { text, sha }
    }
}

/// All scripts.
#[derive(Debug)]
pub struct Scripts {
    batches: [Arc<Script>; 6],
    leases: [Option<Arc<Script>>; 6],
    pub joint: Arc<Script>,
    pub permits: Arc<Script>,
}

impl Scripts {
    /// Scripts that go by the server's time.
    pub fn new() -> Self {
        Self::on_clock(include_str!("lua/clock.lua"))
    }

    /// Scripts that take the time as one more argument. No build but the tests' has them.
    #[cfg(test)]
    pub fn on_manual_clock() -> Self {
        Self::on_clock(include_str!("lua/manual_clock.lua"))
    }

    fn on_clock(clock: &str) -> Self {
        let script = |text: String| Arc::new(Script::new(text));
        let batch = |kind: Kind| {
            let source = kind.source();
            script(match kind {
                Kind::Log => format!("{clock}local log_of = (function()\n{source}end)()\n{BATCH_LOG}"),
                _ => {
                    format!(
                        "{clock}{VALUE}{SPAN}local prepare, decide, adopt = (function()\n{source}end)()\n{BATCH}"
                    )
                }
            })
        };
        let lease = |kind: Kind| {
            let source = kind.source();
            if kind == Kind::Log {
                return Some(script(format!(
                    "{clock}local log_of = (function()\n{source}end)()\n{LEASE_LOG}"
                )));
            }
            let ahead = kind.ahead()?;
            Some(script(format!(
                "{clock}{VALUE}{SPAN}local prepare, decide, adopt, weight = (function()\n{source}end)()\n\
                 local room, alike, give_back, charge = (function()\n{ahead}end)()\n{LEASE}"
            )))
        };
        let values: String = Kind::VALUES.into_iter().map(algorithm).collect();
        let joint = format!(
            "{clock}{VALUE}{SPAN}local algorithms = {{}}\n{values}algorithms.g = (function()\n{LOG}end)()\n{JOINT}"
        );
        Self {
            batches: Kind::ALL.map(batch),
            leases: Kind::ALL.map(lease),
            joint: script(joint),
            permits: script(format!("{clock}{PERMITS}")),
        }
    }

    /// The script that decides many requests of one limit.
    pub const fn batch(&self, kind: Kind) -> &Arc<Script> {
        &self.batches[kind as usize]
    }

    /// The script by which nodes take pieces, and report; none for the leaky bucket.
    pub const fn lease(&self, kind: Kind) -> Option<&Arc<Script>> {
        self.leases[kind as usize].as_ref()
    }
}

/// One of those that decide from a value, as `joint.lua` finds it.
fn algorithm(kind: Kind) -> String {
    let (source, letter) = (kind.source(), kind.letter());
    format!(
        "do local prepare, decide, adopt = (function()\n{source}end)()\n\
         algorithms.{letter} = {{prepare = prepare, decide = decide, adopt = adopt}} end\n"
    )
}
