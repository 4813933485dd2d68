use std::{any::Any, fmt, ops::Deref, sync::Arc};

use arc_swap::Guard;

use crate::{decide::limits::Limits, observe::metrics::Sink};

/// The limits that a server enforces, and what protocols keep about some of them. Replaced as a
/// whole when the rules change.
pub struct InForce {
    pub limits: Limits,
    attached: Vec<Box<dyn Attached>>,
}

/// Knowledge of a protocol about limits, such as a tree of Envoy's descriptors that lead to them. It
/// comes into force, and goes, together with them.
pub trait Attached: Any + Send + Sync {
    /// Reports its counters.
    fn report(&self, _: &mut dyn Sink) -> fmt::Result {
        Ok(())
    }
}

impl InForce {
    /// These limits, and what protocols keep about them: at most one value of each type.
    pub fn new(limits: Limits, attached: Vec<Box<dyn Attached>>) -> Self {
        Self { limits, attached }
    }

    /// The attached value of this type.
    #[inline]
    pub fn attached<T: Attached>(&self) -> Option<&T> {
        let mut all = self.attached.iter();
        all.find_map(|attached| (&**attached as &dyn Any).downcast_ref())
    }

    /// Reports the counters of everything that is attached.
    pub(in crate::decide) fn report_attached(&self, sink: &mut dyn Sink) -> fmt::Result {
        self.attached
            .iter()
            .try_for_each(|attached| attached.report(sink))
    }
}

/// Limits with nothing attached.
impl From<Limits> for InForce {
    fn from(limits: Limits) -> Self {
        Self::new(limits, Vec::new())
    }
}

/// The limits in force when this was created. They stay in memory while it is held, even if the
/// rules change.
pub struct CurrentLimits(pub(super) Guard<Arc<InForce>>);

impl Deref for CurrentLimits {
    type Target = Limits;

    #[inline]
    fn deref(&self) -> &Limits {
        &self.0.limits
    }
}
