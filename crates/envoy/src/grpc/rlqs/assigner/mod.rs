//! The task that manages all streams: it takes in reports, charges the limits each second, and
//! assigns shares.

mod buckets;
mod later;
mod place;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::pb::envoy::service::rate_limit_quota::v3::{
    RateLimitQuotaResponse, RateLimitQuotaUsageReports, rate_limit_quota_response::BucketAction,
    rate_limit_quota_usage_reports::BucketQuotaUsage,
};
use futures_util::future::join_all;
use tidegate_core::Nanos;
use tidegate_service::{
    decide::service::{InForce, Service},
    observe::once_a_minute::OnceAMinute,
};
use tokio::sync::{mpsc, watch};
use tonic::Status;

use self::{
    buckets::{Buckets, Held, KeySums, Sums},
    later::Later,
    place::{Charged, Place, count},
};
use super::{
    Said,
    terms::{TIME_TO_LIVE, Terms, share_out},
    wire::{self, Bucket},
};
use crate::grpc::GrpcStats;

const SECOND: u64 = Nanos::from_secs(1).get();
/// The maximum number of buckets of all streams. Further ones get no assignment.
const MAX_BUCKETS: usize = 100_000;
/// The maximum number of buckets of one stream. A stream with more is ended: each of its reports
/// would be as long.
const MAX_BUCKETS_PER_STREAM: usize = 10_000;
/// The maximum length of all buckets' names and values together, in bytes. Buckets beyond it get no
/// assignment.
const MAX_TEXT: usize = 8 << 20;
/// The same for a single bucket.
const MAX_BUCKET_TEXT: usize = 4 << 10;
/// The maximum length of a domain, in bytes.
const MAX_DOMAIN: usize = 1 << 10;
/// The maximum number of streams. Further ones are refused.
const MAX_STREAMS: usize = 10_000;
/// How often the clock is checked while any bucket has a share.
const LOOK: Duration = Duration::from_millis(100);
/// Without shares, no task waits for the next second.
const LONG: Duration = Duration::from_secs(1_000);

/// An event of a stream.
#[derive(Debug)]
pub(crate) enum Event {
    Opened {
        id: u64,
        say: mpsc::Sender<Said>,
    },
    Reported {
        id: u64,
        report: RateLimitQuotaUsageReports,
    },
    Closed {
        id: u64,
    },
}

/// One open stream.
struct Stream {
    /// Empty until the first report names it.
    domain: Arc<str>,
    say: mpsc::Sender<Said>,
    buckets: HashMap<Arc<Bucket>, usize>,
}

/// The buckets that share one key of a limit.
struct Group {
    charged: Arc<Charged>,
    live: Vec<usize>,
    /// Buckets of lost streams, which continue to spend.
    lost: Vec<usize>,
    /// The tokens that lost buckets spend in this second, and those that they may still spend
    /// later.
    due: u64,
    reserve: u64,
    /// The sum of the live buckets' demands.
    wanted: u64,
}

struct Assigner {
    service: Arc<Service>,
    stats: Arc<GrpcStats>,
    in_force: Arc<InForce>,
    streams: HashMap<u64, Stream>,
    held: Buckets,
    /// The last second that was charged, and what may be charged for it later.
    second: u64,
    later: Later,
    full: OnceAMinute,
    for_calls: OnceAMinute,
}

/// Serves all streams until `stop` is set, and then ends them.
pub(crate) async fn assign(
    service: Arc<Service>,
    stats: Arc<GrpcStats>,
    mut events: mpsc::Receiver<Event>,
    mut stop: watch::Receiver<bool>,
) {
    let mut assigner = Assigner::new(service, stats);
    loop {
        let now = assigner.service.now();
        assigner.catch_up(now).await;
        assigner.charge_later(now).await;
        let pause = if assigner.held.len() == 0 {
            LONG
        } else {
            Duration::from_nanos(SECOND - now.get() % SECOND).min(LOOK)
        };
        let event = tokio::select! {
            event = events.recv() => event,
            () = tokio::time::sleep(pause) => continue,
            // An error means that the sender is gone, so no one can stop the server any more: stop
            // then, too.
            _ = stop.wait_for(|stop| *stop) => None,
        };
        let Some(event) = event else { return };
        assigner.take_in(event).await;
        assigner
            .stats
            .quota_streams
            .store(assigner.streams.len(), Ordering::Relaxed);
        assigner
            .stats
            .quota_buckets
            .store(assigner.held.len(), Ordering::Relaxed);
    }
}

