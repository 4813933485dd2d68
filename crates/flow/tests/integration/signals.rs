//! Blocks and changes of breakers as events and as counters.
#![cfg(all(not(loom), feature = "events", feature = "metrics"))]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use tidegate_core::Nanos;
use tracing::Level;

use tidegate_flow::{
    Gate, ManualTimer,
    rules::{BreakerRule, FlowRule, Rules, Trip},
};

/// Keeps counters by name and labels.
#[derive(Default)]
struct Counters(Mutex<Vec<(String, Arc<AtomicU64>)>>);

impl Counters {
    fn value(&self, key: &str) -> u64 {
        let all = self.0.lock().unwrap();
        all.iter()
            .filter(|(of, _)| of == key)
            .map(|(_, count)| count.load(Ordering::Relaxed))
            .sum()
    }
}

impl Recorder for Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let labels: Vec<_> = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()))
            .collect();
        let count = Arc::new(AtomicU64::new(0));
        self.0.lock().unwrap().push((
            format!("{} {}", key.name(), labels.join(",")),
            Arc::clone(&count),
        ));
        Counter::from_arc(count)
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn a_block_and_a_change_of_a_breaker_are_events_and_are_counted() {
    let timer = ManualTimer::new(Nanos::from_secs(1_000));
    let gate = Gate::builder().timer(timer).build();
    let breaker =
        BreakerRule::new("db", Trip::ErrorCount { count: 0 }, Duration::from_secs(5)).min_calls(1);
    gate.load(Rules::from(vec![FlowRule::new("search", 1)]).and(vec![breaker]))
        .unwrap();
    let ((log, writer), counters) = (std::io::pipe().unwrap(), Counters::default());
    let events = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_ansi(false);
    tracing::subscriber::with_default(events.with_writer(Arc::new(writer)).finish(), || {
        metrics::with_local_recorder(&counters, || {
            let search = gate.resource("search");
            drop(search.enter().unwrap());
            assert!(search.enter().is_err());
            let db = gate.resource("db");
            let mut guard = db.enter().unwrap();
            guard.fail(&std::fmt::Error);
            drop(guard);
            assert!(db.enter().is_err());
        });
    });
    let events = std::io::read_to_string(log).unwrap();
    for part in [
        r#"DEBUG tidegate_flow: blocked resource="search" kind="flow" reason="quota" rule="1/1s" units=1"#,
        r#"INFO tidegate_flow: breaker changed resource="db""#,
        r#"from="closed" to="open""#,
        r#"resource="db" kind="breaker""#,
    ] {
        assert!(events.contains(part), "{part} is not in\n{events}");
    }
    assert_eq!(
        counters.value("tidegate_flow_blocked_total resource=search,kind=flow,reason=quota"),
        1
    );
    assert_eq!(
        counters.value("tidegate_flow_blocked_total resource=db,kind=breaker,reason=breaker-open"),
        1
    );
    assert_eq!(
        counters.value("tidegate_flow_breaker_changes_total resource=db,to=open"),
        1
    );
}
