//! Permits with a longest hold: which permit returns, and what a change of the hold does to it.

use std::{sync::Arc, time::Duration};

use tidegate_limiter::{
    FairLimiter, KeyedLimiter, Limiter, ManualTimer, Nanos, OwnedPermit, Policy,
    algorithm::Concurrency,
};

const SECOND: Duration = Duration::from_secs(1);

/// Two permits with a hold of some seconds, or without one.
fn held(seconds: Option<u32>) -> Policy {
    permits(2, seconds)
}

fn permits(limit: u32, seconds: Option<u32>) -> Policy {
    let permits = Concurrency::new(limit);
    seconds.map_or(permits.into(), |seconds| {
        permits.hold(seconds * SECOND).unwrap().into()
    })
}

/// How a change of a policy reaches a permit's state.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Unkeyed,
    /// The state moves with the next request.
    Keyed,
    Swept,
    /// The key gets its own policy.
    Override,
    /// The key's own policy ends.
    End,
}

const WAYS: [Way; 5] = [
    Way::Unkeyed,
    Way::Keyed,
    Way::Swept,
    Way::Override,
    Way::End,
];

enum Of {
    One(Arc<Limiter<ManualTimer>>),
    Key(Arc<KeyedLimiter<ManualTimer>>),
}

struct Permits {
    way: Way,
    timer: ManualTimer,
    of: Of,
}

impl Permits {
    fn new(way: Way, first: Policy) -> Self {
        let timer = ManualTimer::new(Nanos::from_secs(1_000));
        let keyed = |general: Policy| {
            let limiter = KeyedLimiter::builder(general).clock(timer.clone());
            Arc::new(limiter.build().unwrap())
        };
        let of = match way {
            Way::Unkeyed => Of::One(Arc::new(Limiter::with_clock(first, timer.clone()))),
            // The general policy is the next one, and comes with the end of the override.
            Way::End => {
                let limiter = keyed(permits(100, None));
                limiter.set_override("a", first).unwrap();
                Of::Key(limiter)
            }
            _ => Of::Key(keyed(first)),
        };
        Self { way, timer, of }
    }

    fn take(&self) -> Option<OwnedPermit<ManualTimer>> {
        match &self.of {
            Of::One(limiter) => OwnedPermit::of(limiter, 1).ok(),
            Of::Key(limiter) => OwnedPermit::of_key(limiter, "a", 1).ok(),
        }
    }

    /// How many are free.
    fn free(&self) -> u64 {
        match &self.of {
            Of::One(limiter) => limiter.peek(0).remaining(),
            Of::Key(limiter) => limiter.peek("a", 0).remaining(),
        }
    }

    fn pass(&self, seconds: u32) {
        self.timer.advance(seconds * SECOND);
    }

    fn change(&self, to: Policy) {
        match (&self.of, self.way) {
            (Of::One(limiter), _) => limiter.set_policy(to),
            (Of::Key(limiter), Way::Override) => limiter.set_override("a", to).unwrap(),
            (Of::Key(limiter), Way::End) => {
                limiter.set_policy(to).unwrap().finish();
                // It may be a second change.
                limiter.remove_override("a");
            }
            (Of::Key(limiter), Way::Swept) => limiter.set_policy(to).unwrap().finish(),
            (Of::Key(limiter), _) => drop(limiter.set_policy(to).unwrap()),
        }
    }
}

#[test]
fn a_permit_that_nobody_returns_ends_at_its_time_however_many_others_return() {
    for way in WAYS {
        let permits = Permits::new(way, held(Some(10)));
        permits.take().unwrap().keep();
        for _ in 0..9 {
            permits.pass(1);
            let other = permits.take().expect("one is free");
            assert!(permits.take().is_none(), "{way:?}");
            drop(other);
        }
        permits.pass(1);
        assert_eq!(permits.free(), 2, "{way:?}: it was taken ten seconds ago");
    }
}

#[test]
fn a_return_frees_the_permit_itself_and_leaves_those_of_others() {
    for way in WAYS {
        let permits = Permits::new(way, permits(5, Some(10)));
        let mut taken: Vec<_> = (0..5)
            .map(|_| {
                permits.pass(1);
                permits.take()
            })
            .collect();
        // Taken at 1, 2, 3, 4, 5; those of 2 and 5 return.
        taken[1] = None;
        taken[4] = None;
        assert_eq!(permits.free(), 2, "{way:?}");
        for (pass, free) in [(5, 2), (1, 3), (1, 3), (1, 4), (1, 5)] {
            permits.pass(pass);
            assert_eq!(permits.free(), free, "{way:?}");
        }
    }
}

