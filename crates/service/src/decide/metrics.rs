//! The counters of decisions and of the limits' tables, which a scrape reads.

use std::fmt;

use tidegate_core::{DenialReason, Nanos};
use tidegate_limiter::Stats;

use super::{
    counts::CountsRead,
    limits::{Limits, TenantStanding},
    service::Service,
    shared,
    waits::WaitOutcome,
};
use crate::{
    observe::metrics::{MetricKind, MetricSource, Sink},
    rules::THROTTLE,
    shown,
};

/// How many tenants of a limit with the most requests, and how many with the most denials.
const TENANTS: usize = 20;

impl MetricSource for Service {
    fn report(&self, sink: &mut dyn Sink) -> fmt::Result {
        let in_force = self.in_force();
        let all = &in_force.limits;
        let throttle = self.throttle();
        let limits: Vec<(&str, CountsRead, Stats)> = all
            .limits()
            .iter()
            .map(|limit| (limit.spec().name.as_str(), limit.counts(), limit.stats()))
            .chain([(
                THROTTLE,
                throttle.counts().read(),
                throttle.limiter().stats(),
            )])
            .collect();
        let outcomes = |counts: &CountsRead| {
            [
                ("allowed", counts.allowed),
                ("delayed", counts.delayed),
                ("denied", counts.denied),
            ]
        };
        let decisions = limits.iter().flat_map(|(limit, counts, _)| {
            outcomes(counts)
                .map(|(outcome, count)| ([("limit", *limit), ("outcome", outcome)], count))
        });
        sink.labelled(
            "decisions",
            "Decisions by limit and outcome",
            MetricKind::Counter,
            decisions,
        )?;
        let denials = limits.iter().flat_map(|(limit, counts, _)| {
            let named = move |(reason, count): (&DenialReason, u64)| {
                ([("limit", *limit), ("reason", reason.name())], count)
            };
            DenialReason::ALL.iter().zip(counts.denied_by).map(named)
        });
        // Most reasons never occur at a limit. Those that did stay in the answer, because counters
        // never go back.
        let denials = denials.filter(|(_, count)| *count > 0);
        sink.labelled(
            "denials",
            "Denials by limit and reason",
            MetricKind::Counter,
            denials,
        )?;
        let reached: Vec<_> = all
            .limits()
            .iter()
            .flat_map(|limit| {
                let named =
                    |(percent, count)| (limit.spec().name.as_str(), format!("{percent}%"), count);
                limit.memory.thresholds.counts().into_iter().map(named)
            })
            .collect();
        let reached = reached.iter().map(|(limit, percent, count)| {
            ([("limit", *limit), ("threshold", percent.as_str())], *count)
        });
        let help = "Keys that reached a threshold of their limit, once in each period";
        sink.labelled("threshold_events", help, MetricKind::Counter, reached)?;
        report_limits(sink, &limits)?;
        report_tenants(sink, all, self.now())?;
        report_waits(sink, all)?;
        let reservations = self.reservations.len() as u64;
        sink.gauge(
            "reservations",
            "Reservations that are open or remembered",
            reservations,
        )?;
        sink.gauge(
            "ids",
            "First answers to requests with an id that this server remembers",
            self.repeats.len() as u64,
        )?;
        sink.count(
            "repeats",
            "Repeated requests that got the first answer to their id",
            self.repeats.repeated(),
        )?;
        sink.count(
            "ids_forgotten",
            "First answers that were forgotten before a minute, because there were too many",
            self.repeats.forgotten(),
        )?;
        in_force.report_attached(sink)?;
        let help = "Times that the system's time was set, or the machine was suspended";
        sink.count("clock_steps", help, self.wall_clock.steps())?;
        let help = "Distance of the system's time from the clock of rates, in seconds";
        sink.gauge("clock_off_seconds", help, self.wall_clock.seconds_off())?;
        if let Some(shared) = self.store() {
            shared::metrics::report(sink, shared.store())?;
        }
        sink.gauge(
            "rules_limits",
            "Limits in the rules",
            all.limits().len() as u64,
        )
    }
}

