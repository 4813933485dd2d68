//! Replays a limit that tenants share, next to the same limit without shares.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;
use tidegate_core::fair::{FairError, FairShares, FairState, TenantNote, TenantStates, Terms};
use tidegate_core::{Algorithm as _, Nanos, Policy, Quota};

use crate::{
    progress::{Progress, Stage},
    workload::Workload,
};

/// A limit that tenants share.
#[derive(Clone, Debug)]
pub struct SharesTrial {
    /// The limit, for the report.
    pub quota: Quota,
    /// The algorithm's name, with its options.
    pub algorithm: String,
    /// The limit's policy.
    pub policy: Policy,
    /// The terms of tenants without their own.
    pub others: Terms,
    /// The terms of tenants by name.
    pub named: HashMap<String, Terms>,
}

/// The findings about a limit that tenants share.
#[derive(Clone, Debug, Serialize)]
pub struct SharesFindings {
    /// The limit.
    pub limit: Quota,
    /// The algorithm's name, with its options.
    pub algorithm: String,
    /// Requests.
    pub requests: u64,
    /// Denied requests without shares: one limit for all, in order of time.
    pub denied_without: u64,
    /// Denied requests with shares.
    pub denied: u64,
    /// Weighted Jain's index of the units that tenants were admitted without shares: from 1 divided
    /// by the number of tenants, if one got everything, to 1, if each got its part. A tenant's part
    /// is that of weighted max-min fairness in each second (or window, if that is longer).
    pub jain_without: f64,
    /// The same with shares.
    pub jain: f64,
    /// Each tenant, the one with the most requests first.
    pub tenants: Vec<TenantFindings>,
}

/// One tenant's requests and units.
#[derive(Clone, Debug, Serialize)]
pub struct TenantFindings {
    /// Its name. It may contain everything that the log contains.
    pub tenant: String,
    /// Its weight, guarantee and ceiling.
    pub terms: String,
    /// Requests.
    pub requests: u64,
    /// Denied requests without shares.
    pub denied_without: u64,
    /// Denied requests with shares.
    pub denied: u64,
    /// The sum of the costs.
    pub units: u64,
    /// Admitted units without shares.
    pub admitted_units_without: u64,
    /// Admitted units with shares.
    pub admitted_units: u64,
    /// The units that weighted max-min fairness would give it.
    pub fair_units: f64,
}

/// One request.
#[derive(Clone, Copy)]
struct Event {
    time: u64,
    tenant: u32,
    cost: u64,
}

/// A tenant during the replay.
struct Tenant {
    terms: Terms,
    share: Vec<u64>,
    guarantee: Vec<u64>,
    ceiling: Vec<u64>,
    note: TenantNote,
    found: TenantFindings,
}

/// Replays the workload. `tenant` names the tenant of a key. Requests with the same time come in the
/// order of their keys.
///
/// # Errors
/// If the policy cannot be shared.
pub fn replay_shares<W: Workload>(
    workload: &W,
    tenant: impl Fn(u32) -> String,
    trial: &SharesTrial,
    progress: &Progress,
) -> Result<SharesFindings, FairError> {
    let shares = FairShares::new(&trial.policy)?;
    if shares.are_permits() {
        // A log does not say when permits returned.
        return Err(FairError::Permits);
    }
    progress.begin(Stage::Replaying, workload.requests());
    let (events, mut tenants) = by_time(workload, tenant, trial, shares.words());
    let policy = &trial.policy;
    let [mut plain, mut total] = [(); 2].map(|()| vec![0; policy.words()]);
    let mut state = FairState::default();
    for &Event { time, tenant, cost } in &events {
        let (now, name) = (Nanos::new(time), tenant + 1);
        let tenant = &mut tenants[tenant as usize];
        tenant.found.requests += 1;
        tenant.found.units = tenant.found.units.saturating_add(cost);
        if policy.decide(&mut plain, now, cost).is_allowed() {
            tenant.found.admitted_units_without += cost;
        } else {
            tenant.found.denied_without += 1;
        }
        let mut states = TenantStates {
            share: &mut tenant.share,
            guarantee: Some(&mut tenant.guarantee),
            ceiling: Some(&mut tenant.ceiling),
            note: tenant.note.of(name),
        };
        let granted = shares.ask(&mut state, &tenant.terms, &mut states, cost, now);
        let is_admitted = granted.is_ok() && policy.decide(&mut total, now, cost).is_allowed();
        match granted {
            Ok(grant) if is_admitted => {
                shares.take(&mut state, &tenant.terms, &mut states, grant);
            }
            Ok(grant) => shares.total_refused(&mut state, &tenant.terms, &mut states, grant),
            Err(_) => {}
        }
        if is_admitted {
            tenant.found.admitted_units += cost;
        } else {
            tenant.found.denied += 1;
        }
    }
    progress.add(events.len() as u64);
    let all: Vec<Terms> = tenants.iter().map(|tenant| tenant.terms).collect();
    let fair = fair_units(&events, &all, trial.quota, shares.horizon());
    let each = tenants.into_iter().zip(fair);
    let mut tenants: Vec<TenantFindings> = each
        .map(|(tenant, fair_units)| TenantFindings {
            fair_units,
            ..tenant.found
        })
        .collect();
    tenants.sort_by(|one, other| (other.requests, &one.tenant).cmp(&(one.requests, &other.tenant)));
    let sum = |of: fn(&TenantFindings) -> u64| tenants.iter().map(of).sum();
    Ok(SharesFindings {
        limit: trial.quota,
        algorithm: trial.algorithm.clone(),
        requests: events.len() as u64,
        denied_without: sum(|tenant| tenant.denied_without),
        denied: sum(|tenant| tenant.denied),
        jain_without: jain(&tenants, |tenant| tenant.admitted_units_without),
        jain: jain(&tenants, |tenant| tenant.admitted_units),
        tenants,
    })
}

