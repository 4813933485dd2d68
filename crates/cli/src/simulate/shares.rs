//! Limits that tenants share: `--shares`, and `shares:` in a rules file.

use std::collections::HashMap;

use tidegate_core::{
    Quota,
    fair::{FairError, Terms},
};
use tidegate_server::rules::{LimitSpec, SharesBy};
use tidegate_sim::{
    AlgorithmSpec, Progress, SharesTrial,
    input::{self, By, Source},
    replay_shares,
    report::{Report, SharesReport},
    workload::{Trace, Workload as _},
};

use super::{
    algorithms, args::Args, error::SimulateError, note, options, source_names, warn_of_grain,
    warn_of_unparsed,
};

/// Replays the limits of the command line, each shared by the tenants that `by` names.
pub fn replay_quotas(
    by: &By,
    sources: &[Source],
    args: &Args,
    progress: &Progress,
) -> Result<Report, SimulateError> {
    let options = input::Options {
        by: Some(by.clone()),
        ..options(args)
    };
    let loaded = input::read(sources, &options, progress)?;
    warn_of_unparsed(&loaded.unparsed, loaded.lines, loaded.format.parts());
    let mut report = Report {
        source: source_names(args, sources, loaded.format),
        by: by.to_string(),
        lines: loaded.lines,
        unparsed: loaded.unparsed.count,
        excluded: loaded.excluded,
        samples: loaded.proof.samples.clone(),
        ..Report::default()
    };
    let windows = args.limits.iter().map(|quota| quota.window()).min();
    report.warnings = loaded.proof.notes(windows);
    let grain = windows.and_then(|window| warn_of_grain(&loaded.trace, window, args.spread));
    report.warnings.extend(grain);
    for &quota in &args.limits {
        for spec in algorithms(args, quota) {
            let trial = trial(quota, &spec, Terms::new(), HashMap::new())?;
            let tenant = |key| loaded.trace.label(key);
            let found = replay_shares(&loaded.trace, tenant, &trial, progress);
            match found {
                Ok(findings) => report.shares.push(SharesReport {
                    name: String::new(),
                    by: by.to_string(),
                    findings,
                }),
                // By default all algorithms are compared.
                Err(FairError::Algorithm(_) | FairError::Permits) if args.algorithms.is_none() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    let warnings = report.warnings.iter();
    warnings.for_each(|warning| note(&format!("warning: {warning}")));
    Ok(report)
}

/// Whether the rules deny a key, or the tenant that it belongs to.
pub fn is_denied(limit: &LimitSpec, key: &str) -> bool {
    let shares = limit.shares.as_ref();
    let tenant = shares.map(|shares| String::from_utf8_lossy(shares.by.tenant(key.as_bytes())));
    limit.deny.contains(key) || tenant.is_some_and(|tenant| limit.deny.contains(&*tenant))
}

/// Replays a limit of a rules file on its requests.
pub fn replay_limit(
    limit: &LimitSpec,
    spec: &AlgorithmSpec,
    quota: Quota,
    (by, trace): (&By, &Trace),
    progress: &Progress,
) -> Result<Option<SharesReport>, SimulateError> {
    let Some(shares) = &limit.shares else {
        return Ok(None);
    };
    // The rules were validated.
    let (others, named) = shares.terms().unwrap_or_default();
    let named = named
        .into_iter()
        .map(|(name, terms)| (name.to_owned(), terms));
    let trial = trial(quota, spec, others, named.collect())?;
    let tenant_of = |key: &str| {
        let tenant = shares.by.tenant(key.as_bytes());
        String::from_utf8_lossy(tenant).into_owned()
    };
    let tenant = |trace: &Trace, key| match shares.by {
        SharesBy::Key => trace.label(key),
        // A key of several fields begins with its tenant.
        SharesBy::Tenant => tenant_of(&trace.first_part(key)),
    };
    let kept;
    let trace = if limit.deny.is_empty() {
        trace
    } else {
        kept = trace.of_keys(|key| !is_denied(limit, key));
        &kept
    };
    let findings = replay_shares(trace, |key| tenant(trace, key), &trial, progress)?;
    Ok(Some(SharesReport {
        name: limit.name.clone(),
        by: format!("{} of {by}", shares.by.name()),
        findings,
    }))
}

fn trial(
    quota: Quota,
    spec: &AlgorithmSpec,
    others: Terms,
    named: HashMap<String, Terms>,
) -> Result<SharesTrial, SimulateError> {
    let policy = spec
        .policy(quota)
        .map_err(|error| SimulateError::SharedPolicy {
            algorithm: spec.label().to_owned(),
            quota,
            error,
        })?;
    Ok(SharesTrial {
        quota,
        algorithm: spec.label().to_owned(),
        policy,
        others,
        named,
    })
}
