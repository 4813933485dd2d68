//! The state that all handlers share.

use std::sync::{Arc, atomic::AtomicBool};

use tokio::sync::mpsc;

use crate::{
    access::Door,
    metrics::{Events, Metrics},
    rate_limits::RateLimits,
    reload::ReloadOrder,
    service::Service,
    telemetry::Telemetry,
};

/// The state that all handlers share.
pub(crate) struct App {
    pub service: Arc<Service>,
    /// Decides on descriptors.
    pub rates: Arc<RateLimits>,
    pub metrics: Metrics,
    pub events: Arc<Events>,
    /// What clients may do on the data plane and on the control plane.
    pub doors: [Door; 2],
    /// Receives requests to reload the rules.
    pub reload: mpsc::Sender<ReloadOrder>,
    /// Whether the server accepts new work; false once it is stopping.
    pub ready: AtomicBool,
    /// The web origins that may send requests.
    pub origins: Vec<String>,
    /// Follows requests; `None` where nobody wants that.
    pub telemetry: Option<Arc<Telemetry>>,
}
