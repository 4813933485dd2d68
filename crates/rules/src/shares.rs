//! `shares`: tenants that share a limit.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
};

use serde_json::json;
use tidegate_config::{Fields, Node, abridged};
use tidegate_core::{
    fair::{FairError, FairShares, Terms, TermsError},
    lease::Mode,
};

use crate::{Keeping, LimitSpec};

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

const BY: [(&str, SharesBy); 2] = [("tenant", SharesBy::Tenant), ("key", SharesBy::Key)];

/// A part of a limit, from 0 to 100 % in steps of a hundredth of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LimitPart(u16);

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
    pub(super) fn yaml(&self) -> String {
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

/// Reads the option `shares`. `by` is the part of the key that names the tenant, if the rule cannot
/// say it.
pub fn read(fields: &Fields<'_>, by: Option<SharesBy>, called: &str) -> Option<SharesSpec> {
    let node = fields.get("shares")?;
    let called = format!("{called}, shares");
    let known = ["weights", "guarantee", "ceiling", "by"];
    let known = &known[..known.len() - usize::from(by.is_some())];
    let shares = Fields::open(node, &called, known, fields.complaints())?;
    let by = by.or_else(|| shares.word("by", &BY)).unwrap_or_default();
    let mut spec = SharesSpec {
        by,
        ..SharesSpec::default()
    };
    let mend = "write tenants with their weights, as in `weights: {acme: 10}`";
    for (name, value) in shares.mapping("weights", mend) {
        let weight = value.text().and_then(|text| text.parse().ok());
        read_named(
            &shares,
            &called,
            (name, value),
            weight,
            mend,
            by,
            &mut spec.weights,
        );
    }
    let mend = "write tenants with parts of the limit, as in `guarantee: {acme: 20%}`";
    for (name, value) in shares.mapping("guarantee", mend) {
        let part = value.text().and_then(LimitPart::parse);
        read_named(
            &shares,
            &called,
            (name, value),
            part,
            mend,
            by,
            &mut spec.guarantee,
        );
    }
    spec.ceiling = shares.read(
        "ceiling",
        "a part of the limit, as in `60%`",
        LimitPart::parse,
    );
    let complain = |field: &str, what: String, mend: &str| {
        fields.complaints().at(shares.line_of(field), what, mend);
    };
    if let Err((tenant, error)) = spec.terms() {
        let (of, field) = match error {
            TermsError::Ceiling => (String::new(), "ceiling"),
            TermsError::Weight => (format!(", tenant `{}`", abridged(tenant)), "weights"),
            _ => (format!(", tenant `{}`", abridged(tenant)), "guarantee"),
        };
        let problem =
            tidegate_config::Problem::at(shares.line_of(field), format!("{called}{of}: {error}"));
        fields.complaints().add(problem);
    }
    let sum: u32 = spec.guarantee.values().map(|part| u32::from(part.0)).sum();
    if sum > 10_000 {
        let percent = f64::from(sum) / 1e2;
        let what = format!("{called}: the guarantees are {percent} % of the limit together");
        complain("guarantee", what, "lower them to at most 100 %");
    }
    Some(spec)
}

fn read_named<T>(
    shares: &Fields<'_>,
    called: &str,
    (name, value): (&Node, &Node),
    read: Option<T>,
    mend: &str,
    by: SharesBy,
    into: &mut BTreeMap<String, T>,
) {
    let complaints = shares.complaints();
    let Some(tenant) = crate::keys::read_key(name, "shares", complaints) else {
        return;
    };
    let short = abridged(tenant);
    if by.tenant(tenant.as_bytes()).len() < tenant.len() {
        let what = format!(
            "{called}: no key has the tenant `{short}`, because its name ends at the first `/`"
        );
        let mend = "leave out the `/` and what follows, or add `by: key`";
        complaints.at(name.line, what, mend);
        return;
    }
    let Some(read) = read else {
        let what = format!("{called}, tenant `{short}`: it is {}", value.describe());
        complaints.at(value.line, what, mend);
        return;
    };
    if into.insert(tenant.to_owned(), read).is_some() {
        complaints.at(
            name.line,
            format!("{called}: the tenant `{short}` is given twice"),
            "keep one",
        );
    }
}

/// Reports what a limit that tenants share cannot be or have.
pub fn check(limit: &LimitSpec, fields: &Fields<'_>, keeping: Keeping, called: &str) {
    if limit.shares.is_none() {
        return;
    }
    let wrong = |field: &str, why: &str, mend: &str| {
        let what = format!("{called}: {why}");
        fields.complaints().at(fields.line_of(field), what, mend);
    };
    if limit.sharing.mode == Some(Mode::Reported) {
        let why = "a server would use units before the tenant's share is asked";
        wrong(
            "sharing",
            why,
            "write `sharing: leased` or `sharing: exact`",
        );
    }
    for (field, why, mend) in [
        (
            "global",
            "a global limit has no keys, so there are no tenants",
            "remove `global`: all keys have one limit together with `shares`",
        ),
        (
            "overrides",
            "keys share the limit, so none can have its own",
            "give the tenant a weight, a guarantee or a ceiling in `shares`, or another limit",
        ),
        (
            "soft",
            "a soft limit denies nothing, so there is nothing to share",
            "remove `soft`, or use `shadow`",
        ),
        (
            "thresholds",
            "keys share the limit, so none uses a part of its own",
            "remove `thresholds`",
        ),
        (
            "line",
            "a limit that tenants share has no line",
            "remove `line`; clients ask again after `retry_after`",
        ),
        (
            "when_full",
            "a tenant that was forgotten is level with the others when it returns, so none is denied",
            "remove `when_full`",
        ),
    ] {
        if fields
            .get(field)
            .is_some_and(|node| node.text() != Some("false"))
        {
            wrong(field, why, mend);
        }
    }
    if limit.deny.contains("") {
        wrong(
            "deny",
            "the empty key names no tenant",
            "remove \"\" from `deny`",
        );
    }
    // An invalid policy was already reported.
    let Ok(policy) = limit.policy.policy() else {
        return;
    };
    let shared = FairShares::new(&policy).and_then(|shares| {
        if keeping == Keeping::Store && shares.are_permits() {
            Err(FairError::Permits)
        } else {
            Ok(())
        }
    });
    if let Err(error) = shared {
        let mend = match error {
            FairError::Algorithm(_) => "change the algorithm, or remove `shares`",
            FairError::Permits => "remove `shares`, or serve this limit without `--store`",
            _ => "",
        };
        let field = match error {
            FairError::Algorithm(_) => "algorithm",
            _ => "limit",
        };
        let problem =
            tidegate_config::Problem::at(fields.line_of(field), format!("{called}: {error}"));
        fields.complaints().add(if mend.is_empty() {
            problem
        } else {
            problem.mend(mend)
        });
    }
}
