//! Whether a server should get requests, as far as its store and its rules are concerned.

use tidegate_redis::{Health, OnError};

use super::Service;

/// Whether the store and the rules let a server work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The server has no store, or its store is up.
    Ready,
    /// The server stops soon.
    Stopping,
    /// The store, or a part of it, does not reply, and every limit continues without it as its
    /// `on_error` says.
    Degraded {
        /// How much of it is affected.
        health: Health,
        /// Its last error.
        why: String,
    },
    /// The rules lack what the options demand: a rule for Envoy.
    NoRules,
    /// The store does not reply at all, and this limit admits nothing until it does.
    Closed {
        /// The first such limit.
        limit: String,
        /// The store's last error.
        why: String,
    },
}

impl Service {
    /// Whether the store and the rules let this server work. If a cluster fails in part, most keys
    /// are decided normally: that counts as degraded, with any `on_error`.
    pub fn readiness(&self) -> Readiness {
        if self.is_stopping() {
            return Readiness::Stopping;
        }
        if self.needs.is_some_and(|suffice| !suffice(&self.in_force())) {
            return Readiness::NoRules;
        }
        let health = self
            .store()
            .map_or(Health::Up, |shared| shared.store().health());
        if health == Health::Up {
            return Readiness::Ready;
        }
        let trouble = self.store().and_then(|shared| shared.store().trouble());
        let why = trouble.map_or_else(
            || "it has not been reached yet".to_owned(),
            |error| error.to_string(),
        );
        let limits = self.limits();
        // A store that replies too late has the same effect.
        let unanswered = matches!(health, Health::Down | Health::Slow);
        let closed = |on_error| unanswered && on_error == Some(OnError::Closed);
        match limits
            .limits()
            .iter()
            .find(|limit| closed(limit.spec().sharing.on_error))
        {
            Some(limit) => Readiness::Closed {
                limit: limit.spec().name.clone(),
                why,
            },
            None => Readiness::Degraded { health, why },
        }
    }
}

/// A store's health, as `/readyz` and the overview name it.
pub fn health_name(health: Health) -> &'static str {
    match health {
        Health::Up => "up",
        Health::Slow => "slow",
        Health::Partly => "partly down",
        Health::Down => "down",
    }
}
