//! States of rules that block, at any time and with any words that are accepted.

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{Algorithm, AlgorithmSpec, DenialReason, Nanos, Penalty, Policy, StoredState};

fn policies(after: u32) -> Vec<Policy> {
    let spans = [1, 3_000, 4_233_600_000].map(Duration::from_millis);
    let penalty = Penalty::new(&spans).unwrap();
    let penalty = penalty.after(after, Duration::from_secs(2)).unwrap();
    let rates = AlgorithmSpec::all().filter(AlgorithmSpec::limits_rate);
    rates
        .map(|spec| spec.policy("3/1s".parse().unwrap()).unwrap())
        .flat_map(|policy| [policy, policy.count_denied()])
        .map(|policy| policy.block_for(penalty))
        .collect()
}

proptest! {
    #[test]
    fn no_words_and_no_time_overflow(
        after in 1_u32..4,
        words in proptest::array::uniform3(any::<u64>()),
        steps in proptest::collection::vec((0..=Nanos::MAX.get(), 0_u64..6, any::<bool>()), 1..12),
    ) {
        for policy in policies(after) {
            let mut state = vec![0; policy.words()];
            let own = policy.units_of(&state).len();
            let mut other = state.clone();
            state[own..].copy_from_slice(&words);
            if !policy.accepts(&state) {
                state[own..].fill(0);
            }
            for &(time, cost, late) in &steps {
                let now = if late { Nanos::MAX } else { Nanos::new(time) };
                let denied = policy.decide(&mut state, now, cost).is_denied();
                if denied && cost > 0 && after == 1 && now < Nanos::MAX {
                    prop_assert!(policy.blocked_until(&state) > now, "{} at {}", policy, now);
                }
                let _ = policy.decide_up_to(&mut state, now, cost);
                policy.charge(&mut state, now, cost);
                prop_assert!(policy.accepts(&state), "{}: {:?}", policy, state);
                let is_blocked = policy.blocked_until(&state) > now;
                if let Some(debt) = policy.debt(&state, now) {
                    let mut owed = vec![0; policy.words()];
                    policy.owe(&mut owed, debt);
                    prop_assert!(!is_blocked || policy.peek(&owed, now, 1).is_denied(), "{}", policy);
                    policy.join(&mut other, &owed, now);
                    prop_assert!(policy.accepts(&other), "{}: {:?}", policy, other);
                }
            }
        }
    }
}

#[test]
fn a_rule_that_ceases_to_block_ends_its_blocks() {
    for policy in policies(1) {
        let mut state = vec![0; policy.words()];
        let now = Nanos::from_secs(100);
        assert!(policy.decide(&mut state, now, 4).is_denied());
        assert!(policy.blocked_until(&state) > now);
        let plain = AlgorithmSpec::named(policy.name()).unwrap();
        let plain = plain.policy("3/1s".parse().unwrap()).unwrap();
        let mut moved = vec![0; plain.words()];
        plain.transfer(&mut moved, &policy, &state, now);
        assert_eq!(plain.blocked_until(&moved), Nanos::ZERO);
        assert_ne!(
            plain.peek(&moved, now, 1).reason(),
            Some(DenialReason::Blocked)
        );
    }
}
