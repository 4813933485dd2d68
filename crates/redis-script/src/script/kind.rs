//! The algorithms of scripts, and the pieces of text that each needs.

use super::{LOG, PERMITS};

/// The algorithm of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScriptKind {
    FixedWindow,
    SavingWindow,
    SlidingWindow,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Log,
    Permits,
}

impl ScriptKind {
    pub(super) const ALL: [Self; 8] = [
        Self::FixedWindow,
        Self::SavingWindow,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
        Self::Log,
        Self::Permits,
    ];

    pub(super) const VALUES: [Self; 6] = [
        Self::FixedWindow,
        Self::SavingWindow,
        Self::SlidingWindow,
        Self::SlidingCounter,
        Self::TokenBucket,
        Self::LeakyBucket,
    ];

    pub(super) const fn source(self) -> &'static str {
        match self {
            Self::FixedWindow => include_str!("lua/fixed_window.lua"),
            Self::SavingWindow => include_str!("lua/saving_window.lua"),
            Self::SlidingWindow => include_str!("lua/sliding_window.lua"),
            Self::SlidingCounter => include_str!("lua/sliding_counter.lua"),
            Self::TokenBucket => include_str!("lua/token_bucket.lua"),
            Self::LeakyBucket => include_str!("lua/leaky_bucket.lua"),
            Self::Log => LOG,
            Self::Permits => PERMITS,
        }
    }

    /// The additional functions for taking units ahead, and for charging.
    pub(super) const fn ahead(self) -> Option<&'static str> {
        match self {
            Self::FixedWindow => Some(include_str!("lua/ahead/fixed_window.lua")),
            Self::SavingWindow => Some(include_str!("lua/ahead/saving_window.lua")),
            Self::SlidingWindow => Some(include_str!("lua/ahead/sliding_window.lua")),
            Self::SlidingCounter => Some(include_str!("lua/ahead/sliding_counter.lua")),
            // A charge moves the TAT of both buckets alike.
            Self::TokenBucket | Self::LeakyBucket => {
                Some(include_str!("lua/ahead/token_bucket.lua"))
            }
            Self::Log | Self::Permits => None,
        }
    }

    /// The refund function. The scripts of logs and permits have their own.
    pub(super) const fn refund(self) -> &'static str {
        match self {
            Self::FixedWindow => include_str!("lua/refund/fixed_window.lua"),
            Self::SavingWindow => include_str!("lua/refund/saving_window.lua"),
            Self::SlidingWindow => include_str!("lua/refund/sliding_window.lua"),
            Self::SlidingCounter => include_str!("lua/refund/sliding_counter.lua"),
            Self::TokenBucket | Self::LeakyBucket => include_str!("lua/refund/bucket.lua"),
            Self::Log | Self::Permits => "",
        }
    }

    /// The algorithm's parts of the short loop of a batch, `quick.lua`: what it prepares, and how it
    /// decides on a key.
    pub(super) fn quick(self) -> Option<(&'static str, &'static str)> {
        let parts = match self {
            Self::FixedWindow => include_str!("lua/quick/fixed_window.lua"),
            Self::SlidingWindow => include_str!("lua/quick/sliding_window.lua"),
            Self::SlidingCounter => include_str!("lua/quick/sliding_counter.lua"),
            Self::TokenBucket => include_str!("lua/quick/token_bucket.lua"),
            _ => return None,
        };
        parts.split_once("-- For each key:\n")
    }

    /// Its letter in `joint.lua`.
    pub const fn letter(self) -> &'static str {
        match self {
            Self::FixedWindow => "f",
            Self::SavingWindow => "s",
            Self::SlidingWindow => "w",
            Self::SlidingCounter => "c",
            Self::TokenBucket => "t",
            Self::LeakyBucket => "l",
            Self::Log => "g",
            Self::Permits => "p",
        }
    }
}