/// The requests of all keys in order of time, and their tenants.
fn by_time<W: Workload>(
    workload: &W,
    tenant: impl Fn(u32) -> String,
    trial: &SharesTrial,
    words: usize,
) -> (Vec<Event>, Vec<Tenant>) {
    let (mut numbers, mut tenants) = (HashMap::new(), Vec::new());
    let mut events = Vec::with_capacity(workload.requests() as usize);
    for key in 0..workload.keys() {
        let name = tenant(key);
        let number = *numbers.entry(name.clone()).or_insert_with(|| {
            let terms = trial.named.get(&name).unwrap_or(&trial.others);
            tenants.push(Tenant::new(name, *terms, words));
            (tenants.len() - 1) as u32
        });
        events.extend(workload.costs(key).map(|(time, cost)| Event {
            time,
            tenant: number,
            cost,
        }));
    }
    events.sort_by_key(|event| event.time);
    (events, tenants)
}

impl Tenant {
    fn new(name: String, terms: Terms, words: usize) -> Self {
        Self {
            terms,
            share: vec![0; words],
            guarantee: vec![0; words],
            ceiling: vec![0; words],
            note: TenantNote::default(),
            found: TenantFindings {
                tenant: name,
                terms: terms.to_string(),
                requests: 0,
                denied_without: 0,
                denied: 0,
                units: 0,
                admitted_units_without: 0,
                admitted_units: 0,
                fair_units: 0.0,
            },
        }
    }
}

/// Each tenant's units by weighted max-min fairness over the demand in each span.
fn fair_units(events: &[Event], terms: &[Terms], quota: Quota, span: Nanos) -> Vec<f64> {
    let capacity = quota.limit() as f64 * span.get() as f64 / quota.window_nanos() as f64;
    let mut units = vec![0.0; terms.len()];
    for together in events.chunk_by(|one, other| one.time / span.get() == other.time / span.get()) {
        let mut demands: BTreeMap<u32, f64> = BTreeMap::new();
        for event in together {
            *demands.entry(event.tenant).or_default() += event.cost as f64;
        }
        let part = |level: f64, (&tenant, &demand): (&u32, &f64)| {
            let terms = terms[tenant as usize];
            let least = terms.guarantee().unwrap_or(0.0) * capacity;
            let most = terms.ceiling().unwrap_or(1.0) * capacity;
            demand.min((terms.weight() * level).max(least)).min(most)
        };
        let sum = |level: f64| -> f64 { demands.iter().map(|each| part(level, each)).sum() };
        let (mut low, mut high) = (0.0, capacity);
        if sum(high) <= capacity {
            low = high;
        }
        // A double has 52 bits.
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if sum(middle) > capacity {
                high = middle;
            } else {
                low = middle;
            }
        }
        for each in &demands {
            units[*each.0 as usize] += part(low, each);
        }
    }
    units
}

/// Jain's index of what each tenant got of its part: R. Jain, D. Chiu, W. Hawe, "A Quantitative
/// Measure of Fairness and Discrimination" (1984).
fn jain(tenants: &[TenantFindings], got: impl Fn(&TenantFindings) -> u64) -> f64 {
    let due = tenants.iter().filter(|tenant| tenant.fair_units > 0.0);
    let parts: Vec<f64> = due
        .map(|tenant| got(tenant) as f64 / tenant.fair_units)
        .collect();
    let sum: f64 = parts.iter().sum();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    if squares == 0.0 {
        return 1.0;
    }
    sum * sum / (parts.len() as f64 * squares)
}
