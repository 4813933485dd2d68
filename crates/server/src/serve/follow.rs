//! Reloads certificates and the access file when they change.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tidegate_config::file::{Look, Watch};
use tidegate_listen::security::ListenerSecurity;
use tidegate_service::observe::{metrics::Events, ticks::ticks};
use tokio::{sync::watch, task::spawn_blocking};

/// The maximum size of a file of certificates or clients.
const MAX_BYTES: u64 = 4 << 20;

/// Follows the files of `security` until the future is dropped. A change of `orders` forces a
/// reload.
pub(crate) async fn follow(
    security: ListenerSecurity,
    look: Duration,
    mut orders: watch::Receiver<u64>,
    events: Arc<Events>,
) {
    let watch =
        |paths: Vec<PathBuf>| Followed::new(Watch::new(move || Some(paths.clone()), MAX_BYTES));
    let tls = security.tls.as_ref().map(|tls| watch(tls.files.paths()));
    let access = security
        .access
        .path
        .as_ref()
        .map(|path| watch(vec![path.clone()]));
    if tls.is_none() && access.is_none() {
        return;
    }
    let mut watches = (tls, access);
    let mut looks = ticks(look.max(Duration::from_millis(1)));
    loop {
        let is_ordered = tokio::select! {
            changed = orders.changed() => match changed {
                Ok(()) => true,
                Err(_) => return,
            },
            _ = looks.tick() => false,
        };
        let (its, counts) = (security.clone(), Arc::clone(&events));
        // A file system may hang. Meanwhile the loaded files stay in force.
        let step = spawn_blocking(move || {
            if let (Some(watch), Some(tls)) = (&mut watches.0, &its.tls)
                && watch.is_due(is_ordered)
            {
                let done = tls.reload();
                log_outcome(
                    "certificates",
                    done.map(|()| None),
                    &counts.certificate_loads,
                );
            }
            if let Some(watch) = &mut watches.1
                && watch.is_due(is_ordered)
            {
                let done = its.access.reload().map(Some);
                log_outcome("access file", done, &counts.access_loads);
            }
            watches
        });
        let Ok(looked) = step.await else { return };
        watches = looked;
    }
}

/// The number of looks in a row that cannot read a file, after which its absence is reported.
const GONE: u32 = 5;

/// Files that are loaded again when they change.
pub(super) struct Followed {
    watch: Watch,
    /// How many looks in a row could not read them, up to one more than [`GONE`].
    gone: u32,
}

impl Followed {
    pub fn new(watch: Watch) -> Self {
        Self { watch, gone: 0 }
    }

    /// Whether the files must be loaded: they have changed, someone has ordered it, they cannot be
    /// read any more (loading them then says why), or they are back after that.
    pub fn is_due(&mut self, is_ordered: bool) -> bool {
        if is_ordered {
            self.watch.catch_up();
            // An ordered load says itself that they are gone.
            let is_gone = self.watch.look() == Look::Gone;
            self.gone = if is_gone { GONE + 1 } else { 0 };
            return true;
        }
        let look = self.watch.look();
        let was_gone = self.gone >= GONE;
        self.gone = match look {
            Look::Gone => (self.gone + 1).min(GONE + 1),
            _ => 0,
        };
        match look {
            Look::Changed => true,
            Look::Gone => self.gone == GONE,
            Look::Same => was_gone,
            Look::Unsettled => false,
        }
    }
}

fn log_outcome(
    what: &str,
    done: Result<Option<usize>, impl std::error::Error>,
    counts: &[std::sync::atomic::AtomicU64; 2],
) {
    let [loaded, refused] = counts;
    match done {
        Ok(clients) => {
            loaded.fetch_add(1, Ordering::Relaxed);
            tracing::info!(clients, "{what} loaded");
        }
        Err(error) => {
            refused.fetch_add(1, Ordering::Relaxed);
            tracing::error!(%error, "{what} rejected; the previous one stays in force");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn followed(path: &Path) -> Followed {
        let paths = vec![path.to_owned()];
        Followed::new(Watch::new(move || Some(paths.clone()), MAX_BYTES))
    }

    #[test]
    fn a_file_that_stays_away_is_due_once_and_again_when_it_is_back() {
        let path = std::env::temp_dir().join(format!("tidegate-followed-{}", std::process::id()));
        fs::write(&path, "one").unwrap();
        let mut followed = followed(&path);
        assert!(!followed.is_due(false));
        fs::remove_file(&path).unwrap();
        let mut looks = || (0..20).filter(|_| followed.is_due(false)).count();
        assert_eq!(looks(), 1, "its absence is one report");
        fs::write(&path, "one").unwrap();
        assert_eq!(looks(), 1, "the same contents end the report");
        // A replacement takes a moment.
        fs::remove_file(&path).unwrap();
        assert!((1..GONE).all(|_| !followed.is_due(false)));
        fs::write(&path, "one").unwrap();
        assert!((0..20).all(|_| !followed.is_due(false)));
        // An ordered load has said so itself.
        fs::remove_file(&path).unwrap();
        assert!(followed.is_due(true));
        assert!((0..20).all(|_| !followed.is_due(false)));
        fs::write(&path, "two").unwrap();
        assert_eq!((0..20).filter(|_| followed.is_due(false)).count(), 1);
        fs::remove_file(&path).unwrap();
    }
}
