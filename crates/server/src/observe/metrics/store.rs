//! The counters of the shared store's client.

use std::fmt;

use tidegate_redis::{Health, Store, StoreError};

use super::{Kind, Sink, one};

/// A family's name, help and label, and its count for each value of the label.
type Labelled<'a> = (&'static str, &'static str, &'static str, &'a [(&'static str, u64)]);

pub(super) fn tell(sink: &mut dyn Sink, store: &Store) -> fmt::Result {
    let stats = store.stats();
    let up = u64::from(store.health() == Health::Up);
    for (name, help, value) in [
        ("shared_store_up", "Whether the shared store is up", up),
        ("shared_store_nodes", "Processes that share the store, at the last count", stats.nodes.into()),
        (
            "shared_store_clock_difference_milliseconds",
            "Difference between the store's clock and this machine's",
            stats.clock_ahead_ms.unwrap_or(0).unsigned_abs(),
        ),
        (
            "shared_store_clock_went_back",
            "Whether the store's clock has shown a later time than now",
            stats.clock_went_back.into(),
        ),
        (
            "shared_store_rules_differ",
            "Limits whose rule differs at another server of the store",
            stats.differing_rules,
        ),
    ] {
        sink.family(name, help, Kind::Gauge, &one(value))?;
    }
    let errors: Vec<_> = StoreError::NAMES.into_iter().zip(stats.errors).collect();
    let families: [Labelled<'_>; 3] = [
        (
            "shared_store_decisions",
            "Decisions on shared limits by their source",
            "by",
            &[
                ("store", stats.decided),
                ("remembered", stats.remembered),
                ("lease", stats.leased),
                ("local", stats.local),
                ("failed-open", stats.failed_open),
                ("failed-closed", stats.failed_closed),
            ],
        ),
        (
            "shared_store_outages",
            "Times that the store went down and came up again",
            "event",
            &[("down", stats.opened), ("back", stats.closed)],
        ),
        ("shared_store_errors", "Errors of requests to the store by kind", "error", &errors),
    ];
    for (name, help, label, values) in families {
        sink.labelled(name, help, Kind::Counter, values.iter().map(|(of, value)| ([(label, *of)], *value)))?;
    }
    for (name, help, value) in [
        ("shared_store_calls", "Calls to the store; many decisions may share one", stats.calls),
        ("shared_store_script_loads", "Scripts sent because the store did not know them", stats.script_loads),
        ("shared_store_connections", "Connections made to the store", stats.connections),
    ] {
        sink.family(name, help, Kind::Counter, &one(value))?;
    }
    Ok(())
}
