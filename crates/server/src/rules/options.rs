//! The options of the algorithms, wherever a file gives them.

use tidegate_config::{Complaints, Fields, Problem};

use super::{AlgorithmName, PolicySpec};

/// Which algorithm an option belongs to.
const OWNERS: [(&str, AlgorithmName); 7] = [
    ("slots", AlgorithmName::SlidingWindow),
    ("mode", AlgorithmName::SlidingWindow),
    ("first_hit", AlgorithmName::FixedWindow),
    ("closed", AlgorithmName::SlidingLog),
    ("burst", AlgorithmName::TokenBucket),
    ("max_wait", AlgorithmName::LeakyBucket),
    ("hold", AlgorithmName::Concurrency),
];

/// Complains about options that belong to another algorithm.
pub(crate) fn refuse_others(
    fields: &Fields<'_>,
    called: &str,
    algorithm: AlgorithmName,
    complaints: &mut Complaints,
) {
    for (option, owner) in OWNERS {
        if let Some(node) = fields.get(option).filter(|_| owner != algorithm) {
            let what =
                format!("{called}: `{option}` is an option of {}, not of {}", owner.name(), algorithm.name());
            complaints.add(Problem::at(node.line, what).mend("remove it, or change the algorithm"));
        }
    }
}

/// Reads the options of `spec`'s algorithm; what is not given stays as it is.
pub(crate) fn read(fields: &Fields<'_>, called: &str, spec: &mut PolicySpec, complaints: &mut Complaints) {
    spec.slots = fields.number("slots", 1, complaints).or(spec.slots);
    let modes = [("strict", false), ("balanced", true)];
    spec.balanced = fields.word("mode", &modes, complaints).unwrap_or(spec.balanced);
    spec.first_hit = fields.flag("first_hit", complaints).unwrap_or(spec.first_hit);
    spec.closed = fields.flag("closed", complaints).unwrap_or(spec.closed);
    spec.burst = fields.number("burst", 0, complaints).or(spec.burst);
    spec.max_wait = fields.duration("max_wait", complaints).or(spec.max_wait);
    spec.hold = fields.duration("hold", complaints).or(spec.hold);
    spec.count_denied = fields.flag("count_denied", complaints).unwrap_or(spec.count_denied);
    if spec.count_denied && spec.algorithm == AlgorithmName::Concurrency {
        let line = fields.get("count_denied").map_or(fields.line(), |node| node.line);
        complaints.add(
            Problem::at(line, format!("{called}: a permit that was denied can never be given back"))
                .mend("remove `count_denied`"),
        );
    }
}
