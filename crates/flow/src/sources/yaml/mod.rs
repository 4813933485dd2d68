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
//! `cpu`, `load` and memory thresholds take effect once the gate has samples of the machine, for
//! example from [`Gate::watch_machine`](crate::Gate::watch_machine).
//!
//! `gate: sentinel` chooses the slots of [`Gate::sentinel`](crate::Gate::sentinel): see
//! [`builder`].
//!
//! The same file may have a section `limits`, which is for `tidegate serve` and is ignored here.
//! Any other unknown field is rejected, so that a misspelt limit does not go unnoticed. All
//! mistakes are reported at once, each with its line.

mod admission;
mod breaker;
mod flow;
mod hot_param;
mod in_flight;
mod item;
mod write;

use tidegate_config::{Complaints, Fields, Kind, Node, Problem};

use super::SourceError;
use crate::{Gate, GateBuilder, rules::Rules};
pub use write::write;

/// The sections of a document.
pub const SECTIONS: [&str; 7] = [
    "flow",
    "isolation",
    "adaptive",
    "breakers",
    "hot_params",
    "system",
    "authority",
];

/// The section for `tidegate serve`.
const LIMITS: &str = "limits";

/// The key that chooses the settings of the gate.
pub const GATE: &str = "gate";

/// Parses and validates rules.
///
/// # Errors
/// [`SourceError::Format`] with all mistakes, each with its line, the reason and how to fix it;
/// [`SourceError::Partial`] if there are good rules, too.
pub fn parse(text: &str) -> Result<Rules, SourceError> {
    let known: Vec<&str> = SECTIONS.into_iter().chain([LIMITS, GATE]).collect();
    let mut good = Rules::default();
    let rules = tidegate_config::read(tidegate_config::parse(text), |root, complaints| {
        let fields = root.and_then(|root| Fields::open(root, "the file", &known, complaints));
        good = fields.map(|fields| read(&fields)).unwrap_or_default();
    });
    rules.map_err(|problems| format(&problems).beside(good.clone().into()))?;
    Ok(good)
}

/// Returns the builder that the document's key `gate` asks for: `gate: sentinel` is
/// [`Gate::sentinel`]. Without the key it is [`Gate::builder`]. A gate keeps its slots while it
/// lives, so a change of the key takes effect at the next start.
///
/// # Errors
/// [`SourceError::Format`] if the text is no document, or the key has another value.
pub fn builder(text: &str) -> Result<GateBuilder, SourceError> {
    let preset = tidegate_config::read(tidegate_config::parse(text), |root, complaints| {
        let Some(Kind::Mapping(entries)) = root.map(|root| &root.kind) else {
            return false;
        };
        let mut entries = entries.iter().filter(|(key, _)| key.text() == Some(GATE));
        entries
            .next()
            .is_some_and(|(_, value)| preset(value, complaints))
    });
    let is_sentinels = preset.map_err(|problems| format(&problems))?;
    Ok(if is_sentinels {
        Gate::sentinel()
    } else {
        Gate::builder()
    })
}

/// Whether the value of `gate` is the preset of Sentinel. Any other value is a mistake.
fn preset(value: &Node, complaints: &Complaints) -> bool {
    let is_known = value.text() == Some("sentinel");
    if !is_known {
        let what = format!("`gate` is {}", value.describe());
        complaints.at(value.line, what, "write gate: sentinel, or leave it out");
    }
    is_known
}

fn format(problems: &[Problem]) -> SourceError {
    let problems: Vec<String> = problems.iter().map(Problem::to_string).collect();
    SourceError::Format(problems.join(" | "))
}

/// Reads the [`SECTIONS`] of a document that the caller has opened, and validates their rules.
#[must_use]
pub fn read(fields: &Fields<'_>) -> Rules {
    if let Some(value) = fields.get(GATE) {
        preset(value, fields.complaints());
    }
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
