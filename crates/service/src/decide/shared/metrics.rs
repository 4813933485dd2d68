//! The counters of the shared store's client.

use std::fmt;

use tidegate_redis::{Health, Store, StoreError};

use crate::observe::metrics::{MetricKind, Sink};

pub(crate) fn report(sink: &mut dyn Sink, store: &Store) -> fmt::Result {
    let stats = store.stats();
    sink.gauge(
        "shared_store_up",
        "Whether the shared store is up",
        u64::from(store.health() == Health::Up),
    )?;
    let help = "Processes that share the store, at the last count";
    sink.gauge("shared_store_nodes", help, stats.nodes.into())?;
    let help = "Difference between the store's clock and this machine's";
    let ahead = stats.clock_ahead_ms.unwrap_or(0).unsigned_abs();
    sink.gauge("shared_store_clock_difference_milliseconds", help, ahead)?;
    let help = "Whether the store's clock has shown a later time than now";
    sink.gauge(
        "shared_store_clock_went_back",
        help,
        stats.clock_went_back.into(),
    )?;
    let help = "Keys that the store has evicted since its start; limits among them admit their units again";
    sink.gauge(
        "shared_store_evicted_keys",
        help,
        stats.evicted_keys.unwrap_or(0),
    )?;
    let help = "Whether the store's eviction policy may evict limits in force";
    sink.gauge(
        "shared_store_may_evict",
        help,
        stats.evicts.is_some().into(),
    )?;
    let help = "Commands that some requests need and the store does not run";
    let missing = stats.missing_commands.len() as u64;
    sink.gauge("shared_store_missing_commands", help, missing)?;
    let help = "Limits whose rule differs at another server of the store";
    sink.gauge("shared_store_rules_differ", help, stats.differing_rules)?;
    let decisions = [
        ("store", stats.decided),
        ("remembered", stats.remembered),
        ("lease", stats.leased),
        ("local", stats.local),
        ("failed-open", stats.failed_open),
        ("failed-closed", stats.failed_closed),
    ];
    let decisions = decisions.map(|(by, count)| ([("by", by)], count));
    let help = "Decisions on shared limits by their source";
    sink.labelled(
        "shared_store_decisions",
        help,
        MetricKind::Counter,
        decisions,
    )?;
    let outages = [
        ([("event", "down")], stats.opened),
        ([("event", "back")], stats.closed),
    ];
    let help = "Times that the store went down and came up again";
    sink.labelled("shared_store_outages", help, MetricKind::Counter, outages)?;
    let orders = [
        ([("outcome", "given-again")], stats.orders_given_again),
        ([("outcome", "lost")], stats.orders_lost),
    ];
    let help =
        "Blocks and overrides that a store had lost, by whether this server could give them again";
    sink.labelled(
        "shared_store_lost_orders",
        help,
        MetricKind::Counter,
        orders,
    )?;
    let errors = StoreError::NAMES.into_iter().zip(stats.errors);
    let errors = errors.map(|(error, count)| ([("error", error)], count));
    sink.labelled(
        "shared_store_errors",
        "Errors of requests to the store by kind",
        MetricKind::Counter,
        errors,
    )?;
    sink.count(
        "shared_store_calls",
        "Calls to the store; many decisions may share one",
        stats.calls,
    )?;
    let help = "Scripts sent because the store did not know them";
    sink.count("shared_store_script_loads", help, stats.script_loads)?;
    sink.count(
        "shared_store_connections",
        "Connections made to the store",
        stats.connections,
    )
}
