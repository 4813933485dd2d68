//! The works, by the names that the figures carry.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The algorithm of a keyed store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Algorithm {
    TokenBucket,
    SlidingWindow,
    SlidingCounter,
}

impl Algorithm {
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenBucket => "token bucket",
            Self::SlidingWindow => "sliding window, strict, 10 slots",
            Self::SlidingCounter => "sliding counter",
        }
    }
}

/// The rules of the resource that is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarded {
    NoRule,
    /// One flow rule: a threshold per second, else rejected.
    FlowRule,
    /// A flow rule, a breaker, isolation and a system rule.
    FourKinds,
}

/// How many tenants share a limit. They are asked for by Zipf's law.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenants {
    One,
    Thousand,
    Million,
}

/// One line of the table of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    ClockRead,
    DirectTokenBucket,
    DirectTokenBucketDenied,
    DirectSlidingWindow,
    /// All admitted, or with an ordinary quota, at which popular keys are denied.
    Keyed {
        algorithm: Algorithm,
        ordinary: bool,
    },
    /// 32 keys a call.
    Batch,
    /// Nine of ten requests on eight keys.
    Hot,
    Memory(Algorithm),
    Flood {
        interleaved: bool,
    },
    Entry(Guarded),
    WindowAdd,
    WindowSum,
    ResourceMemory,
    /// One limit that so many tenants share, beside one for each.
    Shares(Tenants),
}

impl Work {
    pub const ALL: [Self; 25] = [
        Self::ClockRead,
        Self::DirectTokenBucket,
        Self::DirectTokenBucketDenied,
        Self::DirectSlidingWindow,
        Self::Keyed {
            algorithm: Algorithm::TokenBucket,
            ordinary: false,
        },
        Self::Keyed {
            algorithm: Algorithm::SlidingWindow,
            ordinary: false,
        },
        Self::Keyed {
            algorithm: Algorithm::SlidingCounter,
            ordinary: false,
        },
        Self::Keyed {
            algorithm: Algorithm::TokenBucket,
            ordinary: true,
        },
        Self::Keyed {
            algorithm: Algorithm::SlidingWindow,
            ordinary: true,
        },
        Self::Keyed {
            algorithm: Algorithm::SlidingCounter,
            ordinary: true,
        },
        Self::Batch,
        Self::Hot,
        Self::Memory(Algorithm::TokenBucket),
        Self::Memory(Algorithm::SlidingCounter),
        Self::Flood { interleaved: false },
        Self::Flood { interleaved: true },
        Self::Entry(Guarded::NoRule),
        Self::Entry(Guarded::FlowRule),
        Self::Entry(Guarded::FourKinds),
        Self::WindowAdd,
        Self::WindowSum,
        Self::ResourceMemory,
        Self::Shares(Tenants::One),
        Self::Shares(Tenants::Thousand),
        Self::Shares(Tenants::Million),
    ];

    /// Whether the table of figures has it, and it takes less than half a minute.
    pub const fn is_quick(self) -> bool {
        matches!(
            self,
            Self::ClockRead
                | Self::DirectTokenBucket
                | Self::DirectTokenBucketDenied
                | Self::DirectSlidingWindow
                | Self::Keyed {
                    algorithm: Algorithm::TokenBucket | Algorithm::SlidingWindow,
                    ordinary: false,
                }
                | Self::Batch
                | Self::Hot
                | Self::Entry(Guarded::FlowRule | Guarded::FourKinds)
                | Self::WindowAdd
                | Self::ResourceMemory
                | Self::Shares(Tenants::Million)
        )
    }

    /// The name; an algorithm other than the token bucket is a suffix.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClockRead => "clock-read",
            Self::DirectTokenBucket => "direct-token-bucket",
            Self::DirectTokenBucketDenied => "direct-token-bucket-denied",
            Self::DirectSlidingWindow => "direct-sliding-window",
            Self::Keyed {
                algorithm,
                ordinary: false,
            } => match algorithm {
                Algorithm::TokenBucket => "keyed-zipf-1m",
                Algorithm::SlidingWindow => "keyed-zipf-1m-sliding-window",
                Algorithm::SlidingCounter => "keyed-zipf-1m-sliding-counter",
            },
            Self::Keyed {
                algorithm,
                ordinary: true,
            } => match algorithm {
                Algorithm::TokenBucket => "keyed-zipf-1m-ordinary",
                Algorithm::SlidingWindow => "keyed-zipf-1m-ordinary-sliding-window",
                Algorithm::SlidingCounter => "keyed-zipf-1m-ordinary-sliding-counter",
            },
            Self::Batch => "keyed-batch",
            Self::Hot => "keyed-hot",
            Self::Memory(Algorithm::TokenBucket) => "keyed-memory",
            Self::Memory(Algorithm::SlidingWindow) => "keyed-memory-sliding-window",
            Self::Memory(Algorithm::SlidingCounter) => "keyed-memory-sliding-counter",
            Self::Flood { interleaved: false } => "keyed-flood",
            Self::Flood { interleaved: true } => "keyed-flood-interleaved",
            Self::Entry(Guarded::NoRule) => "entry-exit-no-rule",
            Self::Entry(Guarded::FlowRule) => "entry-exit",
            Self::Entry(Guarded::FourKinds) => "entry-exit-four-kinds",
            Self::WindowAdd => "window-add",
            Self::WindowSum => "window-sum",
            Self::ResourceMemory => "resource-memory",
            Self::Shares(Tenants::One) => "shares-1",
            Self::Shares(Tenants::Thousand) => "shares-1k",
            Self::Shares(Tenants::Million) => "shares-1m",
        }
    }
}

/// Which works to do: one by its name, or with `*` at the end all that begin so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice(Vec<Work>);

impl Choice {
    pub fn works(&self) -> &[Work] {
        &self.0
    }
}

impl FromStr for Choice {
    type Err = UnknownWork;

    fn from_str(text: &str) -> Result<Self, UnknownWork> {
        let fits = |work: &Work| match text.strip_suffix('*') {
            Some(beginning) => work.name().starts_with(beginning),
            None => work.name() == text,
        };
        let works: Vec<Work> = Work::ALL.into_iter().filter(fits).collect();
        if works.is_empty() {
            Err(UnknownWork)
        } else {
            Ok(Self(works))
        }
    }
}

/// A name that no work has.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownWork;

impl fmt::Display for UnknownWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no such work; the works are")?;
        for work in Work::ALL {
            write!(f, " {}", work.name())?;
        }
        f.write_str(", and `keyed-*` is all that begin so")
    }
}

impl std::error::Error for UnknownWork {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_is_found_by_its_name_alone() {
        for work in Work::ALL {
            assert_eq!(work.name().parse(), Ok(Choice(vec![work])));
        }
        assert_eq!("keyed".parse::<Choice>(), Err(UnknownWork));
    }

    #[test]
    fn a_star_takes_all_that_begin_so() {
        let direct: Choice = "direct-*".parse().unwrap();
        assert_eq!(direct.works().len(), 3);
        assert_eq!("*".parse::<Choice>().unwrap().works(), Work::ALL);
    }
}
