//! Loading the rules again while the server runs: all of them or none, and one line in the log either way.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::watch;

use crate::{
    metrics::Events,
    rules::{self, RulesError, Watch},
    service::Service,
};

/// What follows a rules file.
pub(crate) struct Reload {
    /// `None` for the built-in rules, which do not change.
    watch: Option<Watch>,
    events: Arc<Events>,
    /// How often the file has been loaded or refused.
    attempts: watch::Sender<u64>,
}

impl Reload {
    /// To be made before the file is loaded for the first time, so that no change between is missed.
    pub fn new(path: Option<PathBuf>, events: Arc<Events>) -> Self {
        Self { watch: path.map(Watch::new), events, attempts: watch::Sender::new(0) }
    }

    /// Tells each time that the file has been loaded or refused: how often by now.
    pub fn attempts(&self) -> watch::Receiver<u64> {
        self.attempts.subscribe()
    }

    /// Loads the file if it has changed.
    pub async fn if_changed(&mut self, service: &Arc<Service>) {
        let Some(watch) = &mut self.watch else { return };
        if watch.has_changed() {
            self.load(service).await;
        }
    }

    /// Loads the file, changed or not.
    pub async fn now(&mut self, service: &Arc<Service>) {
        if let Some(watch) = &mut self.watch {
            watch.catch_up();
            self.load(service).await;
        } else {
            tracing::info!("nothing to reload: these are the built-in rules; start with --rules FILE");
        }
    }

    async fn load(&self, service: &Arc<Service>) {
        let Some(path) = self.watch.as_ref().map(|watch| watch.path().to_owned()) else { return };
        let to_load = path.clone();
        let its = Arc::clone(service);
        // Many keys may change their quota: not on a thread that serves.
        let loaded = tokio::task::spawn_blocking(move || {
            let next = its.limits().follow(rules::load_to_serve(&to_load, its.keeping())?, its.now())?;
            let limits = next.limits().len();
            its.set_limits(next);
            Ok::<_, RulesError>(limits)
        });
        match loaded.await {
            Ok(Ok(limits)) => {
                self.events.reloads.fetch_add(1, Ordering::Relaxed);
                self.events.rules_loaded_at.store(service.now().get(), Ordering::Relaxed);
                tracing::info!(file = %path.display(), limits, "rules loaded");
            }
            Ok(Err(error)) => {
                self.events.reloads_refused.fetch_add(1, Ordering::Relaxed);
                let first = error.problems().first();
                let problems: Vec<String> =
                    error.problems().iter().skip(1).map(ToString::to_string).collect();
                tracing::error!(
                    file = %path.display(),
                    line = first.and_then(rules::Problem::line),
                    reason = first.map_or_else(|| error.to_string(), |first| first.what().to_owned()),
                    mend = first.and_then(rules::Problem::mending),
                    further = (!problems.is_empty()).then(|| problems.join(" | ")),
                    "rules refused; the old ones go on",
                );
            }
            // A panic was told by itself; the old rules are still in place.
            Err(_) => {
                self.events.reloads_refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.attempts.send_modify(|attempts| *attempts += 1);
    }
}
