//! Shares of tenants in the store and in memory, on the same requests. Both use floating point, in
//! other units, so a decision could differ at the moment when a share suffices; that has not
//! happened in 100,000 steps.

use std::{array, sync::Arc};

use tidegate_core::{Decision, Nanos, Policy, fair::Terms};
use tidegate_limiter::{FairTenants, KeyedLimiter, TotalStep};
use tidegate_redis::{
    Plan,
    internals::call::{self, Found, ShareChange},
};

use super::Bench;

const TENANTS: usize = 6;
/// With `TIDEGATE_LONG=1` five times as many.
const STEPS: usize = 4_000;
/// A limit that is decided next to the shared one, and denies some of the costs.
const BESIDE: &str = "fixed-window 4/1s";

const POLICIES: [&str; 5] = [
    "token-bucket:burst=200 200/1s",
    "fixed-window 200/1s",
    "sliding-window:slots=10 200/1s",
    "sliding-counter 200/1s",
    "sliding-log 200/1s",
];

fn terms() -> [Terms; TENANTS] {
    array::from_fn(|at| {
        let terms = Terms::new();
        match at {
            0 => terms.with_weight(5).unwrap(),
            1 => terms.with_guarantee(0.2).unwrap(),
            2 => terms.with_ceiling(0.1).unwrap(),
            3 => terms
                .with_weight(3)
                .and_then(|terms| terms.with_guarantee(0.1)?.with_ceiling(0.6))
                .unwrap(),
            _ => terms,
        }
    })
}

fn name(at: usize) -> Vec<u8> {
    format!("tenant-{at}").into_bytes()
}

/// Both sides.
struct Pair {
    bench: Bench,
    plan: Plan,
    beside: Plan,
    tenants: FairTenants,
    total: KeyedLimiter<()>,
    era: u64,
}

fn in_memory(policy: Policy) -> (FairTenants, KeyedLimiter<()>) {
    let names: Vec<_> = (0..TENANTS).map(name).collect();
    let named = names.iter().map(|name| &name[..]).zip(terms());
    let builder = KeyedLimiter::builder(policy).max_keys(8).clock(());
    (
        FairTenants::new(&policy, 1 << 12, Terms::new(), named).unwrap(),
        builder.build().unwrap(),
    )
}

impl Pair {
    fn new(policy: Policy, seed: u64) -> Self {
        let (tenants, total) = in_memory(policy);
        Self {
            bench: Bench::new(seed),
            plan: Plan::new(policy).unwrap().with_shares().unwrap(),
            beside: Plan::new(BESIDE.parse::<Policy>().unwrap()).unwrap(),
            tenants,
            total,
            era: 0,
        }
    }

    fn now(&self) -> Nanos {
        Nanos::from_micros(self.bench.now)
    }

    fn in_memory(&self, at: usize, cost: u64) -> Decision {
        let (total, now) = (&self.total, self.now());
        self.tenants
            .at(now)
            .acquire(name(at), cost, |step| match step {
                TotalStep::Take => total.at(now).acquire(b"", cost),
                TotalStep::Peek => total.at(now).peek(b"", cost),
            })
    }

    fn of(&self, at: usize) -> Plan {
        self.plan.of_tenant(&name(at), terms()[at])
    }

    fn total_key(&self) -> Vec<u8> {
        format!("{}:total", self.era).into_bytes()
    }

    fn share_keys(&self, at: usize) -> [Vec<u8>; 2] {
        ["common", &format!("tenant-{at}")].map(|name| format!("{}:{name}", self.era).into_bytes())
    }

    /// Fresh limits and shares on both sides.
    fn start_again(&mut self) {
        self.era += 1;
        let (tenants, total) = in_memory(*self.plan.policy());
        (self.tenants, self.total) = (tenants, total);
    }

    fn in_store(&mut self, at: usize, cost: u64, takes: bool) -> Decision {
        let plan = self.of(at);
        let keys = [vec![self.total_key()], self.share_keys(at).into()].concat();
        let script = Arc::clone(&self.bench.scripts.joint);
        let arguments = call::joint_arguments([(&plan, cost)].into_iter(), takes);
        let (now, parts) = self.bench.call(&script, &keys, &arguments);
        let found = call::found([&plan].into_iter(), parts).unwrap();
        plan.decision_on(&found[0], now, (cost, takes)).unwrap().0
    }

    /// Changes what a tenant has used, on both sides; the store's total by the script of its kind.
    fn change(&mut self, at: usize, change: ShareChange) {
        let (plan, now) = (self.of(at), self.now());
        let scripts = &self.bench.scripts;
        let of_share = Arc::clone(&scripts.share_change);
        let of_total = match change {
            ShareChange::Charge(cost) => {
                self.tenants.at(now).charge(name(at), cost);
                let _ = self.total.at(now).charge(b"", cost);
                let arguments = call::charge_arguments(&plan, cost);
                scripts
                    .charge(plan.kind())
                    .map(|script| (Arc::clone(script), arguments))
            }
            ShareChange::Refund(cost) => {
                self.tenants.at(now).refund(name(at), cost);
                self.total.at(now).refund(b"", cost);
                let arguments = call::refund_arguments(&plan, cost);
                Some((Arc::clone(scripts.refund(plan.kind())), arguments))
            }
            ShareChange::Reset => {
                self.tenants.at(now).reset(name(at));
                None
            }
        };
        if let Some((script, arguments)) = of_total {
            let _ = self.bench.reply(&script, &[self.total_key()], &arguments);
        }
        let arguments = call::share_change_arguments(&plan, change).unwrap();
        let _ = self
            .bench
            .reply(&of_share, &self.share_keys(at), &arguments);
    }
}

