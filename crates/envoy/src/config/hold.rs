//! The options of a rule whose questions take estimates that are corrected later.

use std::time::Duration;

use tidegate_config::Fields;
use tidegate_core::parse_units;

/// The key of the entry that has the id of a request, by which its report finds its hold.
pub const HOLD_ID: &str = "hold_id";
/// The key of the entry that only reports have.
pub const HOLD_REPORT: &str = "hold_report";

/// The longest time for which a hold may be kept.
const LONGEST: Duration = Duration::from_hours(24);

/// A rule's holds: what a question takes stays taken until a report corrects it, or it expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// How long a hold waits for its report.
    pub ttl: Duration,
    /// How much a question takes; `None` for its hits.
    pub estimate: Option<Estimate>,
}

/// How much a question takes without hits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Estimate {
    /// Always as much.
    Fixed(u64),
    /// So many percent of the last reports were of at most as much.
    Percentile {
        /// From 1 to 99.
        percent: u8,
        /// The key of the entry that has one estimate for each of its values; `None` for one for
        /// each of the limit's keys.
        by: Option<String>,
    },
}

impl Estimate {
    /// A number of units, or a percentile such as `p95`.
    fn from_text(text: &str) -> Option<Self> {
        let Some(percent) = text.strip_prefix('p') else {
            return parse_units(text).map(Self::Fixed);
        };
        let percent = percent.parse().ok()?;
        (1..=99)
            .contains(&percent)
            .then_some(Self::Percentile { percent, by: None })
    }
}

/// Reads the options of a rule's `rate_limit`.
pub(super) fn read(fields: &Fields<'_>, called: &str) -> Option<Hold> {
    let complaints = fields.complaints();
    let refuse = |name: &str, what: &str, mend: &str| {
        if fields.get(name).is_some() {
            complaints.at(fields.line_of(name), format!("{called}: {what}"), mend);
        }
    };
    if fields.get("hold").is_none() {
        for name in ["estimate", "estimate_by"] {
            let what = format!("`{name}` is for rules with `hold`");
            refuse(name, &what, "add `hold`, as in `hold: 5m`, or remove it");
        }
        return None;
    }
    refuse(
        "charge",
        "`charge` has no meaning next to `hold`: an estimate is taken if it fits, and a report always",
        "remove `charge`",
    );
    let ttl = fields.duration("hold")?;
    if ttl < Duration::from_secs(1) || ttl > LONGEST {
        refuse(
            "hold",
            "a hold lives for a second to a day",
            "write how long the slowest requests take, as in `hold: 5m`",
        );
        return None;
    }
    let wants = "a number of units, or a percentile from p1 to p99, such as p95";
    let mut estimate = fields.read("estimate", wants, Estimate::from_text);
    let entry = fields.read("estimate_by", "the key of an entry", |text| {
        (!text.is_empty()).then(|| text.to_owned())
    });
    if let Some(Estimate::Percentile { by, .. }) = &mut estimate {
        *by = entry;
    } else if fields.get("estimate").is_none() || estimate.is_some() {
        refuse(
            "estimate_by",
            "`estimate_by` is for a percentile",
            "add one, as in `estimate: p95`, or remove it",
        );
    }
    Some(Hold { ttl, estimate })
}
