//! Every interleaving of a few threads on one lease. Run with `RUSTFLAGS="--cfg loom"`.
#![cfg(loom)]

use loom::{
    sync::{Arc, Mutex},
    thread,
};
use tidegate_core::lease::{Grant, Lease, Request, Terms};
use tidegate_core::{Algorithm, Nanos, Policy};

/// All interleavings with up to two preemptions: a lease has too many atomics for all there are,
/// and what goes wrong between threads goes wrong with two.
fn every_interleaving(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(test);
}

/// A node's clock, and the authority's, which stand still but for what a test says.
const NOW: Nanos = Nanos::from_secs(9);

fn terms(limit: &str) -> Terms {
    Terms::leased(Policy::fixed_window(limit.parse().unwrap()), Terms::SLACK)
}

/// A lease that holds an allotment of `units`.
fn with_allotment(terms: Terms, shared: &mut [u64], units: u32) -> Lease {
    let lease = Lease::new(terms);
    let request = Request {
        cost: 0,
        ahead: units,
        back: None,
        spent: 0,
        sent: NOW,
    };
    let grant = terms.serve(shared, NOW, &request);
    assert_eq!(grant.units, units);
    let _ = lease.granted(request, &grant, NOW);
    lease
}

#[test]
fn no_unit_is_spent_twice() {
    every_interleaving(|| {
        let terms = terms("8/10s");
        let lease = Arc::new(with_allotment(terms, &mut [0; 2], 2));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let lease = lease.clone();
                thread::spawn(move || lease.ask(1, NOW).decision().is_some())
            })
            .collect();
        let mut spent = u64::from(lease.ask(1, NOW).decision().is_some());
        for other in others {
            spent += u64::from(other.join().unwrap());
        }
        assert_eq!(spent, 2);
    });
}

/// A thread spends while another ends the allotment, gives back what is left and opens the next:
/// each unit is spent or given back, and none after its time.
#[test]
fn a_unit_is_spent_or_given_back() {
    every_interleaving(|| {
        let terms = terms("16/10s");
        let shared = Arc::new(Mutex::new(vec![0; 2]));
        let lease = Arc::new(with_allotment(terms, &mut shared.lock().unwrap(), 4));
        let spender = {
            let lease = lease.clone();
            thread::spawn(move || {
                (0..2)
                    .filter(|_| lease.ask(1, NOW).decision().is_some())
                    .count()
            })
        };
        let served =
            |request: Request| -> Grant { terms.serve(&mut shared.lock().unwrap(), NOW, &request) };
        for request in lease.close(NOW) {
            let grant = served(request);
            let _ = lease.granted(request, &grant, NOW);
        }
        let spent = spender.join().unwrap();
        let used = terms.policy().used(&shared.lock().unwrap(), NOW);
        assert_eq!(used as usize, spent);
    });
}

/// A thread takes and puts back while another spends: in the end each unit is there, or was spent.
#[test]
fn returned_units_are_available_once() {
    every_interleaving(|| {
        let terms = terms("8/10s");
        let lease = Arc::new(with_allotment(terms, &mut [0; 2], 2));
        let undecided = {
            let lease = lease.clone();
            thread::spawn(move || {
                if let Ok(taken) = lease.take(2, NOW) {
                    lease.put_back(taken);
                }
            })
        };
        let mut spent = u64::from(lease.take(1, NOW).is_ok());
        undecided.join().unwrap();
        while lease.take(1, NOW).is_ok() {
            spent += 1;
        }
        assert_eq!(spent, 2);
    });
}

/// A thread takes and puts back while another ends the allotment: what it puts back is given back
/// or stays charged, and is never spent.
#[test]
fn units_returned_too_late_stay_charged() {
    every_interleaving(|| {
        let terms = terms("16/10s");
        let shared = Arc::new(Mutex::new(vec![0; 2]));
        let lease = Arc::new(with_allotment(terms, &mut shared.lock().unwrap(), 4));
        let undecided = {
            let lease = lease.clone();
            thread::spawn(move || {
                if let Ok(taken) = lease.take(3, NOW) {
                    lease.put_back(taken);
                }
            })
        };
        let served =
            |request: Request| -> Grant { terms.serve(&mut shared.lock().unwrap(), NOW, &request) };
        for request in lease.close(NOW) {
            let grant = served(request);
            let _ = lease.granted(request, &grant, NOW);
        }
        undecided.join().unwrap();
        assert!(
            lease.take(1, NOW).is_err(),
            "an allotment that has ended holds nothing"
        );
        let used = terms.policy().used(&shared.lock().unwrap(), NOW);
        assert!(used == 0 || used == 3, "{used}");
    });
}

/// An allotment whose time is over and the next one: a thread that is late never spends from one by
/// the other's time.
#[test]
fn an_allotment_does_not_use_the_expiry_of_the_next() {
    every_interleaving(|| {
        let terms = terms("16/10s");
        let lease = Arc::new(with_allotment(terms, &mut [0; 2], 2));
        let later = NOW.saturating_add(Terms::SLACK);
        // The first allotment is over at `later`, the second holds one unit that is not.
        let spender = {
            let lease = lease.clone();
            thread::spawn(move || {
                (0..2)
                    .filter(|_| lease.ask(1, later).decision().is_some())
                    .count()
            })
        };
        let request = Request {
            cost: 0,
            ahead: 1,
            back: None,
            spent: 0,
            sent: later,
        };
        let grant = terms.serve(&mut [0; 2], later, &request);
        let _ = lease.granted(request, &grant, later);
        assert!(
            spender.join().unwrap() <= 1,
            "one unit may be spent at that time, whoever asks"
        );
    });
}

/// A denial is read whole, or not at all.
#[test]
fn a_denial_never_mixes_two_denials() {
    every_interleaving(|| {
        let terms = terms("1/10s");
        let mut shared = vec![0; 2];
        let lease = Arc::new(Lease::new(terms));
        let mut deny = |cost: u64| {
            let request = Request {
                cost,
                ahead: 0,
                back: None,
                spent: 0,
                sent: NOW,
            };
            let grant = terms.serve(&mut shared, NOW, &request);
            let _ = lease.granted(request, &grant, NOW);
        };
        deny(1); // admitted
        deny(1);
        let asker = {
            let lease = lease.clone();
            thread::spawn(move || {
                lease
                    .ask(1, NOW)
                    .decision()
                    .and_then(|denied| denied.retry_after())
            })
        };
        deny(1);
        let wait = asker.join().unwrap();
        assert!(
            wait.is_none_or(|wait| wait == std::time::Duration::from_secs(1)),
            "{wait:?}"
        );
    });
}
