//! The counters of the HTTP listeners.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_service::observe::{
    latency::{self, Latency},
    metrics::{Labels, MetricKind, MetricSource, Sink, read},
};

use super::table::{ROUTES, Route};

/// The requests of both HTTP listeners. Relaxed throughout: a scrape needs no exact moment.
#[derive(Debug)]
pub(crate) struct HttpStats {
    /// By the number of a route's endpoint.
    routes: Box<[RouteStats]>,
    /// The requests by route and status that `routes` does not count.
    rare: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

/// The requests of one route. Two threads that answer at once change three words here.
#[derive(Debug, Default)]
struct RouteStats {
    latency: Latency,
    /// Requests with the status 200, and with 429.
    usual: [AtomicU64; 2],
}

const USUAL: [u16; 2] = [200, 429];

impl Default for HttpStats {
    fn default() -> Self {
        Self {
            routes: ROUTES.iter().map(|_| RouteStats::default()).collect(),
            rare: Mutex::default(),
        }
    }
}

impl HttpStats {
    /// Counts a request to one of the server's own paths.
    pub fn answered(&self, route: &Route, status: u16, took: Nanos) {
        let stats = &self.routes[route.endpoint as usize];
        stats.latency.observe(took, 1);
        match USUAL.iter().position(|usual| *usual == status) {
            Some(at) => {
                stats.usual[at].fetch_add(1, Ordering::Relaxed);
            }
            None => self.add(route.path, status),
        }
    }

    /// Counts a request to a path that does not exist, or not for its method.
    pub fn refused(&self, status: u16) {
        self.add("other", status);
    }

    fn add(&self, path: &'static str, status: u16) {
        *self.rare.lock().entry((path, status)).or_default() += 1;
    }

    /// The latency of decisions, by bucket.
    pub fn answers(&self) -> [u64; latency::BUCKETS] {
        let mut sums = [0; latency::BUCKETS];
        for route in ROUTES.iter().filter(|route| route.makes_decisions()) {
            let counts = self.routes[route.endpoint as usize].latency.counts();
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        sums
    }
}

impl MetricSource for HttpStats {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        let rare = self.rare.lock().clone();
        let usual = ROUTES.iter().flat_map(|route| {
            let counts = &self.routes[route.endpoint as usize].usual;
            USUAL
                .iter()
                .zip(counts)
                .map(|(status, count)| ((route.path, *status), read(count)))
        });
        let counts: Vec<_> = usual
            .filter(|(_, count)| *count > 0)
            .chain(rare)
            .map(|((path, status), count)| (path, status.to_string(), count))
            .collect();
        let values = counts
            .iter()
            .map(|(path, status, count)| ([("route", *path), ("status", status.as_str())], *count));
        sink.labelled(
            "http_requests",
            "HTTP requests by route and status",
            MetricKind::Counter,
            values,
        )?;

        let labels: Vec<_> = ROUTES.iter().map(|route| [("route", route.path)]).collect();
        let read = |route: &Route| self.routes[route.endpoint as usize].latency.read();
        let reads: Vec<_> = labels
            .iter()
            .zip(ROUTES)
            .map(|(labels, route)| (&labels[..] as Labels<'_>, read(route)))
            .filter(|(_, read)| read.count > 0)
            .collect();
        sink.histogram(
            "http_request_seconds",
            "Seconds from the head of an HTTP request to its response",
            &reads,
        )
    }
}
