//! Whether a server should be sent requests, as far as its store is concerned.

use tidegate_redis::{Health, OnError};

use super::Service;

/// Whether the store lets a server do its work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// There is no store, or it answers.
    Ready,
    /// The store (or a part of it) does not answer, and every limit goes on without it, by its `on_error`.
    Degraded {
        /// How much of it.
        health: Health,
        /// What it failed with last.
        why: String,
    },
    /// The store does not answer at all, and this limit admits nothing until it does.
    Closed {
        /// The first such limit.
        limit: String,
        /// What the store failed with last.
        why: String,
    },
}

impl Service {
    /// Whether the store lets this server do its work. Where a cluster fails in part, most keys are decided as ever: that
    /// is degraded, whatever the limits' `on_error`.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        let health = self.store().map_or(Health::Up, |shared| shared.store().health());
        if health == Health::Up {
            return Readiness::Ready;
        }
        let trouble = self.store().and_then(|shared| shared.store().trouble());
        let why = trouble.map_or_else(|| "it has not been reached yet".to_owned(), |error| error.to_string());
        let limits = self.limits();
        // One that answers too late denies as much.
        let unanswered = matches!(health, Health::Down | Health::Slow);
        let closed = |on_error| unanswered && on_error == Some(OnError::Closed);
        match limits.limits().iter().find(|limit| closed(limit.spec().sharing.on_error)) {
            Some(limit) => Readiness::Closed { limit: limit.spec().name.clone(), why },
            None => Readiness::Degraded { health, why },
        }
    }
}