impl Assigner {
    fn new(service: Arc<Service>, stats: Arc<GrpcStats>) -> Self {
        let in_force = service.in_force();
        let second = service.now().get() / SECOND;
        Self {
            service,
            stats,
            in_force,
            streams: HashMap::new(),
            held: Buckets::default(),
            second,
            later: Later::default(),
            full: OnceAMinute::default(),
            for_calls: OnceAMinute::default(),
        }
    }

    /// The number of servers that share the limits.
    fn servers(&self) -> u64 {
        self.service
            .store()
            .map_or(1, |shared| shared.store().nodes())
            .into()
    }

    /// Charges for the current second, unless that is done.
    async fn catch_up(&mut self, now: Nanos) {
        if now.get() / SECOND > self.second {
            self.begin_second(now).await;
        }
    }

    async fn take_in(&mut self, event: Event) {
        match event {
            Event::Opened { say, .. } if self.streams.len() >= MAX_STREAMS => {
                let why = format!(
                    "all {MAX_STREAMS} streams are in use; spread the Envoys over more servers"
                );
                let _ = say.try_send(Err(Status::resource_exhausted(why)));
            }
            Event::Opened { id, say } => {
                let stream = Stream {
                    domain: "".into(),
                    say,
                    buckets: HashMap::new(),
                };
                self.streams.insert(id, stream);
            }
            Event::Closed { id } => self.close(id),
            Event::Reported { id, report } => {
                self.stats.quota_reports.fetch_add(1, Ordering::Relaxed);
                self.follow_limits();
                self.reported(id, report).await;
            }
        }
    }

    /// Handles the end of a stream. Its Envoy continues with its assignments.
    fn close(&mut self, id: u64) {
        let Some(stream) = self.streams.remove(&id) else {
            return;
        };
        let now = self.service.now();
        for at in stream.buckets.into_values() {
            let held = &mut self.held[at];
            held.part.is_lost = true;
            if held.part.is_over(now) || !matches!(held.place(), Place::Limited(_)) {
                self.held.remove(at);
            }
        }
    }

    /// Ends a stream with a reason.
    fn refuse(&mut self, id: u64, why: &str) {
        if let Some(stream) = self.streams.get(&id) {
            let _ = stream.say.try_send(Err(Status::invalid_argument(why)));
        }
        self.close(id);
    }

