//! Programs with Alibaba Sentinel, which send heartbeats instead of reports: the server asks each
//! of them for its metrics, and pushes the kept rules of its application.
//!
//! ```text
//! program ─ heartbeat ─► Programs ─► one task for each: metrics each second ─► Reports
//!    ▲                                     │
//!    └──── getRules, setRules ─────────────┴─◄ Pushed
//! ```
//!
//! A heartbeat names the address that is then called. Only the client's own address counts, or one
//! of the networks that the operator lists. Nothing redirects a call, and each has a deadline and a
//! bound on its answer.

mod call;
mod dashboard;
mod metrics;
mod rules;

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ipnet::IpNet;
use parking_lot::Mutex;
use tidegate_core::Nanos;
use tidegate_listen::peers::subnet;
use tidegate_service::{
    decide::service::Service,
    flow::{Flow, ProgramReport, is_name},
    observe::ticks::ticks,
};
use tokio::sync::{Semaphore, watch};

pub use dashboard::{Dashboard, serve as serve_dashboard};
use metrics::Metrics;
use rules::RuleSync;

/// Programs that are asked.
const MAX_PROGRAMS: usize = 1_000;
/// Calls at the same time: each may have an answer of [`call::MAX_ANSWER`] in memory.
const MAX_CALLS: usize = 256;
/// How often a program is asked for its metrics.
const EVERY: Duration = Duration::from_secs(1);
/// How many of these times pass from one comparison of the rules to the next.
const RULES_EVERY: u32 = 3;
/// A program without a heartbeat for this long is not asked any more. Sentinel sends one every ten
/// seconds.
const GONE: Duration = Duration::from_secs(35);

/// A heartbeat.
#[derive(Debug, PartialEq, Eq)]
pub struct Heartbeat {
    pub app: String,
    pub ip: IpAddr,
    pub port: u16,
    /// The program's clock, in milliseconds since 1970.
    pub at_ms: Option<u64>,
}

/// Why a heartbeat is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeartbeatError {
    #[error("`{0}` is missing or cannot be used")]
    Field(&'static str),
    #[error(
        "the heartbeat of {from} names the address {named}; set csp.sentinel.heartbeat.client.ip to {from}, or list the network in \
         --sentinel-dashboard-networks"
    )]
    Foreign { from: IpAddr, named: IpAddr },
    #[error(
        "{MAX_PROGRAMS} programs send heartbeats already, and no other address has more of them than this one"
    )]
    TooMany,
}

impl Heartbeat {
    /// Reads the fields of a heartbeat.
    pub fn read(fields: impl Iterator<Item = (String, String)>) -> Result<Self, HeartbeatError> {
        let fields: HashMap<String, String> = fields.collect();
        let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
        let wrong = HeartbeatError::Field;
        let app = Some(field("app"))
            .filter(|app| is_name(app))
            .ok_or(wrong("app"))?
            .to_owned();
        let ip = field("ip")
            .parse::<IpAddr>()
            .map_err(|_| wrong("ip"))?
            .to_canonical();
        let port = field("port")
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or(wrong("port"))?;
        // In Sentinel `version` is the time, and `v` the version.
        let at_ms = field("version").parse().ok();
        Ok(Self {
            app,
            ip,
            port,
            at_ms,
        })
    }
}

/// A program whose heartbeats came lately.
struct Known {
    heard: Nanos,
    /// The network that sent the newest.
    from: IpAddr,
    /// The number of the task that asks it.
    task: u64,
}

type Name = (String, SocketAddr);

/// The programs whose heartbeats came lately.
pub struct Programs {
    flow: Arc<Flow>,
    service: Arc<Service>,
    networks: Vec<IpNet>,
    known: Mutex<HashMap<Name, Known>>,
    tasks: AtomicU64,
    calls: Semaphore,
    stopped: watch::Receiver<bool>,
}

impl Programs {
    pub fn new(
        flow: Arc<Flow>,
        service: Arc<Service>,
        networks: Vec<IpNet>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let calls = Semaphore::new(MAX_CALLS);
        Self {
            flow,
            service,
            networks,
            known: Mutex::default(),
            tasks: AtomicU64::default(),
            calls,
            stopped,
        }
    }

