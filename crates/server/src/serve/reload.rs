//! Reloads the rules while the server runs: all of them or none, with one log line in either case.
//!
//! Nothing here runs on the server's main loop, because a file system may hang. A step that takes
//! too long is logged, and the next one begins only after it has ended.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_service::{
    decide::service::Service,
    observe::{metrics::Events, ticks::ticks},
    rules::{
        self, RulesError,
        reload::{ReloadOrder, Reloaded},
    },
};
use tokio::{
    sync::{mpsc, watch},
    task::spawn_blocking,
    time::timeout,
};

use crate::serve::{
    follow::Followed,
    sources::{Loaded, Sources},
};

/// After this long, a file that does not respond is logged.
const SLOW: Duration = Duration::from_secs(10);

/// Loads rules into a service and returns the number of limits.
type Load = dyn Fn(&Service) -> Result<usize, RulesError> + Send + Sync;

/// Follows the files with a server's limits.
pub(crate) struct Reload {
    sources: Sources,
    /// `None` for the built-in rules, which do not change.
    watch: Option<Followed>,
    load: Arc<Load>,
    slow: Duration,
    events: Arc<Events>,
    /// How often the file was loaded or rejected.
    pub attempts: watch::Sender<u64>,
}

impl Reload {
    /// Must be created before the file is loaded for the first time, so that no change is missed.
    pub fn new(sources: Sources, events: Arc<Events>) -> Self {
        let from = sources.clone();
        let load = move |service: &Service| {
            let Loaded {
                rules,
                of_protocols,
            } = from.load(service.keeping())?;
            let before = service.in_force();
            let limits = before.limits.follow(rules, service.now())?;
            let count = limits.limits().len();
            service.set_limits(of_protocols.in_force(limits, Some(&before)));
            Ok(count)
        };
        let load = Arc::new(load);
        let watch = sources.may_change().then(|| Followed::new(sources.watch()));
        Self {
            sources,
            watch,
            load,
            slow: SLOW,
            events,
            attempts: watch::Sender::new(0),
        }
    }

    /// Loads the file whenever it has changed or a request arrives, until the sender is dropped.
    pub async fn follow(
        mut self,
        service: Arc<Service>,
        look: Duration,
        mut orders: mpsc::Receiver<ReloadOrder>,
    ) {
        let mut looks = ticks(look.max(Duration::from_millis(1)));
        loop {
            let order = tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => Some(order),
                    None => return,
                },
                _ = looks.tick() => None,
            };
            let reloaded = self.step(&service, order.is_some()).await;
            if let (Some(Some(asked)), Some(reloaded)) = (order, reloaded) {
                // The receiver may be gone.
                let _ = asked.send(reloaded);
            }
        }
    }

    /// Checks the file, and loads it if it has changed or a reload was requested.
    async fn step(&mut self, service: &Arc<Service>, is_ordered: bool) -> Option<Reloaded> {
        let Some(mut watch) = self.watch.take() else {
            if is_ordered {
                tracing::info!(
                    "nothing to reload: these are the built-in rules; start with --rules FILE"
                );
            }
            return Some(Reloaded::BuiltIn);
        };
        let (load, its) = (Arc::clone(&self.load), Arc::clone(service));
        let mut work = spawn_blocking(move || {
            let loaded = watch.is_due(is_ordered).then(|| load(&its));
            (watch, loaded)
        });
        let done = if let Ok(done) = timeout(self.slow, &mut work).await {
            done
        } else {
            tracing::error!(
                file = %self.sources,
                "cannot read the rules: the file system does not respond; the previous rules stay active",
            );
            self.refused();
            work.await
        };
        let Ok((watch, loaded)) = done else {
            // A panic has already logged itself, and the previous rules are still in force.
            self.watch = Some(Followed::new(self.sources.watch()));
            self.refused();
            return None;
        };
        self.watch = Some(watch);
        match loaded {
            Some(Ok(limits)) => {
                self.events.reloads.fetch_add(1, Ordering::Relaxed);
                self.events.set_rejected(Vec::new());
                self.events
                    .rules_loaded_at
                    .store(service.now().get(), Ordering::Relaxed);
                tracing::info!(file = %self.sources, limits, "rules loaded");
                self.attempts.send_modify(|attempts| *attempts += 1);
                Some(Reloaded::Loaded { limits })
            }
            Some(Err(error)) => {
                log_rejected(&self.sources, &error);
                let problems: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
                self.events.set_rejected(problems.clone());
                self.refused();
                Some(Reloaded::Rejected { problems })
            }
            None => None,
        }
    }

    fn refused(&self) {
        self.events.reloads_refused.fetch_add(1, Ordering::Relaxed);
        self.attempts.send_modify(|attempts| *attempts += 1);
    }
}

fn log_rejected(sources: &Sources, error: &RulesError) {
    if let RulesError::Several { errors } = error {
        return errors.iter().for_each(|error| log_rejected(sources, error));
    }
    let file = match error {
        RulesError::Invalid {
            path: Some(path), ..
        }
        | RulesError::Read { path, .. } => path.display().to_string(),
        _ => sources.to_string(),
    };
    let first = error.problems().first();
    let problems: Vec<String> = error
        .problems()
        .iter()
        .skip(1)
        .map(ToString::to_string)
        .collect();
    tracing::error!(
        file,
        line = first.and_then(rules::Problem::line),
        reason = first.map_or_else(|| error.to_string(), |first| first.what().to_owned()),
        mend = first.and_then(rules::Problem::mending),
        further = (!problems.is_empty()).then(|| problems.join(" | ")),
        "rules rejected; the previous rules stay active",
    );
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc as blocking};

    use tidegate_core::{Nanos, clock::ManualTimer};
    use tidegate_service::decide::{limits::Limits, throttle::Throttle};

    use super::*;

    #[tokio::test]
    async fn a_file_system_that_hangs_is_logged_and_blocks_nothing() {
        let limits = Limits::new(rules::example(), 10, |_| None, Nanos::ZERO).unwrap();
        let throttle = Throttle::new(10, None).unwrap();
        let service = Arc::new(Service::new(
            limits,
            throttle,
            Arc::new(ManualTimer::default()),
        ));
        let events = Arc::new(Events::default());
        let (answer, hung) = blocking::channel::<()>();
        let hung = Mutex::new(hung);
        let sources = Sources {
            rules: Some("/nonexistent".into()),
            ..Sources::default()
        };
        let mut reload = Reload::new(sources, Arc::clone(&events));
        reload.slow = Duration::from_millis(1);
        reload.load = Arc::new(move |_| {
            let _ = hung.lock().unwrap().recv();
            Ok(3)
        });
        let mut attempts = reload.attempts.subscribe();
        let (orders, receiver) = mpsc::channel(1);
        let following = tokio::spawn(reload.follow(service, Duration::from_secs(1_000), receiver));
        orders.send(None).await.unwrap();
        attempts.wait_for(|attempts| *attempts == 1).await.unwrap();
        assert_eq!(events.reloads_refused.load(Ordering::Relaxed), 1);
        // When it responds in the end, the rules are loaded.
        answer.send(()).unwrap();
        attempts.wait_for(|attempts| *attempts == 2).await.unwrap();
        assert_eq!(events.reloads.load(Ordering::Relaxed), 1);
        // Stopping does not wait for a file system that hangs.
        orders.send(None).await.unwrap();
        attempts.wait_for(|attempts| *attempts == 3).await.unwrap();
        following.abort();
        assert!(following.await.unwrap_err().is_cancelled());
        drop(answer);
    }
}
