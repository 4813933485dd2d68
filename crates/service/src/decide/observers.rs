//! The trace and the clock that limits report their decisions to.

use std::{fmt, sync::Arc};

use tidegate_core::Clock;

use crate::decide::thresholds::OnThreshold;
use crate::observe::{trace::Trace, usage::Ledger};

/// The trace and the clock that limits report their decisions to, in addition to their counters.
#[derive(Clone, Default)]
pub struct DecisionObservers {
    /// Keeps the requests of a sample of the keys.
    pub trace: Option<Arc<Trace>>,
    /// With it, limits measure how long a sample of their decisions took.
    pub clock: Option<Arc<dyn Clock>>,
    /// Keeps what each key uses.
    pub usage: Option<Arc<Ledger>>,
    /// Gets each threshold that a key reaches.
    pub on_threshold: Option<OnThreshold>,
}

impl fmt::Debug for DecisionObservers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DecisionObservers")
            .field("trace", &self.trace)
            .finish_non_exhaustive()
    }
}
