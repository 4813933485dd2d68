//! The resources that a control plane has sent.

use crate::config::load::Text;
use parking_lot::Mutex;

/// The configurations of Envoy's rate limit service that a control plane has sent.
#[derive(Debug, Default)]
pub struct Discovered(Mutex<Vec<Text>>);

impl Discovered {
    /// Replaces the resources, and returns those before.
    #[cfg(feature = "grpc")]
    pub fn replace(&self, texts: Vec<Text>) -> Vec<Text> {
        std::mem::replace(&mut self.0.lock(), texts)
    }

    pub fn texts(&self) -> Vec<Text> {
        self.0.lock().clone()
    }
}
