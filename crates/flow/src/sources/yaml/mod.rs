//! Rules of all kinds in one YAML document.
//!
//! ```
//! let text = r#"
//! flow:
//!   - resource: GET:/orders
//!     limit: 100/1s
//!     behaviour: throttle      # reject (default), warm-up, throttle, warm-up-throttle
//!     max_wait: 500ms          # of a throttle; a warm-up has warm_up: 10s and cold_factor: 3
//!   - pattern: /users/[0-9]+   # a resource by pattern instead of by name
//!     in_flight: 10
//!     origin: mobile           # or each_other_origin: true
//! isolation:
//!   - { resource: db, in_flight: 20 }
//! adaptive:
//!   - { resource: db, algorithm: vegas, max: 200 }   # or aimd, gradient2
//! breakers:
//!   - resource: db
//!     slower_than: 50ms        # with ratio; errors by ratio or by errors: 10
//!     ratio: 0.8
//!     interval: 20s
//!     open: 5s
//! hot_params:
//!   - { resource: search, arg: 0, limit: 5/1s, burst: 3, exceptions: { vip: 100 } }
//! system:
//!   - { qps: 5000, cpu: 0.9 }
//! authority:
//!   - { resource: admin, allow: [office] }
//! "#;
//! let rules = tidegate_flow::sources::yaml::parse(text)?;
//! assert_eq!((rules.flow.len(), rules.breakers[0].to_string().as_str()), (2, "above 0.8 slower than 50ms in 20s"));
//! # Ok::<(), tidegate_flow::sources::SourceError>(())
//! ```
//!
//! `cpu`, `load` and memory thresholds take effect once the gate has samples of the machine, for example from
//! [`Gate::watch_machine`](crate::Gate::watch_machine).
//!
//! The same file may have a section `limits`, which is for `tidegate serve` and is ignored here. Any other unknown
//! field is rejected, so that a misspelt limit does not go unnoticed. All mistakes are reported at once, each with its
//! line.

mod admission;
mod breaker;
mod flow;
mod hot_param;
mod in_flight;
mod item;

use tidegate_config::{Fields, Problem};

use super::SourceError;
use crate::rules::Rules;

/// The sections of a document.
pub const SECTIONS: [&str; 7] =
    ["flow", "isolation", "adaptive", "breakers", "hot_params", "system", "authority"];

/// The section for `tidegate serve`.
const LIMITS: &str = "limits";

/// Parses and validates rules.
///
/// # Errors
/// [`SourceError::Format`] with all mistakes, each with its line, the reason and how to fix it.
pub fn parse(text: &str) -> Result<Rules, SourceError> {
    let known: Vec<&str> = SECTIONS.into_iter().chain([LIMITS]).collect();
    let rules = tidegate_config::read(tidegate_config::parse(text), |root, complaints| {
        root.and_then(|root| Fields::open(root, "the file", &known, complaints)).map(|fields| read(&fields))
    });
    rules.map(Option::unwrap_or_default).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
        SourceError::Format(problems.join(" | "))
    })
}

/// Reads the [`SECTIONS`] of a document that the caller has opened, and validates their rules.
#[must_use]
pub fn read(fields: &Fields<'_>) -> Rules {
    Rules {
        flow: flow::FLOW.rules(fields),
        isolation: in_flight::ISOLATION.rules(fields),
        adaptive: in_flight::ADAPTIVE.rules(fields),
        breakers: breaker::BREAKERS.rules(fields),
        hot_params: hot_param::HOT_PARAMS.rules(fields),
        system: admission::SYSTEM.rules(fields),
        authority: admission::AUTHORITY.rules(fields),
    }
}
