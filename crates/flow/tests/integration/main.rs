//! The promises of a gate and its rules.

mod adaptive;
mod breakers;
mod decisions;
mod flow_rules;
mod follow;
mod guards;
mod machine;
mod metric_log;
mod prioritized;
mod reasons;
mod relations;
mod rules_load;
mod signals;
mod sources;
mod stress;
mod swap;
mod system_rules;
mod throttles;
mod written;
