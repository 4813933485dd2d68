//! Reads and checks `shares`: the tenants that share a limit.

use std::collections::BTreeMap;

use tidegate_config::{Fields, Node, abridged};
use tidegate_core::{
    fair::{FairError, FairShares, TermsError},
    lease::Mode,
};

use crate::{Keeping, LimitPart, LimitSpec, SharesBy, SharesSpec, tenants::BY};

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
