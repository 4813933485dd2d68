//! The tenants that share a limit, as a rules file defines them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
};

use serde_json::json;
use tidegate_core::fair::{Terms, TermsError};

/// The maximum number of tenants in memory, unless the rule has `max_keys`.
pub const MAX_TENANTS: usize = 1 << 16;

/// The tenants that share a limit, as a rules file defines them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharesSpec {
    /// The part of a key that names its tenant.
    pub by: SharesBy,
    /// Weights of tenants by name; the others have a weight of 1.
    pub weights: BTreeMap<String, u32>,
    /// The parts of the limit that are available to tenants whenever they ask.
    pub guarantee: BTreeMap<String, LimitPart>,
    /// The most that one tenant may use.
    pub ceiling: Option<LimitPart>,
}

/// The part of a key that names its tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharesBy {
    /// The part before the first `/`, or else all of it.
    #[default]
    Tenant,
    /// All of it.
    Key,
}

pub(crate) const BY: [(&str, SharesBy); 2] = [("tenant", SharesBy::Tenant), ("key", SharesBy::Key)];

/// A part of a limit, from 0 to 100 % in steps of a hundredth of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitPart(pub(crate) u16);

impl LimitPart {
    /// Parses a percentage, such as `20%` or `12.5%`. `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.strip_suffix('%')?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
        if !are_digits(whole) || !are_digits(part) || part.len() > 2 {
            return None;
        }
        let hundredths: u16 = format!("{part:0<2}").parse().ok()?;
        let whole = whole.parse::<u16>().ok()?.checked_mul(100)?;
        let all = whole.checked_add(hundredths)?;
        (all <= 10_000).then_some(Self(all))
    }

    /// From 0 to 1.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / 1e4
    }
}

impl fmt::Display for LimitPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 1e2)
    }
}

impl SharesBy {
    /// The name in rules.
    pub fn name(self) -> &'static str {
        BY.iter()
            .find(|(_, by)| *by == self)
            .map_or("", |(name, _)| name)
    }

    /// The tenant of a key.
    #[inline]
    pub fn tenant(self, key: &[u8]) -> &[u8] {
        match self {
            Self::Key => key,
            Self::Tenant => key.split(|byte| *byte == b'/').next().unwrap_or(key),
        }
    }
}

/// The terms of tenants without their own, and of each tenant that has its own.
pub type AllTerms<'a, N> = (Terms, Vec<(&'a N, Terms)>);

impl SharesSpec {
    /// The function that returns the tenant of a key.
    pub const fn tenant_of(&self) -> fn(&[u8]) -> &[u8] {
        match self.by {
            SharesBy::Tenant => |key| SharesBy::Tenant.tenant(key),
            SharesBy::Key => |key| key,
        }
    }

    /// The terms of tenants without their own, and of each one that has its own.
    ///
    /// # Errors
    /// If a number is out of its range, with the tenant that has it.
    pub fn terms(&self) -> Result<AllTerms<'_, str>, (&str, TermsError)> {
        let ceiling = self.ceiling.map_or(1.0, LimitPart::fraction);
        let others = Terms::new()
            .with_ceiling(ceiling)
            .map_err(|error| ("", error))?;
        let mut named: BTreeMap<&str, Terms> = BTreeMap::new();
        for (name, weight) in &self.weights {
            let terms = others
                .with_weight(*weight)
                .map_err(|error| (&**name, error))?;
            named.insert(name, terms);
        }
        for (name, part) in &self.guarantee {
            let terms = named.entry(name).or_insert(others);
            *terms = terms
                .with_guarantee(part.fraction())
                .map_err(|error| (&**name, error))?;
        }
        Ok((others, named.into_iter().collect()))
    }

    /// The option as a rules file has it, with what each line begins with.
    pub(crate) fn yaml(&self) -> String {
        let mut text = format!("  shares:\n    by: {}\n", self.by.name());
        // JSON is also YAML, with any characters. Writing to a `String` does not fail.
        if !self.weights.is_empty() {
            let _ = writeln!(text, "    weights: {}", json!(self.weights));
        }
        if !self.guarantee.is_empty() {
            let _ = writeln!(text, "    guarantee: {}", json!(texts(&self.guarantee)));
        }
        if let Some(ceiling) = self.ceiling {
            let _ = writeln!(text, "    ceiling: {ceiling}");
        }
        text
    }

    /// The option in a few words: `shared by tenant, 2 with terms of their own, ceiling 60%`.
    pub fn told(&self) -> String {
        let mut text = format!("shared by {}", self.by.name());
        let weighted = self.weights.keys().chain(self.guarantee.keys());
        let named = weighted.collect::<BTreeSet<_>>().len();
        if named > 0 {
            let _ = write!(text, ", {named} with terms of their own");
        }
        if let Some(ceiling) = self.ceiling {
            let _ = write!(text, ", ceiling {ceiling}");
        }
        text
    }

    /// The option as the control plane shows it.
    pub fn json(&self) -> serde_json::Value {
        json!({
            "by": self.by.name(),
            "weights": self.weights,
            "guarantee": texts(&self.guarantee),
            "ceiling": self.ceiling.map(|ceiling| ceiling.to_string()),
        })
    }
}

fn texts(parts: &BTreeMap<String, LimitPart>) -> BTreeMap<&str, String> {
    let each = parts.iter();
    each.map(|(name, part)| (name.as_str(), part.to_string()))
        .collect()
}
