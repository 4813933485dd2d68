//! The control plane: its paths (`api`), and its pages for people (`pages`).

mod api;
pub(crate) mod pages;
mod rules_thread;
mod scrapes;

use std::sync::Arc;

use tidegate_service::{
    flow::Flow,
    observe::metrics::{Events, Metrics},
    rules::{file::RulesFile, reload::ReloadOrder},
};
use tokio::sync::{Semaphore, mpsc};

use self::pages::Streams;
pub(crate) use self::{rules_thread::RulesThread, scrapes::Scrapes};
use crate::edges::http::App;

/// The state that all handlers and pages share.
pub(crate) struct ControlPlane {
    /// The state that they share with the data plane.
    pub app: Arc<App>,
    pub metrics: Arc<Metrics>,
    pub scrapes: Scrapes,
    pub events: Arc<Events>,
    /// The reports of programs about their resources, and the rules for them.
    pub flow: Arc<Flow>,
    pub rules_file: Arc<RulesFile>,
    /// Receives requests to reload the rules.
    pub reload: mpsc::Sender<ReloadOrder>,
    /// The pages that get updates.
    pub streams: Streams,
    /// Has one permit: a reader of the trace needs as much memory as the trace.
    pub trace_readers: Arc<Semaphore>,
    /// Reads the rules that clients send.
    pub rules_thread: RulesThread,
}
