//! A share as a percentage.

use std::{fmt, str::FromStr};

/// A share of a whole, exact to a ten-millionth of a percent.
///
/// ```
/// use tidegate_sim::Share;
/// let share: Share = "0.1%".parse()?;
/// assert_eq!(share.of(12_345), 12);
/// # Ok::<(), tidegate_sim::ParseShareError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    billionths: u32,
}

impl Share {
    /// One percent.
    pub const ONE_PERCENT: Self = Self {
        billionths: 10_000_000,
    };

    /// Five percent.
    pub const FIVE_PERCENT: Self = Self {
        billionths: 50_000_000,
    };

    /// The largest whole number that is at most this share of `all`.
    pub const fn of(self, all: u64) -> u64 {
        (all as u128 * self.billionths as u128 / 1_000_000_000) as u64
    }
}

impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let percent = text.strip_suffix('%').ok_or(ParseShareError)?.trim_end();
        let (whole, fraction) = percent.split_once('.').unwrap_or((percent, "0"));
        let digits =
            |text: &str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
        if !digits(whole) || !digits(fraction) || fraction.len() > 7 {
            return Err(ParseShareError);
        }
        let whole: u32 = whole
            .parse()
            .ok()
            .filter(|whole| *whole <= 100)
            .ok_or(ParseShareError)?;
        // At most seven digits, padded to seven.
        let fraction: u32 = format!("{fraction:0<7}")
            .parse()
            .map_err(|_| ParseShareError)?;
        let billionths = whole * 10_000_000 + fraction;
        if billionths > 1_000_000_000 {
            Err(ParseShareError)
        } else {
            Ok(Self { billionths })
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.billionths / 10_000_000, self.billionths % 10_000_000);
        let fraction = format!("{fraction:07}");
        match fraction.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            fraction => write!(f, "{whole}.{fraction}%"),
        }
    }
}

/// A text is not a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write a percentage from 0% to 100%, with at most seven digits behind the point, as in 1% or 0.1%"
)]
pub struct ParseShareError;
