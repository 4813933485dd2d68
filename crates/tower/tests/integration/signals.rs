//! Refusals as events and as counters.
#![cfg(all(feature = "events", feature = "metrics"))]

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use futures::executor::block_on;
use http::{Request, Response};
use metrics::{
    Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tidegate_limiter::{KeyedLimiter, Policy};
use tower::{Layer, ServiceExt, service_fn};
use tracing::Level;

use tidegate_tower::{RateLimitLayer, key::Header};

type Lines = Arc<Mutex<Vec<String>>>;

/// Writes down each increment of a counter.
struct Counters(Lines);

struct Count(String, Lines);

impl CounterFn for Count {
    fn increment(&self, value: u64) {
        self.1.lock().unwrap().push(format!("{} {value}", self.0));
    }
    fn absolute(&self, _: u64) {}
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
        let name = format!("{}{{{}}}", key.name(), labels.join(","));
        Counter::from_arc(Arc::new(Count(name, Arc::clone(&self.0))))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn refusals_are_events_and_are_counted_and_admissions_are_neither() {
    let limiter = |quota: &str| {
        KeyedLimiter::new(Policy::sliding_log(quota.parse().unwrap()).unwrap()).unwrap()
    };
    let key = || Header::named("x-api-key");
    let layer = RateLimitLayer::builder(limiter("2/1h"), key())
        .name("client")
        .and(limiter("1/1h"), key())
        .name("trial")
        .shadow()
        .build();
    let service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let ask = |key: Option<&str>| {
        let request = key.into_iter().fold(Request::builder(), |request, key| {
            request.header("x-api-key", key)
        });
        block_on(service.clone().oneshot(request.body(()).unwrap()))
            .unwrap()
            .status()
            .as_u16()
    };
    let ((log, writer), counts) = (std::io::pipe().unwrap(), Lines::default());
    let events = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_ansi(false);
    let events = events.with_writer(Arc::new(writer)).finish();
    let statuses = tracing::subscriber::with_default(events, || {
        metrics::with_local_recorder(&Counters(Arc::clone(&counts)), || {
            [
                ask(Some("ada")),
                ask(Some("ada")),
                ask(Some("ada")),
                ask(None),
            ]
        })
    });
    assert_eq!(statuses, [200, 200, 429, 500]);
    assert_eq!(
        *counts.lock().unwrap(),
        [
            "tidegate_tower_dry_run_refused_total{limit=trial,reason=limited} 1",
            "tidegate_tower_refused_total{limit=client,reason=limited} 1",
            "tidegate_tower_refused_total{limit=client,reason=no-key} 1",
        ]
    );
    let log = std::io::read_to_string(log).unwrap();
    let events: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" tidegate_tower: "))
        .collect();
    assert_eq!(events.len(), 2, "{events:?}");
    assert!(
        events[0].contains(r#"refused limit="client" reason="limited""#),
        "{events:?}"
    );
    assert!(
        events[1].contains(r#"limit="client" reason="no-key""#),
        "{events:?}"
    );
}
