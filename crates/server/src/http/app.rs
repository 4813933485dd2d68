//! What the handlers of all paths share.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::sync::{Semaphore, mpsc};

use crate::{
    access::Door,
    metrics::{Events, Metrics},
    rate_limits::RateLimits,
    reload::ReloadOrder,
    rules_file::RulesFile,
    service::Service,
};

/// What the handlers of all paths share.
pub(crate) struct App {
    pub service: Arc<Service>,
    /// Decides on descriptors.
    pub rates: Arc<RateLimits>,
    pub metrics: Metrics,
    pub events: Arc<Events>,
    /// What clients may do: of the data plane, and of the control plane.
    pub doors: [Door; 2],
    /// The rules as they are written.
    pub rules_file: Arc<RulesFile>,
    /// Takes orders to load the rules again.
    pub reload: mpsc::Sender<ReloadOrder>,
    /// Whether new work is welcome: not any more once the server stops.
    pub ready: AtomicBool,
    /// Has one place: who reads the trace takes as much memory again.
    pub trace_readers: Arc<Semaphore>,
    /// The origins whose web pages may ask.
    pub origins: Vec<String>,
}
