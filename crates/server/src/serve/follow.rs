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
    let watch = |paths: Vec<PathBuf>| Watch::new(move || Some(paths.clone()), MAX_BYTES);
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
                && is_due(watch, is_ordered)
            {
                let done = tls.reload();
                log_outcome(
                    "certificates",
                    done.map(|()| None),
                    &counts.certificate_loads,
                );
            }
            if let Some(watch) = &mut watches.1
                && is_due(watch, is_ordered)
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

/// Whether files must be loaded: they have changed, or someone has ordered it.
pub(super) fn is_due(watch: &mut Watch, is_ordered: bool) -> bool {
    if is_ordered {
        watch.catch_up();
    }
    is_ordered || watch.look() == Look::Changed
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
