//! Stripes beside an oracle that remembers every call.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    /// So many calls of so many units, inbound or with an origin.
    Enter { times: u32, units: u32, inbound: bool, origin: bool },
    /// A call of priority.
    Borrow { units: u32 },
    /// The call with this number (modulo the number of calls) ends, and so many after it.
    Leave { at: usize, times: usize },
    /// New limits: units a second, units in flight, inbound units a second.
    Load(u32, u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<(usize, i64, Step)>> {
    let units = prop_oneof![6 => 1..4_u32, 1 => 1..400_u32];
    let enter = (1..120_u32, units, any::<bool>(), prop::bool::weighted(0.1))
        .prop_map(|(times, units, inbound, origin)| Step::Enter { times, units, inbound, origin });
    let limits = (64..2_000_u32, 64..1_000_u32, 64..2_000_u32).prop_map(|(a, b, c)| Step::Load(a, b, c));
    let step = prop_oneof![
        12 => enter,
        1 => (1..100_u32).prop_map(|units| Step::Borrow { units }),
        8 => (any::<usize>(), 1..150_usize).prop_map(|(at, times)| Step::Leave { at, times }),
        1 => limits,
    ];
    let later = prop_oneof![6 => 0..120_i64, 1 => 0..1_500_i64, 1 => -300..0_i64];
    prop::collection::vec((0..4_usize, later, step), 1..150)
}

/// An admitted call: its units, the slot in which it passed, and the slot among inbound calls, if it was one.
type Call = (u64, u64, Option<u64>);

struct Oracle {
    limits: (u64, u64, u64),
    calls: Vec<Call>,
    /// The newest slot of the resource and of the gate.
    newest: (u64, u64),
    /// Borrowed units may count in a later slot than their own. After that the oracle only knows what must not be admitted.
    has_lent: bool,
}

impl Oracle {
    fn used(&self, newest: u64, inbound: bool) -> u64 {
        let slot_of = |&(_, slot, inside): &Call| if inbound { inside } else { Some(slot) };
        let is_in = |call: &&Call| slot_of(call).is_some_and(|slot| slot <= newest && slot + 10 > newest);
        self.calls.iter().filter(is_in).map(|(units, ..)| units).sum()
    }
}

fn check(stripes: usize, steps: Vec<(usize, i64, Step)>) -> Result<(), TestCaseError> {
    let (gate, timer, r) = striped(stripes, limits(1_000, 500, 1_500));
    let mut oracle =
        Oracle { limits: (1_000, 500, 1_500), calls: Vec::new(), newest: (0, 0), has_lent: false };
    let mut inside: Vec<(OwnedGuard, u64, u64, bool)> = Vec::new();
    let mut ms = START;
    let mut striped = 0;
    for (thread, later, step) in steps {
        set_thread_number(thread);
        ms = ms.saturating_add_signed(later);
        timer.set(Nanos::from_millis(ms));
        let slot = ms / 100;
        match step {
            Step::Enter { times, units, inbound, origin } => {
                for _ in 0..times {
                    oracle.newest.0 = oracle.newest.0.max(slot);
                    if inbound {
                        oracle.newest.1 = oracle.newest.1.max(slot);
                    }
                    let entry = r.entry().count(units);
                    let entry = if inbound { entry.inbound() } else { entry };
                    let entry = if origin { entry.origin("o") } else { entry };
                    let (own, all) =
                        (oracle.used(oracle.newest.0, false), oracle.used(oracle.newest.1, true));
                    let in_flight: u64 = inside.iter().map(|(_, units, ..)| units).sum();
                    let (n, (most, most_in_flight, most_inbound)) = (u64::from(units), oracle.limits);
                    let fits = own + n <= most
                        && in_flight + n <= most_in_flight
                        && (!inbound || all + n <= most_inbound);
                    match entry.enter_owned() {
                        Ok(guard) => {
                            prop_assert!(
                                fits,
                                "{own} passed, {all} inbound, {in_flight} in flight, and {n} more"
                            );
                            striped += u32::from(r.node().stripes().unwrap().in_flight() > 0);
                            oracle.calls.push((n, oracle.newest.0, inbound.then_some(oracle.newest.1)));
                            inside.push((guard, n, oracle.newest.0, inbound));
                        }
                        Err(blocked) => {
                            prop_assert!(
                                !fits || oracle.has_lent,
                                "{blocked:?}, but {own} passed, {all} inbound, {in_flight} in flight",
                            );
                        }
                    }
                }
            }
            Step::Borrow { units } => {
                oracle.newest.0 = oracle.newest.0.max(slot);
                if let Ok(guard) = r.entry().count(units).prioritized().enter_owned() {
                    let starts =
                        (Nanos::from_millis(ms).saturating_add(guard.delay().into())).get() / 100_000_000;
                    let starts = starts.max(oracle.newest.0);
                    oracle.has_lent |= starts > oracle.newest.0;
                    let n = u64::from(units);
                    oracle.calls.push((n, starts, None));
                    for newest in starts..starts + 10 {
                        prop_assert!(oracle.used(newest, false) <= oracle.limits.0, "over in slot {newest}");
                    }
                    inside.push((guard, n, starts, false));
                }
            }
            Step::Leave { at, times } => {
                for _ in 0..times.min(inside.len()) {
                    let at = at % inside.len();
                    // A call that leaves before its slot begins would pass early.
                    if inside[at].2 <= slot {
                        let (guard, .., inbound) = inside.swap_remove(at);
                        drop(guard);
                        oracle.newest.0 = oracle.newest.0.max(slot);
                        if inbound {
                            oracle.newest.1 = oracle.newest.1.max(slot);
                        }
                    }
                }
            }
            Step::Load(passed, in_flight, inbound) => {
                gate.load(limits(passed, in_flight, inbound)).unwrap();
                oracle.limits = (passed.into(), in_flight.into(), inbound.into());
            }
        }
        let in_flight: u64 = inside.iter().map(|(_, units, ..)| units).sum();
        prop_assert_eq!(r.node().in_flight(), in_flight);
        let newest = oracle.newest.0.max(slot);
        if !oracle.has_lent {
            prop_assert_eq!(r.node().sum(gate.now(), Event::Pass), oracle.used(newest, false));
            prop_assert_eq!(r.node().counts(gate.now()).pass, oracle.used(newest, false));
            // Reading turns the window of a striped node.
            oracle.newest.0 = newest;
        }
    }
    drop(inside);
    prop_assert_eq!(r.node().in_flight() + gate.inbound().in_flight(), 0);
    STRIPED.with(|count| count.set(count.get() + striped));
    Ok(())
}

std::thread_local!(static STRIPED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) });

#[test]
fn striped_nodes_admit_what_an_oracle_admits() {
    let config = ProptestConfig { failure_persistence: None, cases: 60, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(&(prop::sample::select(vec![2, 4]), steps()), |(stripes, steps)| check(stripes, steps))
        .unwrap();
    // Otherwise it would test nothing.
    assert!(STRIPED.with(std::cell::Cell::get) > 1_000);
}
