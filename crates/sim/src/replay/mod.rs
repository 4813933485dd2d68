//! Runs a workload through algorithms, on the clock of the requests.
//!
//! A limit sees each key separately, so keys are replayed one after another, each with all its
//! requests in order of time. One state for each algorithm is therefore enough, however many keys
//! there are. Threads share only the number of the next key, and all counts are sums and maxima, so
//! the findings do not depend on the number of threads. Each thread holds in memory, for each
//! algorithm, one state and the admissions of one key in one window (for an algorithm that keeps to
//! its limit, at most twice the limit).
//!
//! For each quota an exact sliding log runs with its own admissions, and each decision is compared
//! with the log's. As soon as two decisions differ, the histories differ. `wrongly_admitted` is
//! therefore not a breach of the limit: even an algorithm that never exceeds it sometimes admits
//! what the log denies, because the log admitted something else before. `worst_window` shows a
//! breach. A request that a leaky bucket delays counts as admitted when it arrived.
//!
//! Requests that are [charged afterwards](Workload::ends) ask with a cost of 0, and the exact log
//! does the same. A fleet does not know them.

mod estimate;
mod exact;
mod findings;
mod fleet;
mod heat;
mod key_state;
mod ranking;
mod run;
mod shares;
mod timeline;
mod trial;

use std::{
    num::NonZeroUsize,
    panic::resume_unwind,
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

pub use estimate::Estimate;
pub(crate) use exact::RecentTimes;
pub use findings::{Delays, Findings, Row};
pub use heat::{HeatMap, heat_map};
pub(crate) use key_state::KeyState;
pub use ranking::DeniedKey;
pub(crate) use run::Stretch;
pub use shares::{SharesFindings, SharesTrial, TenantFindings, replay_shares};
pub use timeline::Timeline;
pub(crate) use trial::Candidate;
pub use trial::{Trial, TrialError};

use crate::{
    progress::{Progress, Stage},
    workload::Workload,
};
use estimate::Estimator;
use exact::ExactLog;
use fleet::FleetRun;
use ranking::Ranking;
use run::CandidateRun;

/// How many requests of a key go through one algorithm before the next algorithm's turn.
const STRETCH: usize = 4_096;

/// Replays the workload through all trials at the same time; the findings are in the trials' order.
///
/// `progress` counts requests.
pub fn replay<W: Workload>(
    workload: &W,
    trials: &[Trial],
    threads: NonZeroUsize,
    progress: &Progress,
) -> Vec<Findings> {
    // Threads divide the keys among them, and if there are too few keys, also the trials.
    let groups = threads
        .get()
        .div_ceil(workload.keys().max(1) as usize)
        .clamp(1, trials.len().max(1));
    let threads_each = NonZeroUsize::new(threads.get() / groups).unwrap_or(NonZeroUsize::MIN);
    progress.begin(
        Stage::Replaying,
        workload.requests().saturating_mul(groups as u64),
    );
    let timeline = Timeline::new(workload.span(), workload.has_dates());
    let group = |found: &mut Vec<(u32, Vec<Findings>)>, at: u32| {
        let (at, all) = (at as usize, trials.len());
        let trials = &trials[all * at / groups..all * (at + 1) / groups];
        let fresh = || Worker::new(workload, trials, timeline, progress);
        let worker = on_threads(
            workload.keys(),
            threads_each,
            fresh,
            Worker::key,
            Worker::absorb,
        );
        found.push((at as u32, worker.finish()));
    };
    let group_threads = NonZeroUsize::new(groups).unwrap_or(NonZeroUsize::MIN);
    let mut found = on_threads(groups as u32, group_threads, Vec::new, group, Vec::extend);
    found.sort_by_key(|(at, _)| *at);
    found
        .into_iter()
        .flat_map(|(_, findings)| findings)
        .collect()
}

/// Gives each thread a worker, distributes all keys over the workers, and adds up the workers.
pub(crate) fn on_threads<T: Send>(
    keys: u32,
    threads: NonZeroUsize,
    worker: impl Fn() -> T + Sync,
    run: impl Fn(&mut T, u32) + Sync,
    add: impl Fn(&mut T, T),
) -> T {
    let next = AtomicU32::new(0);
    // One by one, because a few keys may have most of the requests. Relaxed: only the number is
    // shared.
    let take = || {
        let following = |key| (key < keys).then(|| key + 1);
        next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, following)
            .ok()
    };
    let work = || {
        let mut worker = worker();
        while let Some(key) = take() {
            run(&mut worker, key);
        }
        worker
    };
    thread::scope(|scope| {
        let useful = threads.get().min(keys as usize);
        // If the system cannot start more threads, the existing ones do the work.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..useful).map_while(spawn).collect();
        let mut sum = work();
        for other in others {
            add(
                &mut sum,
                other.join().unwrap_or_else(|panic| resume_unwind(panic)),
            );
        }
        sum
    })
}

