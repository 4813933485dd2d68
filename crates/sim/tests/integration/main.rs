//! The promises of the simulator.

mod fleet;
mod formats;
mod lines;
mod oracle;
mod producers;
mod proof;
mod read;
mod report;
mod times;
mod workload;
