//! One limit and ten tenants: who is admitted how much by one limit for all, by a limit for each
//! tenant, and by shares.

use std::{collections::HashMap, fmt::Write as _};

use tidegate_core::{Algorithm as _, Nanos, Policy, Quota, algorithm::TokenBucket, fair::Terms};
use tidegate_sim::{Progress, SharesFindings, SharesTrial, Workload, replay_shares};

pub const FILE: &str = "shares.svg";

/// Units a second for all tenants together.
const LIMIT: u64 = 200;
/// A full bucket at the start is a little more.
const BURST: u64 = 50;
/// What each tenant asks for in a second: two and a half times the limit together.
const DEMAND: [u64; 10] = [300, 60, 40, 40, 20, 20, 10, 10, 5, 5];
/// The traffic's length in seconds.
const SPAN: u64 = 20;
const SECOND: u64 = 1_000_000_000;

/// One request in each of equal stretches, at a random moment.
struct Traffic;

impl Workload for Traffic {
    fn keys(&self) -> u32 {
        DEMAND.len() as u32
    }

    fn requests(&self) -> u64 {
        DEMAND.iter().sum::<u64>() * SPAN
    }

    fn span(&self) -> (u64, u64) {
        (0, SPAN * SECOND)
    }

    fn has_dates(&self) -> bool {
        false
    }

    fn label(&self, key: u32) -> String {
        format!("tenant {}", key + 1)
    }

    fn times(&self, key: u32) -> impl Iterator<Item = u64> {
        let demand = DEMAND[key as usize];
        let stretch = SECOND / demand;
        (0..demand * SPAN).map(move |at| at * stretch + random(u64::from(key) << 32 | at) % stretch)
    }
}

/// A number that looks random (`SplitMix64`).
const fn random(seed: u64) -> u64 {
    let z = seed.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The admitted units of each tenant in a second, three times.
#[derive(Debug)]
pub struct Shares {
    pub found: SharesFindings,
    pub columns: [Vec<f64>; 3],
}

impl Shares {
    pub fn replayed() -> Self {
        let quota = Quota::per_second(LIMIT);
        let bucket = TokenBucket::new(quota).burst(BURST);
        let policy = bucket.expect("the burst suits the quota").into();
        let trial = SharesTrial {
            quota,
            algorithm: "token-bucket".into(),
            policy,
            others: Terms::new(),
            named: HashMap::new(),
        };
        let found = replay_shares(
            &Traffic,
            |key| Traffic.label(key),
            &trial,
            &Progress::default(),
        )
        .expect("the policy can be shared");
        let tenant = |at: u32| {
            let mut tenants = found.tenants.iter();
            let name = Traffic.label(at);
            tenants
                .find(|tenant| tenant.tenant == name)
                .expect("it asked")
        };
        let each = |read: &dyn Fn(u32) -> u64| {
            let all = 0..Traffic.keys();
            all.map(|at| read(at) as f64 / SPAN as f64).collect()
        };
        let columns = [
            each(&|at| tenant(at).admitted_units_without),
            each(&alone),
            each(&|at| tenant(at).admitted_units),
        ];
        Self { found, columns }
    }

    /// The units of all tenants in a second.
    pub fn total(&self, column: usize) -> f64 {
        self.columns[column].iter().sum()
    }

    /// The part of the limit that is used, in percent.
    fn used(&self, column: usize) -> f64 {
        (100.0 * self.total(column) / LIMIT as f64).min(100.0)
    }

    /// The picture, for light and dark.
    pub fn svg(&self) -> String {
        let captions = [
            format!(
                "one limit for all: Jain’s index {:.2}",
                self.found.jain_without
            ),
            format!("a limit for each: {:.0} % used", self.used(1)),
            format!(
                "shares: Jain’s index {:.2}, {:.0} % used",
                self.found.jain,
                self.used(2)
            ),
        ];
        let label = captions.join("; ");
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" role=\"img\" aria-label=\"{label}\">\n<style>{STYLE}</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"8\"/>\n"
        );
        // Writing to a `String` does not fail.
        let _ = writeln!(
            svg,
            "<text class=\"title\" x=\"20\" y=\"26\">{LIMIT} units a second, {} asked: admitted to each tenant, in units a second</text>",
            DEMAND.iter().sum::<u64>()
        );
        for (at, demand) in DEMAND.iter().enumerate() {
            let y = TOP + ROW * at as f64;
            let _ = writeln!(
                svg,
                "<text x=\"20\" y=\"{:.0}\">{} asks for {demand}</text>",
                y + 12.0,
                Traffic.label(at as u32)
            );
        }
        for (column, (admitted, caption)) in self.columns.iter().zip(&captions).enumerate() {
            let left = LEFT + COLUMN * column as f64;
            let _ = writeln!(
                svg,
                "<text class=\"dim\" x=\"{left:.0}\" y=\"52\">{caption}</text>"
            );
            for (at, (units, demand)) in admitted.iter().zip(DEMAND).enumerate() {
                let y = TOP + ROW * at as f64;
                let (asked, got) = (demand as f64 * SCALE, units * SCALE);
                let _ = writeln!(
                    svg,
                    "<rect class=\"asked\" x=\"{left:.0}\" y=\"{y:.0}\" width=\"{asked:.1}\" height=\"14\"/>\
                     <rect class=\"got\" x=\"{left:.0}\" y=\"{y:.0}\" width=\"{got:.1}\" height=\"14\"/>\
                     <text class=\"dim\" x=\"{:.0}\" y=\"{:.0}\">{units:.0}</text>",
                    left + asked + 5.0,
                    y + 12.0
                );
            }
        }
        svg + "</svg>\n"
    }
}

/// The admitted units of a tenant that has a tenth of the limit for itself.
fn alone(key: u32) -> u64 {
    let policy = Policy::token_bucket(Quota::per_second(LIMIT / DEMAND.len() as u64));
    let mut state = vec![0; policy.words()];
    let admits = |time: &u64| policy.decide(&mut state, Nanos::new(*time), 1).is_allowed();
    Traffic.times(key).filter(admits).count() as u64
}

const WIDTH: f64 = 840.0;
const HEIGHT: f64 = 276.0;
const LEFT: f64 = 160.0;
const COLUMN: f64 = 226.0;
const TOP: f64 = 62.0;
const ROW: f64 = 20.0;
/// Pixels for a unit a second.
const SCALE: f64 = 0.52;

const STYLE: &str = "
.page{fill:#fff;stroke:#e3e6eb}text{fill:#1b2130;font:12px system-ui,sans-serif}.title{font-size:15px;font-weight:600}
.dim{fill:#596273}.asked{fill:#e3e6eb}.got{fill:#2f6db3}
@media (prefers-color-scheme:dark){.page{fill:#181c23;stroke:#2b313b}text{fill:#e7eaf0}.dim{fill:#a3adbd}
.asked{fill:#2b313b}.got{fill:#7db0ea}}";
