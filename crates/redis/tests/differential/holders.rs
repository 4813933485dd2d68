//! Permits and their holders: a release or renewal affects only its own holder, however often it is
//! repeated.

use super::*;

/// The model of a key. Like the script, it removes expired holders only when it writes, because the
/// clock may go back before that.
#[derive(Clone, Default)]
struct Model {
    /// The newest moment that was given to a holder; 0 if the key does not exist.
    last: u64,
    /// For each holder: its name, the start of its hold, and its permits.
    holders: Vec<(u64, u64, u64)>,
}

impl Model {
    fn expire(&mut self, now: u64, hold: u64) {
        let seen = now.max(self.last);
        self.holders.retain(|(_, time, _)| seen - time < hold);
    }

    fn used(&self, now: u64, hold: u64) -> u64 {
        let seen = now.max(self.last);
        self.holders
            .iter()
            .filter(|holder| seen - holder.1 < hold)
            .map(|holder| holder.2)
            .sum()
    }

    fn moment(&mut self, now: u64) -> u64 {
        self.last = now.max(self.last + 1);
        self.last
    }

    /// Whether the script should find the holder, with its effect on the model.
    fn settle(&mut self, now: u64, hold: u64, name: u64, renew: bool) -> bool {
        let before = self.clone();
        self.expire(now, hold);
        let Some(at) = self.holders.iter().position(|holder| holder.0 == name) else {
            *self = before;
            return false;
        };
        let (name, _, permits) = self.holders.remove(at);
        if renew {
            let time = self.moment(now);
            self.holders.push((name, time, permits));
        } else if self.holders.is_empty() && self.last < now {
            self.last = 0;
        }
        true
    }
}

struct Held {
    bench: Bench,
    plan: Plan,
    hold: u64,
}

impl Held {
    fn new(limit: u32, hold: Duration, seed: u64) -> Self {
        let policy = Concurrency::new(limit)
            .hold(hold)
            .expect("the hold is short");
        let plan = Plan::new(policy).expect("the policy can be shared");
        Self {
            bench: Bench::new(seed),
            plan,
            hold: hold.as_micros() as u64,
        }
    }

    /// Takes permits for several holders in one call. Returns the names of the admitted ones.
    fn take(&mut self, costs: &[u64]) -> Vec<Option<u64>> {
        let batch = Batch {
            keys: vec![b"k".to_vec()],
            costs: costs.to_vec(),
            counts: vec![costs.len() as u32],
        };
        let script = self.bench.scripts.batch(self.plan.kind()).clone();
        let (now, found) = self
            .bench
            .call(&script, &batch.keys, &batch.arguments(&self.plan));
        let [Ok(value)] = &found[..] else {
            panic!("{found:?}")
        };
        let mut names = Vec::new();
        let told = self
            .plan
            .decisions(value.as_deref(), now, costs, |_, decision, name| {
                names.push(decision.is_allowed().then_some(name.get() / 1_000));
            });
        told.expect("the answer is a log's");
        names
    }

    fn settle(&mut self, name: u64, renew: bool) -> bool {
        let arguments = call::settle_arguments(
            Nanos::from_micros(self.hold),
            renew,
            Nanos::from_micros(name),
        );
        let script = self.bench.scripts.settle.clone();
        let (_, found) = self.bench.call(&script, &[b"k".to_vec()], &arguments);
        let [Ok(Some(told))] = &found[..] else {
            panic!("{found:?}")
        };
        told == b"yes"
    }

    fn free(&mut self) -> u64 {
        let script = self.bench.scripts.batch(self.plan.kind()).clone();
        let batch = Batch {
            keys: vec![b"k".to_vec()],
            costs: vec![0],
            counts: vec![1],
        };
        let (now, found) = self
            .bench
            .call(&script, &batch.keys, &batch.arguments(&self.plan));
        let [Ok(value)] = &found[..] else {
            panic!("{found:?}")
        };
        let mut free = 0;
        let _ = self
            .plan
            .decisions(value.as_deref(), now, &[0], |_, decision, _| {
                free = decision.remaining();
            });
        free
    }
}

#[test]
fn a_repeated_release_or_renewal_touches_no_other_holders_permits() {
    for (limit, hold, seed) in [(3, 1_000, 31), (40, 20, 32), (2_000, 60_000, 33)] {
        let mut held = Held::new(limit, Duration::from_micros(hold), seed);
        let mut model = Model::default();
        let mut names = Vec::new();
        let (mut kept, mut gone, mut taken) = (0, 0, 0);
        for turn in 0..6_000 {
            // The clock also goes back, so names can be ahead of it.
            held.bench.move_time(hold);
            held.bench.now = held.bench.now.clamp(START / 2, 2 * START);
            let now = held.bench.now;
            if names.is_empty() || held.bench.random.below(2) == 0 {
                let costs: Vec<u64> = (0..=held.bench.random.below(3))
                    .map(|_| held.bench.cost(limit.into()).max(1))
                    .collect();
                let told = held.take(&costs);
                for (name, cost) in told.into_iter().zip(costs) {
                    let Some(name) = name else {
                        assert!(model.used(now, hold) + cost > limit.into(), "turn {turn}");
                        continue;
                    };
                    model.expire(now, hold);
                    assert!(model.used(now, hold) + cost <= limit.into(), "turn {turn}");
                    assert_eq!(name, model.moment(now), "turn {turn}");
                    model.holders.push((name, name, cost));
                    names.push(name);
                    taken += 1;
                }
            } else {
                // Some of the latest names are still held. The others are repeated or late.
                let at =
                    names.len() - 1 - held.bench.random.below(names.len().min(6) as u64) as usize;
                let renew = held.bench.random.below(2) == 0;
                let yes = held.settle(names[at], renew);
                assert_eq!(
                    yes,
                    model.settle(now, hold, names[at], renew),
                    "turn {turn}"
                );
                *if yes { &mut kept } else { &mut gone } += 1;
            }
            assert_eq!(
                held.free(),
                u64::from(limit) - model.used(now, hold),
                "turn {turn} of {limit}"
            );
        }
        assert!(
            taken > 300 && kept > 300 && gone > 300,
            "{limit}: {taken}, {kept}, {gone}"
        );
    }
}

#[test]
fn a_holder_is_found_among_the_maximum_number_of_permits() {
    let mut held = Held::new(4_096, Duration::from_hours(1), 34);
    let olds: Vec<_> = (0..4).flat_map(|_| held.take(&[1; 512])).collect();
    let [Some(big)] = held.take(&[2_048])[..] else {
        panic!("there is room")
    };
    assert_eq!(held.free(), 0);
    assert!(held.settle(big, true) && held.settle(big, true));
    let middle = olds[1_000].expect("there was room");
    assert!(held.settle(middle, false) && !held.settle(middle, false));
    assert_eq!(held.free(), 1);
    assert!(held.settle(big, false) && !held.settle(big, false));
    assert_eq!(held.free(), 2_049);
}