/// The busiest tenants of each limit that has any, so their number is bounded.
fn report_tenants(sink: &mut dyn Sink, limits: &Limits, now: Nanos) -> fmt::Result {
    let named = limits.limits().iter().flat_map(|limit| {
        let tenants = limit.busiest_tenants(TENANTS, now).into_iter();
        tenants.map(|tenant| {
            let name = shown::text(&String::from_utf8_lossy(&tenant.name));
            (limit.spec().name.as_str(), name, tenant)
        })
    });
    let all: Vec<(&str, String, TenantStanding)> = named.collect();
    let mut each = |name: &str, help: &str, read: fn(&TenantStanding) -> u64| {
        let values = all.iter().map(|(limit, name, tenant)| {
            ([("limit", *limit), ("tenant", name.as_str())], read(tenant))
        });
        sink.labelled(name, help, MetricKind::Gauge, values)
    };
    let help = "A busy tenant's part of the limit under contention, in thousandths";
    each("tenant_share_permille", help, |tenant| {
        permille(tenant.share)
    })?;
    let help =
        "The part of the limit that a busy tenant has used in the last seconds, in thousandths";
    each("tenant_used_permille", help, |tenant| permille(tenant.used))?;
    let help = "Requests of a busy tenant in the last 5 to 10 minutes, an estimate above the counting budget";
    each("tenant_requests", help, |tenant| tenant.requests)?;
    let help = "Denials of a busy tenant in the last 5 to 10 minutes, likewise";
    each("tenant_denials", help, |tenant| tenant.denials)
}

#[allow(clippy::cast_sign_loss, reason = "parts are not negative")]
fn permille(part: f64) -> u64 {
    (part * 1e3).round() as u64
}

fn report_waits(sink: &mut dyn Sink, limits: &Limits) -> fmt::Result {
    let waits: Vec<_> = limits
        .limits()
        .iter()
        .map(|limit| (limit.spec().name.as_str(), limit.memory.waits.counts()))
        .collect();
    let waiting = waits
        .iter()
        .map(|(limit, counts)| ([("limit", *limit)], counts.waiting));
    let help = "Callers that wait in line; a joint request counts at each of its limits";
    sink.labelled("waiting", help, MetricKind::Gauge, waiting)?;
    let ended = waits.iter().flat_map(|(limit, counts)| {
        let named = |((_, outcome), count)| ([("limit", *limit), ("outcome", outcome)], count);
        WaitOutcome::COUNTED
            .into_iter()
            .zip(counts.ended)
            .map(named)
    });
    let help = "Requests that waited in line, by limit and outcome";
    sink.labelled("waits", help, MetricKind::Counter, ended)?;
    let refused = waits
        .iter()
        .map(|(limit, counts)| ([("limit", *limit)], counts.refused));
    let help = "Requests that were refused because too many callers waited";
    sink.labelled("waits_refused", help, MetricKind::Counter, refused)
}

fn report_limits(sink: &mut dyn Sink, limits: &[(&str, CountsRead, Stats)]) -> fmt::Result {
    let mut each = |name: &str, help: &str, kind, read: fn(&CountsRead, &Stats) -> u64| {
        let values = limits
            .iter()
            .map(|(limit, counts, stats)| ([("limit", *limit)], read(counts, stats)));
        sink.labelled(name, help, kind, values)
    };
    let help = "Decisions that a shadow limit would have denied";
    each("shadow_denials", help, MetricKind::Counter, |counts, _| {
        counts.shadow_denied
    })?;
    each(
        "keys",
        "Keys of a limit in memory",
        MetricKind::Gauge,
        |_, stats| stats.keys,
    )?;
    each(
        "keys_max",
        "Maximum number of keys of a limit in memory",
        MetricKind::Gauge,
        |_, stats| stats.max_keys,
    )?;
    each(
        "store_bytes",
        "Bytes reserved for a limit's states",
        MetricKind::Gauge,
        |_, stats| stats.bytes,
    )?;
    let help = "States removed because they had fully recovered";
    each("keys_reclaimed", help, MetricKind::Counter, |_, stats| {
        stats.reclaimed
    })?;
    let help = "Keys that were evicted with a debt and left a record";
    each("keys_evicted", help, MetricKind::Counter, |_, stats| {
        stats.evicted
    })?;
    let help = "Evicted keys that returned and got their debt back";
    each("keys_returned", help, MetricKind::Counter, |_, stats| {
        stats.returned
    })?;
    each(
        "records",
        "Records of evicted keys",
        MetricKind::Gauge,
        |_, stats| stats.records,
    )?;
    let help = "Requests of new keys denied so that no exhausted key is forgotten";
    each("keys_refused", help, MetricKind::Counter, |_, stats| {
        stats.refused
    })?;
    let help = "Evicted keys whose debt was forgotten because no record with less debt was left";
    each("keys_forgotten", help, MetricKind::Counter, |_, stats| {
        stats.forgotten.total()
    })?;
    let help = "Forgotten keys that had used up their limit and so got a fresh allowance";
    each(
        "keys_forgotten_exhausted",
        help,
        MetricKind::Counter,
        |_, stats| stats.forgotten.exhausted,
    )
}
