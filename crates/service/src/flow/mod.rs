//! Reports of programs that link `tidegate::flow`, and the rules that operators push to them.
//!
//! ```text
//! program ─ POST /v1/flow/report ─► Reports ─► /flow, GET /v1/flow
//!    ▲                                             │
//!    └───── the answer: rules of its application ◄─ Pushed ◄─ POST /v1/flow/rules
//! ```
//!
//! Everything is bounded: applications, instances, resources, and the length of each name. An
//! instance that has not reported for ten seconds is gone; after five minutes it is forgotten.

mod hours;
mod limits;
mod pushed;
mod report;
mod summary;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::Nanos;

pub use hours::Hours;
pub use limits::{KnownLimits, Limits};
pub use pushed::PushError;
pub use pushed::Pushed;
pub use report::{MINUTE, OwnRules, ProgramReport, ResourceReport, Rules};
pub use summary::{AppSummary, InstanceSummary, ResourceSummary};

use report::Instance;

use crate::shares::has_room;

/// The places for instances, which the applications share: one has at most half of them.
pub const MAX_INSTANCES: usize = 2_000;
/// The places for resources of all instances, which the applications share. Each takes at most
/// about 8 KiB.
pub const MAX_RESOURCES: usize = 20_000;
/// Bytes of the name of an application or an instance.
pub const MAX_NAME: usize = 64;
/// An instance that has not reported for so long is gone.
const GONE: Duration = Duration::from_secs(10);
/// And after so long it is forgotten.
const FORGOTTEN: Duration = Duration::from_mins(5);

/// The instances by application and name.
type Instances = BTreeMap<(String, String), Instance>;

/// The recent reports.
#[derive(Debug, Default)]
pub struct Reports {
    instances: Mutex<Instances>,
}

/// The reports and the rules.
#[derive(Debug, Default)]
pub struct Flow {
    pub reports: Reports,
    pub pushed: Pushed,
    pub limits: KnownLimits,
    pub hours: Hours,
}

impl Flow {
    /// With a directory, the pushed rules and the hours of programs outlive the server.
    pub fn open(directory: Option<&Path>, now: Nanos) -> Result<Self, PushError> {
        let flow = Self {
            pushed: Pushed::open(directory)?,
            hours: Hours::of(directory),
            ..Self::default()
        };
        flow.hours.read(&flow.reports, now);
        Ok(flow)
    }

    /// Every application that reports or has rules, or the one of this name.
    pub fn summary(&self, app: Option<&str>, now: Nanos) -> Vec<AppSummary> {
        let mut apps = self.reports.summary(app, now);
        for name in self.pushed.apps() {
            if app.is_none_or(|app| app == name) && apps.iter().all(|known| known.app != name) {
                apps.push(AppSummary::new(&name));
            }
        }
        apps
    }
}

/// Why a report is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    #[error("`{0}` must have 1 to {MAX_NAME} bytes, and no control characters")]
    Name(&'static str),
    #[error(
        "`{app}` has {own} instances, and {taken} of all {MAX_INSTANCES} places for instances are taken: an application may have \
         as many as are free; an instance that stops reporting gives way after 10 seconds"
    )]
    TooMany {
        /// The application.
        app: String,
        /// Its instances.
        own: usize,
        /// The instances of all applications.
        taken: usize,
    },
}

/// Whether an application or an instance may be called this.
pub fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(char::is_control)
}

impl Reports {
    /// Takes a report. Returns whether the program's own rules are unknown.
    pub fn take(&self, mut report: ProgramReport, now: Nanos) -> Result<bool, ReportError> {
        for (what, name) in [("app", &report.app), ("instance", &report.instance)] {
            if !is_name(name) {
                return Err(ReportError::Name(what));
            }
        }
        let mut instances = self.current(now);
        let name = (report.app.clone(), report.instance.clone());
        let is_known = instances.contains_key(&name);
        let of_app = |instances: &Instances| {
            let ours = instances.range((name.0.clone(), String::new())..);
            ours.take_while(|((app, _), _)| *app == name.0).count()
        };
        if !is_known && !has_room(of_app(&instances), instances.len(), MAX_INSTANCES) {
            let silent = instances
                .iter()
                .filter(|(_, instance)| now.saturating_since(instance.seen) >= GONE.into())
                .min_by_key(|(_, instance)| instance.seen);
            if let Some(silent) = silent.map(|(name, _)| name.clone()) {
                instances.remove(&silent);
            }
            let (own, taken) = (of_app(&instances), instances.len());
            if !has_room(own, taken, MAX_INSTANCES) {
                return Err(ReportError::TooMany {
                    app: name.0,
                    own,
                    taken,
                });
            }
        }
        let others = instances.iter().filter(|(other, _)| **other != name);
        let (mut own, mut taken) = (0, 0);
        for ((app, _), instance) in others {
            taken += instance.resources.len();
            if *app == name.0 {
                own += instance.resources.len();
            }
        }
        // The number of resources up to which `has_room` says yes.
        let room = MAX_RESOURCES.saturating_sub(taken + own).div_ceil(2);
        // Instances of an application mostly have the same rules, which are then kept once.
        if let Some(own) = &mut report.own {
            let of_app = instances.range((name.0.clone(), String::new())..);
            let mut same = of_app.take_while(|((app, _), _)| *app == name.0);
            if let Some(known) =
                same.find_map(|(_, other)| other.own.as_ref().filter(|known| *known == own))
            {
                own.text = Arc::clone(&known.text);
            }
        }
        let instance = instances.entry(name).or_default();
        instance.take(report, room, now);
        Ok(instance.own.is_none())
    }

    /// Every application, or the one of this name, with what its instances did.
    pub fn summary(&self, app: Option<&str>, now: Nanos) -> Vec<AppSummary> {
        let instances = self.current(now);
        let mut apps: Vec<AppSummary> = Vec::new();
        // The instances of an application stand side by side.
        for ((name, instance), reported) in instances
            .iter()
            .filter(|((name, _), _)| app.is_none_or(|app| app == name))
        {
            if apps.last().is_none_or(|last| last.app != *name) {
                apps.push(AppSummary::new(name));
            }
            if let Some(last) = apps.last_mut() {
                last.add(instance, reported, now);
            }
        }
        apps.iter_mut().for_each(AppSummary::finish);
        apps
    }

    /// The instances, without those that are forgotten by now.
    fn current(&self, now: Nanos) -> MutexGuard<'_, Instances> {
        let mut instances = self.instances.lock();
        instances.retain(|_, instance| now.saturating_since(instance.seen) < FORGOTTEN.into());
        instances
    }
}
