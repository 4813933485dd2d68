//! The control plane: its paths (`api`), and its pages for people (`pages`).

mod api;
mod chart;
mod conditions;
mod marks;
mod one_thread;
pub(crate) mod pages;
mod scrapes;

use std::sync::{Arc, atomic::Ordering};

use tidegate_chart::Mark;
use tidegate_listen::tls::Tls;
use tidegate_service::{
    flow::Flow,
    observe::metrics::{Events, Metrics},
    rules::{file::RulesFile, reload::ReloadOrder},
};
use tokio::sync::{Semaphore, mpsc};

use self::pages::Streams;
pub(crate) use self::{conditions::Conditions, marks::Marks};
pub(crate) use self::{one_thread::OneThread, scrapes::Scrapes};
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
    /// The conditions of the server as a whole.
    pub conditions: Conditions,
    /// The events that charts mark.
    pub marks: Marks,
    /// The certificates, if the server has TLS.
    pub tls: Option<Arc<Tls>>,
    /// The pages that get updates.
    pub streams: Streams,
    /// Has one permit: a reader of the trace needs as much memory as the trace.
    pub trace_readers: Arc<Semaphore>,
    /// Reads the rules that clients send.
    pub rules_thread: OneThread,
    /// For those who receive a text for that thread.
    pub rules_readers: Semaphore,
}

impl ControlPlane {
    /// The events that a chart of a limit, or of its key, marks; without a limit, those of all.
    pub fn marks_of(&self, limit: Option<&str>, key: Option<&str>) -> Vec<Mark> {
        let actions = self.app.service.audit.recent();
        self.marks
            .of(actions.iter().map(|action| &**action), limit, key)
    }

    /// Looks at what is wrong with the server, once a second.
    pub fn look_at_conditions(&self) {
        self.conditions.look(&conditions::Sources {
            service: &self.app.service,
            events: &self.events,
            tls: self.tls.as_deref(),
        });
        let loaded_at = self.events.rules_loaded_at.load(Ordering::Relaxed);
        let now = self.app.service.now().get();
        self.marks.look(&self.conditions.now(), loaded_at, now);
    }
}