/// Random requests, of which some are charged or refunded later. Each kind of load lasts a while:
/// all tenants at three times the limit, one of them alone, some of them, and too little.
#[test]
fn tenants_get_the_same_in_the_store_as_in_memory() {
    let steps = if std::env::var_os("TIDEGATE_LONG").is_some() {
        5 * STEPS
    } else {
        STEPS
    };
    for (seed, text) in (540..).zip(POLICIES) {
        let mut pair = Pair::new(text.parse().unwrap(), seed);
        let (mut units, mut differ, mut admitted) = ([0_u64; TENANTS], 0, 0);
        for step in 0..steps {
            let (span, tenants): (u64, &[usize]) = match step / 700 % 5 {
                0 => (1_600, &[0, 1, 2, 3, 4, 5]),
                1 => (1_600, &[0, 4]),
                2 => (1_600, &[5]),
                3 => (30_000, &[0, 1, 2, 3, 4, 5]),
                _ => (1_600, &[1, 2, 3]),
            };
            let now = pair.bench.now + pair.bench.random.below(2 * span);
            pair.bench.set(now);
            let at = tenants[pair.bench.random.below(tenants.len() as u64) as usize];
            let cost = 1 + pair.bench.random.below(4) % 3;
            let looked = pair.in_store(at, cost, false);
            let (memory, store) = (pair.in_memory(at, cost), pair.in_store(at, cost, true));
            assert_eq!(
                looked.is_allowed(),
                store.is_allowed(),
                "{text}, step {step}"
            );
            assert_eq!(
                looked.retry_after(),
                store.retry_after(),
                "{text}, step {step}"
            );
            let both = [memory, store].map(|decision| decision.is_allowed());
            admitted += usize::from(both[1]);
            units[at] += cost * u64::from(both[1]);
            // From here on they would serve the tenants in another order.
            if both[0] != both[1] {
                differ += 1;
                pair.start_again();
            }
            if let ([false, false], Some(one), Some(other)) =
                (both, memory.retry_after(), store.retry_after())
            {
                let (one, other) = (one.as_secs_f64(), other.as_secs_f64());
                assert!(
                    (one - other).abs() <= 1e-4 + one / 1e4,
                    "{text}, step {step}: {one} and {other}"
                );
            }
            match pair.bench.random.below(40) {
                0 if both[1] => pair.change(at, ShareChange::Charge(cost)),
                1 if both[1] => pair.change(at, ShareChange::Refund(cost)),
                2 if step % 50 == 0 => pair.change(at, ShareChange::Reset),
                _ => {}
            }
        }
        println!("{text}: {differ} of {steps} differ, {admitted} admitted, {units:?}");
        assert!(
            admitted > steps / 4 && admitted < steps * 3 / 4,
            "{admitted}"
        );
        assert_eq!(differ, 0, "{text}");
    }
}

/// One step of a shared limit and another one: both admit, or nothing is taken. The limit next to
/// it denies much of what the share admits.
#[test]
fn a_shared_limit_and_another_one_take_both_or_nothing() {
    let mut pair = Pair::new(POLICIES[0].parse().unwrap(), 545);
    let (mut admitted, mut denied_by) = (0, [0; 2]);
    let mut other_used = 0_u64;
    let mut window = 0;
    for step in 0..4_000 {
        let now = pair.bench.now + pair.bench.random.below(60_000);
        pair.bench.set(now);
        if now / 1_000_000 != window {
            (window, other_used) = (now / 1_000_000, 0);
        }
        let at = pair.bench.random.below(TENANTS as u64) as usize;
        let (cost, other) = (1 + pair.bench.random.below(20), pair.bench.random.below(3));
        let plan = pair.of(at);
        let keys = [
            vec![pair.total_key(), b"beside".to_vec()],
            pair.share_keys(at).into(),
        ]
        .concat();
        let parts = [(&plan, cost), (&pair.beside, other)].into_iter();
        let arguments = call::joint_arguments(parts, true);
        let script = Arc::clone(&pair.bench.scripts.joint);
        let before = pair.in_store(at, 0, false).remaining();
        let (now, parts) = pair.bench.call(&script, &keys, &arguments);
        let found = call::found([&plan, &pair.beside].into_iter(), parts).unwrap();
        let decide = |plan: &Plan, found: &Found, cost| {
            plan.decision_on(found, now, (cost, true)).unwrap().0
        };
        let both = [
            decide(&plan, &found[0], cost).is_allowed(),
            decide(&pair.beside, &found[1], other).is_allowed(),
        ];
        assert_eq!(both[1], other_used + other <= 4, "step {step}");
        let is_admitted = both == [true, true];
        let after = pair.in_store(at, 0, false).remaining();
        let taken = if is_admitted { cost } else { 0 };
        assert_eq!(before - after, taken, "step {step}");
        other_used += if is_admitted { other } else { 0 };
        admitted += usize::from(is_admitted);
        for (count, is_allowed) in denied_by.iter_mut().zip(both) {
            *count += usize::from(!is_allowed);
        }
    }
    assert!(
        admitted > 200 && denied_by.iter().all(|&denied| denied > 200),
        "{admitted}, {denied_by:?}"
    );
}
