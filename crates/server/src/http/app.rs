//! What the handlers of all paths share.

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

/// What the handlers of all paths share.
pub(crate) struct App {
    pub service: Arc<Service>,
    /// Decides on descriptors.
    pub rates: Arc<RateLimits>,
    pub metrics: Metrics,
    pub events: Arc<Events>,
    /// What clients may do: of the data plane, and of the control plane.
    pub doors: [Door; 2],
    /// Takes orders to load the rules again.
    pub reload: mpsc::Sender<ReloadOrder>,
    /// Whether new work is welcome: not any more once the server stops.
    pub ready: AtomicBool,
    /// The origins whose web pages may ask.
    pub origins: Vec<String>,
    /// Follows requests; `None` where nobody wants that.
    pub telemetry: Option<Arc<Telemetry>>,
}