/// The work of one thread.
struct Worker<'a, W> {
    workload: &'a W,
    progress: &'a Progress,
    timeline: Timeline,
    stretch: Stretch,
    keys: u64,
    requests_over_time: Vec<u64>,
    tracks: Vec<Track<'a>>,
}

/// One trial during the replay.
struct Track<'a> {
    trial: &'a Trial,
    exact: ExactLog,
    runs: Vec<CandidateRun>,
    /// Used instead of the runs if a fleet shares the limit.
    fleet_runs: Vec<FleetRun>,
    estimate: Estimate,
    ranking: Ranking,
}

impl<'a, W: Workload> Worker<'a, W> {
    fn new(
        workload: &'a W,
        trials: &'a [Trial],
        timeline: Timeline,
        progress: &'a Progress,
    ) -> Self {
        let stretches = timeline.stretches;
        Self {
            workload,
            progress,
            timeline,
            stretch: Stretch::default(),
            keys: 0,
            requests_over_time: vec![0; stretches],
            tracks: trials
                .iter()
                .map(|trial| Track::new(trial, stretches))
                .collect(),
        }
    }

    fn key(&mut self, key: u32) {
        let (mut requests, mut ends) = (self.workload.costs(key), self.workload.ends(key));
        let is_charged = self.workload.is_charged();
        let estimator = |track: &Track<'_>| {
            let (limit, window) = (
                track.trial.quota().limit(),
                track.trial.quota().window_nanos(),
            );
            let has_estimate = track.trial.has_sliding_counter() && !is_charged;
            has_estimate.then(|| Estimator::new(limit, window, self.workload.costs(key)))
        };
        let mut estimators: Vec<_> = self.tracks.iter().map(estimator).collect();
        let (mut count, mut cost) = (0, 0);
        loop {
            self.stretch.requests.clear();
            self.stretch
                .requests
                .extend(requests.by_ref().take(STRETCH));
            self.stretch.ends.clear();
            self.stretch.ends.extend(ends.by_ref().take(STRETCH));
            if self.stretch.requests.is_empty() {
                break;
            }
            count += self.stretch.requests.len() as u64;
            cost += self
                .stretch
                .requests
                .iter()
                .map(|&(_, cost)| cost)
                .sum::<u64>();
            self.find_steps();
            for (track, estimator) in self.tracks.iter_mut().zip(&mut estimators) {
                if let Some(estimator) = estimator {
                    self.stretch
                        .requests
                        .iter()
                        .for_each(|&(time, cost)| estimator.request(time, cost));
                }
                track.run(key, &mut self.stretch);
            }
            self.progress.add(self.stretch.requests.len() as u64);
        }
        if count == 0 {
            return;
        }
        self.keys += 1;
        for (track, estimator) in self.tracks.iter_mut().zip(estimators) {
            if let Some(estimator) = estimator {
                track.estimate.absorb(&estimator.finish());
            }
            track.finish_key(key, count, cost);
        }
    }

    /// Finds each request's step of the timeline.
    fn find_steps(&mut self) {
        self.stretch.timeline_steps.clear();
        // Times do not decrease, so a step is valid until its end, and each step needs one
        // division.
        let (mut step, mut end) = (0, 0);
        for &(time, _) in &self.stretch.requests {
            if time >= end {
                step = self.timeline.stretch(time);
                end = self.timeline.start + (step as u64 + 1) * self.timeline.step;
            }
            self.requests_over_time[step] += 1;
            self.stretch.timeline_steps.push(step as u16);
        }
    }

    fn absorb(&mut self, other: Self) {
        self.keys += other.keys;
        for (sum, count) in self
            .requests_over_time
            .iter_mut()
            .zip(other.requests_over_time)
        {
            *sum += count;
        }
        for (track, others) in self.tracks.iter_mut().zip(other.tracks) {
            track.absorb(others);
        }
    }

    fn finish(self) -> Vec<Findings> {
        let Self {
            workload,
            timeline,
            keys,
            requests_over_time,
            tracks,
            ..
        } = self;
        let findings = |track: Track<'_>| Findings {
            quota: track.trial.quota(),
            fleet: track.trial.fleet(),
            requests: workload.requests(),
            keys,
            span: workload.span(),
            is_charged: workload.is_charged(),
            timeline,
            requests_over_time: requests_over_time.clone(),
            rows: track.rows(!workload.is_charged()),
            most_denied: track.ranking.finish(),
        };
        tracks.into_iter().map(findings).collect()
    }
}

