//! `--rules`: replays each limit of a rules file on its requests in the log.

use std::path::Path;

use tidegate_server::{
    rules::{self as server_rules, Keeping, LimitSpec, PolicySpec},
    shown::counted,
};
use tidegate_sim::{
    AlgorithmSpec, Progress, Trial, Workload, heat_map,
    input::{self, By, Condition, Field, Selected, Selector, Source},
    replay,
    report::Report,
    workload::Trace,
};

use super::{
    args::Args, check_forwarded, check_proxies, error::SimulateError, note, options, shares,
    source_names, threads, warn_of_keys, warn_of_unparsed,
};

/// A policy to replay with its requests: the limit itself, or one of its overrides.
struct ReplayedPolicy<'a> {
    name: String,
    policy: &'a PolicySpec,
    trace: Trace,
}

/// Replays the limits of a rules file over the log. Each decides separately, as for a caller who
/// asks for one at a time.
pub fn replay_rules(
    path: &Path,
    sources: &[Source],
    args: &Args,
    progress: &Progress,
) -> Result<Report, SimulateError> {
    let rules = server_rules::load(path, Keeping::Memory)?;
    let limits: Vec<&LimitSpec> = rules
        .limits
        .iter()
        .filter(|limit| is_replayed(limit, args))
        .collect();
    if limits.is_empty() {
        return Err(SimulateError::NothingToReplay(path.to_owned()));
    }
    let selectors = limits
        .iter()
        .map(|limit| selector(limit))
        .collect::<Result<Vec<_>, _>>()?;
    let by = || selectors.iter().flat_map(|selector| selector.by.fields());
    check_proxies(by(), args)?;
    check_forwarded(by(), args)?;
    let loaded = input::read_limits(sources, &options(args), &selectors, progress)?;
    warn_of_unparsed(&loaded.unparsed, loaded.lines, loaded.format.parts());
    let windows = limits.iter().filter_map(|limit| limit.policy.window);
    let mut report = Report {
        source: source_names(args, sources, loaded.format),
        lines: loaded.lines,
        unparsed: loaded.unparsed.count,
        excluded: loaded.excluded,
        samples: loaded.proof.samples.clone(),
        warnings: loaded.proof.notes(windows.min()),
        ..Report::default()
    };
    for ((limit, selector), selected) in limits.into_iter().zip(&selectors).zip(loaded.selected) {
        warn(&mut report, limit, selector, &selected, loaded.requests);
        let (policy, trace) = (&limit.policy, (&selector.by, &selected.trace));
        let shared = shares::replay_limit(limit, &spec(policy), quota(policy), trace, progress)?;
        if let Some(shared) = shared {
            report.shares.push(shared);
            continue;
        }
        for part in parts(limit, &selected.trace) {
            let trial = Trial::new(quota(part.policy), &[spec(part.policy)])?;
            let findings = replay(
                &part.trace,
                std::slice::from_ref(&trial),
                threads(args),
                progress,
            );
            for findings in findings {
                report.names.push(
                    findings
                        .most_denied
                        .iter()
                        .map(|key| part.trace.label(key.key))
                        .collect(),
                );
                report.heat.push(heat_map(&part.trace, &trial, &findings));
                report.limits.push(part.name.clone());
                report.findings.push(findings);
            }
        }
    }
    report
        .warnings
        .iter()
        .for_each(|warning| note(&format!("warning: {warning}")));
    Ok(report)
}

fn is_replayed(limit: &LimitSpec, args: &Args) -> bool {
    if limit.shares.is_some() && args.charge.is_some() {
        note(&format!(
            "the limit {} is left out: with --charge requests ask with a cost of 0, about which shares do not decide",
            limit.name
        ));
        return false;
    }
    let replayed = limit.policy.algorithm.limits_rate();
    if !replayed {
        note(&format!(
            "the limit {} is left out: concurrency limits what is in flight, and a log does not say when a request ended",
            limit.name
        ));
    }
    replayed
}

fn selector(limit: &LimitSpec) -> Result<Selector, SimulateError> {
    let condition = |(field, pattern): &(String, String)| {
        Field::from_name(field).map(|field| Condition::new(field, pattern.clone()))
    };
    let by = match &limit.traffic.by[..] {
        _ if limit.global => By::GLOBAL,
        [] => By::ip(),
        fields => {
            let parsed = fields.join(",").parse();
            parsed.map_err(|error| SimulateError::RuleField {
                limit: limit.name.clone(),
                error,
            })?
        }
    };
    Ok(Selector {
        conditions: limit
            .traffic
            .conditions
            .iter()
            .filter_map(condition)
            .collect(),
        by,
    })
}

/// Warnings about a limit that its numbers do not show.
fn warn(
    report: &mut Report,
    limit: &LimitSpec,
    selector: &Selector,
    selected: &Selected,
    requests: u64,
) {
    let name = &limit.name;
    if selected.trace.requests() == 0 {
        let wanted: Vec<String> = selector
            .conditions
            .iter()
            .map(ToString::to_string)
            .collect();
        let wanted = if wanted.is_empty() {
            String::new()
        } else {
            format!(" ({})", wanted.join(", "))
        };
        report.warnings.push(format!(
            "{name} concerns none of {}{wanted}",
            counted(requests, "request")
        ));
    }
    let keys = warn_of_keys(&selected.trace, &selector.by);
    report
        .warnings
        .extend(keys.map(|warning| format!("{name}: {warning}")));
    if selected.keyless > 0 {
        let by = &selector.by;
        report.warnings.push(format!(
            "not limited because of no {by}: {} that {name} would concern",
            counted(selected.keyless, "request")
        ));
    }
    let denied: u64 = if limit.deny.is_empty() {
        0
    } else {
        selected
            .trace
            .of_keys(|key| shares::is_denied(limit, key))
            .requests()
    };
    if denied > 0 {
        report.warnings.push(format!(
            "the `deny` list of {name} denies {} more",
            counted(denied, "request")
        ));
    }
    if limit.shadow {
        report.warnings.push(format!(
            "{name} is a shadow limit: what is denied here would only be counted"
        ));
    }
}

/// The limit without the keys that have their own policy, and each of these keys.
fn parts<'a>(limit: &'a LimitSpec, trace: &Trace) -> Vec<ReplayedPolicy<'a>> {
    let mut parts = Vec::new();
    let is_apart = |key: &str| limit.overrides.contains_key(key) || limit.deny.contains(key);
    let rest = if limit.overrides.is_empty() && limit.deny.is_empty() {
        trace.clone()
    } else {
        trace.of_keys(|key| !is_apart(key))
    };
    parts.push(ReplayedPolicy {
        name: limit.name.clone(),
        policy: &limit.policy,
        trace: rest,
    });
    for (key, policy) in &limit.overrides {
        let own = trace.of_keys(|label| label == key);
        if own.requests() > 0 && policy.algorithm.limits_rate() {
            parts.push(ReplayedPolicy {
                name: format!("{}, {key}", limit.name),
                policy,
                trace: own,
            });
        }
    }
    parts
}

fn quota(policy: &PolicySpec) -> tidegate_core::Quota {
    // The rules were validated.
    let quota = tidegate_core::Quota::new(policy.limit, policy.window.unwrap_or_default());
    quota.expect("a checked policy other than concurrency has a quota")
}

fn spec(policy: &PolicySpec) -> AlgorithmSpec {
    policy
        .algorithm
        .to_string()
        .parse()
        .expect("an algorithm reads its own text: a test reads each")
}
