//! What the shared store's client has counted.

use std::fmt;

use prometheus_client::{encoding::DescriptorEncoder, metrics::MetricType};
use tidegate_redis::{Health, Store, StoreError};

use super::{counter, gauge};

/// A family's name, help, label, and what it counts for each of the label's values.
type Labelled<'a> = (&'static str, &'static str, &'static str, &'a [(&'static str, u64)]);

pub(super) fn encode(out: &mut DescriptorEncoder<'_>, store: &Store) -> fmt::Result {
    let stats = store.stats();
    let up = u64::from(store.health() == Health::Up);
    for (name, help, value) in [
        ("shared_store_up", "Whether the shared store answers", up),
        ("shared_store_nodes", "Processes that share the store, as last seen", stats.nodes.into()),
    ] {
        gauge(&mut out.encode_descriptor(name, help, None, MetricType::Gauge)?, &[], value)?;
    }
    let errors: Vec<_> = StoreError::NAMES.into_iter().zip(stats.errors).collect();
    let families: [Labelled<'_>; 3] = [
        (
            "shared_store_decisions",
            "Decisions on shared limits by who made them",
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
            "Times that the store was found to be down, and to be back",
            "event",
            &[("down", stats.opened), ("back", stats.closed)],
        ),
        ("shared_store_errors", "Errors on the way to the store by kind", "error", &errors),
    ];
    for (name, help, label, values) in families {
        let mut family = out.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (of, value) in values {
            counter(&mut family, &[(label, *of)], *value)?;
        }
    }
    for (name, help, value) in [
        ("shared_store_calls", "Calls to the store; many decisions may share one", stats.calls),
        ("shared_store_script_loads", "Scripts that the store did not know", stats.script_loads),
        ("shared_store_connections", "Connections made to the store", stats.connections),
    ] {
        counter(&mut out.encode_descriptor(name, help, None, MetricType::Counter)?, &[], value)?;
    }
    Ok(())
}