    /// Takes the heartbeat of a client. The program is asked from then on, until its heartbeats
    /// end.
    pub fn heard(
        self: &Arc<Self>,
        heartbeat: Heartbeat,
        from: IpAddr,
    ) -> Result<(), HeartbeatError> {
        let Heartbeat {
            app,
            ip: named,
            port,
            at_ms,
        } = heartbeat;
        let from = from.to_canonical();
        if named != from && !self.networks.iter().any(|network| network.contains(&named)) {
            return Err(HeartbeatError::Foreign { from, named });
        }
        let (name, now) = ((app, SocketAddr::new(named, port)), self.service.now());
        let mut known = self.known.lock();
        let from = subnet(from);
        if let Some(program) = known.get_mut(&name) {
            (program.heard, program.from) = (now, from);
            return Ok(());
        }
        if known.len() >= MAX_PROGRAMS {
            let name = must_give_way(&known, from).ok_or(HeartbeatError::TooMany)?;
            known.remove(&name);
        }
        // Relaxed: the lock orders it.
        let task = self.tasks.fetch_add(1, Ordering::Relaxed);
        known.insert(
            name.clone(),
            Known {
                heard: now,
                from,
                task,
            },
        );
        let ahead = at_ms.map_or(0, |ms| i128::from(ms) - i128::from(now.get() / 1_000_000));
        tokio::spawn(Arc::clone(self).follow(name, task, ahead));
        Ok(())
    }

    /// Asks one program until its heartbeats end or the server stops. Its clock is `ahead`
    /// milliseconds of the server's.
    async fn follow(self: Arc<Self>, name: Name, task: u64, ahead: i128) {
        let (mut metrics, mut rules) = (Metrics::new(ahead), RuleSync::default());
        let mut ticks = ticks(EVERY);
        let mut stopped = self.stopped.clone();
        let asking = async {
            for tick in 0_u32.. {
                ticks.tick().await;
                if self.is_gone(&name, task) {
                    return;
                }
                self.ask(
                    &name,
                    &mut metrics,
                    &mut rules,
                    tick.is_multiple_of(RULES_EVERY),
                )
                .await;
            }
        };
        tokio::select! {
            () = asking => {}
            // The sender's drop is the same.
            _ = stopped.changed() => {}
        }
    }

    /// Forgets a program whose heartbeats ended. It is also gone if it gave way, even if another
    /// task asks it since then.
    fn is_gone(&self, name: &Name, task: u64) -> bool {
        let mut known = self.known.lock();
        let now = self.service.now();
        let Some(program) = known.get(name).filter(|program| program.task == task) else {
            return true;
        };
        let is_gone = now.saturating_since(program.heard) >= GONE.into();
        if is_gone {
            known.remove(name);
        }
        is_gone
    }

    /// Asks a program for its metrics, which become a report, and sometimes compares its rules.
    async fn ask(&self, name: &Name, metrics: &mut Metrics, rules: &mut RuleSync, compares: bool) {
        let (app, address) = name;
        // The semaphore is never closed.
        let Ok(_call) = self.calls.acquire().await else {
            return;
        };
        let now_ms = self.service.now().get() / 1_000_000;
        if let Err(error) = metrics.pull(*address, now_ms).await {
            tracing::debug!(app, %address, %error, "no metrics");
            return;
        }
        if compares {
            let kept = self.flow.pushed.get(app);
            rules.compare(*address, kept).await;
        }
        let (now, resources) = metrics.reports();
        let report = ProgramReport {
            app: app.clone(),
            instance: address.to_string(),
            now,
            version: rules.version.clone(),
            rejected: rules.rejected.clone(),
            left_out: 0,
            own: rules.own.clone(),
            resources,
        };
        if let Err(error) = self.flow.reports.take(report, self.service.now()) {
            tracing::debug!(app, %address, %error, "metrics find no room");
        }
    }
}

/// The program that gives way to one from this network: of the network with the most programs, the
/// one that was silent longest. `None` if no network would still have at least as many as the
/// newcomer's.
fn must_give_way(known: &HashMap<Name, Known>, from: IpAddr) -> Option<Name> {
    let mut programs: HashMap<IpAddr, usize> = HashMap::new();
    for program in known.values() {
        *programs.entry(program.from).or_default() += 1;
    }
    let own = programs.get(&from).copied().unwrap_or(0);
    let (largest, _) = programs
        .into_iter()
        .filter(|(_, most)| *most > own + 1)
        .max_by_key(|(_, most)| *most)?;
    let of_largest = known.iter().filter(|(_, program)| program.from == largest);
    of_largest
        .min_by_key(|(_, program)| program.heard)
        .map(|(name, _)| name.clone())
}