    /// Sends actions on a stream. If the client does not read them, the stream is closed.
    fn say(&mut self, id: u64, bucket_action: Vec<BucketAction>) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        if !bucket_action.is_empty()
            && stream
                .say
                .try_send(Ok(RateLimitQuotaResponse { bucket_action }))
                .is_err()
        {
            self.close(id);
        }
    }

    fn say_all(&mut self, said: BTreeMap<u64, Vec<BucketAction>>) {
        for (stream, actions) in said {
            self.say(stream, actions);
        }
    }

    async fn reported(&mut self, id: u64, report: RateLimitQuotaUsageReports) {
        if report.domain.len() > MAX_DOMAIN {
            return self.refuse(
                id,
                "the domain is longer than 1,024 bytes; set a shorter `domain` in Envoy's filter",
            );
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        if stream.domain.is_empty() {
            stream.domain = report.domain.as_str().into();
        }
        if stream.domain.is_empty() {
            return self.refuse(
                id,
                "the first report must name the domain; set `domain` in Envoy's filter",
            );
        }
        if !report.domain.is_empty() && *report.domain != *stream.domain {
            return self.refuse(
                id,
                "a stream has only one domain; open another stream for the other domain",
            );
        }
        let now = self.service.now();
        let (mut actions, mut sums) = (Vec::new(), Sums::default());
        for usage in report.bucket_quota_usages {
            if self
                .streams
                .get(&id)
                .is_some_and(|stream| stream.buckets.len() > MAX_BUCKETS_PER_STREAM)
            {
                let why = format!(
                    "the stream has more than {MAX_BUCKETS_PER_STREAM} buckets; make fewer with the filter's \
                     bucket_id_builder, or spread the Envoys over more streams"
                );
                return self.refuse(id, &why);
            }
            actions.extend(self.used(id, usage, &mut sums, now).await);
        }
        self.say(id, actions);
    }

    /// Takes in a bucket's use. Returns the action to send immediately, if any. `sums` are
    /// those of the report.
    async fn used(
        &mut self,
        id: u64,
        usage: BucketQuotaUsage,
        sums: &mut Sums,
        now: Nanos,
    ) -> Option<BucketAction> {
        let bucket = wire::bucket(usage.bucket_id);
        let text = wire::text_of(&bucket);
        let stream = self.streams.get_mut(&id)?;
        let known = stream.buckets.get(&bucket).copied();
        let at = match known {
            Some(at) => at,
            None if self.held.len() >= MAX_BUCKETS
                || text > MAX_BUCKET_TEXT
                || self.held.text() + text > MAX_TEXT =>
            {
                if self.full.is_due(now) {
                    tracing::warn!(
                        MAX_BUCKETS,
                        MAX_TEXT,
                        MAX_BUCKET_TEXT,
                        "Envoys have too many or too long quota buckets: further ones get no assignment; make \
                         fewer or shorter ones with the filter's bucket_id_builder",
                    );
                }
                return None;
            }
            None => {
                let domain = Arc::clone(&stream.domain);
                let held = Held::new(id, Arc::clone(&bucket), domain, now);
                let at = self.held.insert(held, &self.in_force);
                stream.buckets.insert(Arc::clone(&bucket), at);
                at
            }
        };
        let held = &mut self.held[at];
        let owed = held
            .part
            .report(usage.num_requests_allowed, usage.num_requests_denied, now);
        let place = held.place().clone();
        count(
            &self.in_force,
            &place,
            usage.num_requests_allowed,
            usage.num_requests_denied,
        );
        if let Place::Limited(charged) = &place {
            // Requests admitted without an assignment count, too, as far as there is room.
            if owed > 0 {
                charged.take(owed, now).await;
            }
            if charged.terms.gives_back {
                let back = self.held[at].part.surplus();
                charged.give_back(back, now).await;
            }
        }
        if self.held[at].part.is_quiet() {
            self.streams.get_mut(&id)?.buckets.remove(&bucket);
            sums.without(&self.held.remove(at), now);
            return Some(wire::abandon(&bucket));
        }
        match place {
            Place::Free { .. } => Some(wire::everything(&bucket)),
            // From the next second on it shares with the others. Until then it gets what is left
            // over.
            Place::Limited(charged) if known.is_none() => {
                let of_key = sums.with(&self.held, at, &charged, now);
                let KeySums {
                    open: envoys,
                    reserve,
                } = *of_key;
                let floor = self.floor(&charged.terms, envoys);
                let wanted = self.held[at]
                    .part
                    .wants(&charged.terms, envoys, floor, now)
                    .most;
                let (granted, room) = charged.take_within_budget(0, reserve, wanted, now).await;
                let window = charged.terms.window_of(now.get() / SECOND);
                let part = &mut self.held[at].part;
                // The assignment begins within a second, and so extends into one more. If that
                // could not be paid, there is no share, and the next report gives back what was
                // taken.
                let lasting = charged.terms.lasting(room, granted.div_ceil(2)) - 1;
                let share = if lasting > 0 {
                    part.assign(granted, window, now)
                } else {
                    part.pay(granted, window);
                    0
                };
                let lasting = lasting.max(1);
                part.lasts(lasting, now);
                of_key.reserve = of_key.reserve.saturating_add(part.reserve(now));
                Some(wire::tokens(&bucket, share, lasting))
            }
            Place::Limited(_) => None,
            Place::ForCalls => {
                if self.for_calls.is_due(now) {
                    tracing::warn!(
                        "Envoys ask for a quota of a limit that tenants share: they get no assignment; ask for each \
                         request with the filter envoy.filters.http.ratelimit",
                    );
                }
                None
            }
        }
    }

    /// Matches all buckets again after a change of the configuration.
    fn follow_limits(&mut self) {
        let in_force = self.service.in_force();
        if Arc::ptr_eq(&in_force, &self.in_force) {
            return;
        }
        self.in_force = in_force;
        self.held.find_places(&self.in_force);
    }

    /// Charges for the second that has begun, and sends all Envoys their shares.
    async fn begin_second(&mut self, now: Nanos) {
        let second = now.get() / SECOND;
        self.second = second;
        self.follow_limits();
        let over = self.held.iter().filter(|(_, held)| held.part.is_over(now));
        for at in over.map(|(at, _)| at).collect::<Vec<_>>() {
            self.held.remove(at);
        }
        self.later.end();
        let groups = self.groups(second, now);
        let servers = self.servers();
        let granted = join_all(groups.iter().map(async |group| {
            let Group {
                charged,
                due,
                reserve,
                wanted,
                ..
            } = group;
            let most = charged
                .terms
                .at_a_time(servers, self.later.was_alone(charged));
            charged
                .take_within_budget(*due, *reserve, (*wanted).min(most), now)
                .await
        }))
        .await;
        self.later.begin(now);
        let mut said: BTreeMap<u64, Vec<BucketAction>> = BTreeMap::new();
        for (group, (granted, room)) in groups.iter().zip(granted) {
            let Charged { terms, .. } = &*group.charged;
            let (window, envoys) = (terms.window_of(second), group.live.len() as u64);
            for at in &group.lost {
                let part = &mut self.held[*at].part;
                part.pay(part.share, window);
            }
            let floor = self.floor(terms, envoys);
            let wants: Vec<_> = group
                .live
                .iter()
                .map(|at| self.held[*at].part.wants(terms, envoys, floor, now))
                .collect();
            if terms.at_a_time(servers, false) < u64::MAX {
                let unmet = group.live.iter().zip(&wants).map(|(at, want)| {
                    let held = &self.held[*at];
                    let most = if held.part.is_fresh(now) {
                        want.most / 2
                    } else {
                        want.most
                    };
                    (*at, Arc::clone(&held.bucket), most)
                });
                self.later
                    .took(&group.charged, unmet.collect(), group.due + granted, room);
            }
            let shares: Vec<u64> = share_out(&wants, granted, second)
                .into_iter()
                .zip(&group.live)
                .map(|(granted, at)| self.held[*at].part.assign(granted, window, now))
                .collect();
            let lasting = terms.lasting(
                room,
                shares
                    .iter()
                    .fold(0, |sum: u64, share| sum.saturating_add(*share)),
            );
            for (at, share) in group.live.iter().zip(shares) {
                let held = &mut self.held[*at];
                // An assignment of nothing need not end early.
                let lasting = if share == 0 { TIME_TO_LIVE } else { lasting };
                held.part.lasts(lasting, now);
                said.entry(held.stream).or_default().push(wire::tokens(
                    &held.bucket,
                    share,
                    lasting,
                ));
            }
        }
        self.say_all(said);
    }

    /// The tokens of an Envoy that does not need them. Servers that share a limit take none:
    /// another server may need them.
    fn floor(&self, terms: &Terms, envoys: u64) -> u64 {
        if terms.at_a_time(self.servers(), false) < u64::MAX {
            0
        } else {
            terms.floor(envoys)
        }
    }

    fn groups(&mut self, second: u64, now: Nanos) -> Vec<Group> {
        let sides: Vec<_> = self
            .held
            .by_key()
            .map(|(charged, same)| {
                let sides = same.iter().partition(|at| !self.held[**at].part.is_lost);
                (Arc::clone(charged), sides)
            })
            .collect();
        let group = |(charged, (live, lost)): (Arc<Charged>, (Vec<usize>, Vec<usize>))| {
            for at in live.iter().chain(&lost) {
                self.held[*at].part.pay(0, charged.terms.window_of(second));
            }
            let due = lost
                .iter()
                .map(|at| self.held[*at].part.share)
                .fold(0, u64::saturating_add);
            let reserve = lost
                .iter()
                .map(|at| self.held[*at].part.later(now))
                .fold(0, u64::saturating_add);
            let envoys = live.len() as u64;
            let floor = self.floor(&charged.terms, envoys);
            let wants = live.iter().map(|at| {
                self.held[*at]
                    .part
                    .wants(&charged.terms, envoys, floor, now)
                    .most
            });
            let wanted = wants.fold(0, u64::saturating_add);
            Group {
                charged,
                live,
                lost,
                due,
                reserve,
                wanted,
            }
        };
        sides.into_iter().map(group).collect()
    }
}