#[test]
fn a_longer_hold_does_not_count_ended_permits_again() {
    for way in WAYS {
        for longer in [Some(60), None] {
            for again in [false, true] {
                let permits = Permits::new(way, held(Some(10)));
                let (late, ended) = (permits.take(), permits.take());
                permits.pass(10);
                permits.change(held(longer));
                if again {
                    permits.change(held(longer.map(|seconds| seconds + 1)));
                    permits.change(held(longer));
                }
                assert_eq!(permits.free(), 2, "{way:?}: both have ended");
                let others = (permits.take(), permits.take());
                assert!(others.0.is_some() && others.1.is_some());
                drop((late, ended));
                assert!(permits.take().is_none(), "{way:?}, {longer:?}: two work");
                drop(others);
                assert_eq!(permits.free(), 2, "{way:?}");
            }
        }
    }
}

#[test]
fn a_longer_hold_counts_for_permits_in_use() {
    for way in WAYS {
        for longer in [Some(60), None] {
            let permits = Permits::new(way, held(Some(10)));
            let first = permits.take();
            permits.pass(9);
            permits.change(held(longer));
            permits.pass(5);
            // The state may move only now.
            let second = permits.take();
            assert!(second.is_some() && permits.take().is_none(), "{way:?}");
            drop(first);
            assert_eq!(permits.free(), 1, "{way:?}");
            drop(second);
        }
    }
}

#[test]
fn states_that_move_over_several_changes_at_once_keep_what_is_in_use() {
    for way in WAYS {
        let permits = Permits::new(way, held(Some(10)));
        let (ended, first) = (permits.take(), {
            permits.pass(5);
            permits.take()
        });
        permits.pass(5);
        permits.change(held(Some(60)));
        permits.pass(20);
        permits.change(held(Some(100)));
        permits.pass(60);
        // After 85 seconds; 60 would have been over.
        let other = permits.take();
        assert!(other.is_some() && permits.take().is_none(), "{way:?}");
        drop(ended);
        assert!(permits.take().is_none(), "{way:?}");
        drop(first);
        assert_eq!(permits.free(), 1, "{way:?}");
    }
}

#[test]
fn a_hold_that_is_new_begins_with_the_change() {
    for way in WAYS {
        let permits = Permits::new(way, held(None));
        let (first, second) = (permits.take(), permits.take());
        permits.pass(100);
        permits.change(held(Some(10)));
        permits.pass(9);
        assert!(permits.take().is_none(), "{way:?}");
        drop(first);
        assert_eq!(permits.free(), 1, "{way:?}: it was in use and returns");
        permits.pass(1);
        assert_eq!(permits.free(), 2, "{way:?}: the other's hold has passed");
        let others = (permits.take(), permits.take());
        drop(second);
        assert!(permits.take().is_none(), "{way:?}: it was free already");
        drop(others);
    }
}

#[test]
fn a_hold_that_comes_back_leaves_the_permits_of_others() {
    for way in WAYS {
        let permits = Permits::new(way, held(Some(10)));
        let late = permits.take();
        permits.pass(10);
        permits.change(held(None));
        let other = permits.take();
        permits.pass(1);
        permits.change(held(Some(10)));
        drop(late);
        assert_eq!(permits.free(), 1, "{way:?}");
        drop(other);
        assert_eq!(permits.free(), 2, "{way:?}");
    }
}

#[test]
fn a_tenants_permit_that_nobody_returns_ends_for_its_share_too() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let limiter = FairLimiter::builder(permits(4, Some(10)))
        .ceiling(0.5)
        .unwrap()
        .clock(timer.clone())
        .build()
        .unwrap();
    std::mem::forget(limiter.permit("a", 1).unwrap());
    for _ in 0..9 {
        timer.advance(SECOND);
        drop(limiter.permit("a", 1).unwrap());
    }
    timer.advance(SECOND);
    let both = (limiter.permit("a", 1), limiter.permit("a", 1));
    assert!(both.0.is_ok() && both.1.is_ok(), "the first has ended");
}