impl<'a> Track<'a> {
    fn new(trial: &'a Trial, stretches: usize) -> Self {
        let (limit, window) = (trial.quota().limit(), trial.quota().window_nanos());
        let run = |candidate| CandidateRun::new(candidate, window, stretches);
        let candidates = trial.candidates().iter();
        let (runs, fleet_runs) = match trial.fleet() {
            None => (candidates.map(run).collect(), Vec::new()),
            Some(fleet) => (
                Vec::new(),
                candidates
                    .map(|each| FleetRun::new(each, fleet, window, stretches))
                    .collect(),
            ),
        };
        Self {
            trial,
            exact: ExactLog::new(limit, window),
            runs,
            fleet_runs,
            estimate: Estimate::default(),
            ranking: Ranking::default(),
        }
    }

    fn run(&mut self, key: u32, stretch: &mut Stretch) {
        let Stretch {
            requests,
            ends,
            exact,
            ..
        } = &mut *stretch;
        let admits = |(at, &(time, cost)): (usize, &(u64, _))| match ends.get(at) {
            Some(&end) => self.exact.admits_and_charges(time, end, cost),
            None => self.exact.admits(time, cost),
        };
        exact.clear();
        exact.extend(requests.iter().enumerate().map(admits));
        self.runs.iter_mut().for_each(|run| run.run(stretch));
        self.fleet_runs
            .iter_mut()
            .for_each(|run| run.run(key, stretch));
    }

    fn finish_key(&mut self, key: u32, requests: u64, cost: u64) {
        self.exact.clear();
        let one_place = self.runs.iter_mut().map(|run| run.finish_key(cost));
        let denied: Vec<u64> = one_place
            .chain(self.fleet_runs.iter_mut().map(FleetRun::finish_key))
            .collect();
        if denied.iter().any(|&denied| denied > 0) {
            self.ranking.offer(DeniedKey {
                key,
                requests,
                denied,
            });
        }
    }

    fn absorb(&mut self, other: Self) {
        self.estimate.absorb(&other.estimate);
        self.ranking.absorb(other.ranking);
        for (run, others) in self.runs.iter_mut().zip(other.runs) {
            run.row.absorb(&others.row);
        }
        for (run, others) in self.fleet_runs.iter_mut().zip(&other.fleet_runs) {
            run.absorb(others);
        }
    }

    fn rows(&self, has_estimate: bool) -> Vec<Row> {
        let rows = self.runs.iter().map(|run| run.row.clone());
        let row = |(row, candidate): (Row, &Candidate)| Row {
            estimate: (has_estimate && candidate.spec.is_sliding_counter())
                .then_some(self.estimate),
            ..row
        };
        rows.chain(self.fleet_runs.iter().map(FleetRun::row))
            .zip(self.trial.candidates())
            .map(row)
            .collect()
    }
}
