//! The promises of the algorithms, of leases and of the statistics.

mod ahead;
mod calendar;
mod calendar_bounds;
mod changes;
mod charges;
mod debts;
mod fair;
mod fair_permits;
mod fair_promises;
mod fleet;
mod keys;
mod lease_any_input;
mod lease_calls;
mod lease_model;
mod lease_promises;
mod lease_threads;
mod lease_use;
mod lumps;
mod market;
mod oversize;
mod random;
mod registry;
mod stats_concurrency;
mod stats_vectors;
mod worked_examples;
