//! A limit that tenants share, held as an owner would hold it, and its oracle.

use tidegate_core::fair::{FairShares, FairState, TenantNote, TenantStates, Terms};
use tidegate_core::{Algorithm, Decision, Nanos, Policy};

pub struct Market {
    total: Policy,
    used: Vec<u64>,
    pub shares: FairShares,
    pub state: FairState,
    tenants: Vec<Tenant>,
    /// When units were admitted.
    pub admitted: Vec<(u64, u64)>,
}

struct Tenant {
    terms: Terms,
    /// Share, guarantee, ceiling.
    words: [Vec<u64>; 3],
    note: TenantNote,
    name: u32,
}

impl Tenant {
    fn states(&mut self) -> TenantStates<'_> {
        let [share, guarantee, ceiling] = &mut self.words;
        TenantStates {
            share,
            guarantee: Some(guarantee),
            ceiling: Some(ceiling),
            note: self.note.of(self.name),
        }
    }
}

impl Market {
    pub fn new(total: Policy, terms: &[Terms]) -> Self {
        let shares = FairShares::new(&total).unwrap();
        let fresh = || vec![0; shares.words()];
        let tenants = terms.iter().enumerate().map(|(i, &terms)| Tenant {
            terms,
            words: [fresh(), fresh(), fresh()],
            note: TenantNote::default(),
            name: i as u32 + 1,
        });
        Self {
            used: vec![0; total.words()],
            total,
            shares,
            state: FairState::default(),
            tenants: tenants.collect(),
            admitted: Vec::new(),
        }
    }

    pub fn ask(&mut self, tenant: usize, cost: u64, at: u64) -> Decision {
        let now = Nanos::new(at);
        let tenant = &mut self.tenants[tenant];
        let terms = tenant.terms;
        let mut states = tenant.states();
        let (shares, state) = (&self.shares, &mut self.state);
        match shares.ask(state, &terms, &mut states, cost, now) {
            Err(refusal) => shares.refused(&self.total.peek(&self.used, now, cost), refusal),
            Ok(grant) => {
                let total = self.total.peek(&self.used, now, cost);
                if let Err(refusal) = shares.check_left(state, &grant, &total) {
                    shares.total_refused(state, &terms, &mut states, grant);
                    return shares.refused(&total, refusal);
                }
                let decision = self.total.decide(&mut self.used, now, cost);
                if decision.is_allowed() {
                    shares.take(state, &terms, &mut states, grant);
                    self.admitted.push((at, cost));
                } else {
                    shares.total_refused(state, &terms, &mut states, grant);
                }
                decision
            }
        }
    }

    /// Returns permits.
    #[allow(dead_code, reason = "not every test has permits")]
    pub fn release(&mut self, tenant: usize, cost: u64, at: u64) {
        let now = Nanos::new(at);
        self.total.refund(&mut self.used, now, cost);
        let tenant = &mut self.tenants[tenant];
        let terms = tenant.terms;
        let mut states = tenant.states();
        self.shares
            .refund(&mut self.state, &terms, &mut states, cost, now);
    }

    pub fn charge(&mut self, tenant: usize, cost: u64, at: u64) {
        let now = Nanos::new(at);
        self.total.charge(&mut self.used, now, cost);
        let tenant = &mut self.tenants[tenant];
        let terms = tenant.terms;
        let mut states = tenant.states();
        self.shares
            .charge(&mut self.state, &terms, &mut states, cost, now);
    }
}

/// What weighted max-min gives: `min(demand, ceiling, max(guarantee, weight × rate))`, with the
/// highest rate at which the sum is within the limit.
pub fn water_fill(limit: f64, demand: &[f64], terms: &[Terms]) -> Vec<f64> {
    let at = |rate: f64| -> Vec<f64> {
        let part = |(demand, terms): (&f64, &Terms)| {
            let fair = (terms.weight() * rate).max(terms.guarantee().unwrap_or(0.0) * limit);
            demand.min(fair).min(terms.ceiling().unwrap_or(1.0) * limit)
        };
        demand.iter().zip(terms).map(part).collect()
    };
    let (mut low, mut high) = (0.0, limit);
    if at(high).iter().sum::<f64>() <= limit {
        return at(high);
    }
    for _ in 0..60 {
        let rate = f64::midpoint(low, high);
        if at(rate).iter().sum::<f64>() > limit {
            high = rate;
        } else {
            low = rate;
        }
    }
    at(low)
}
