//! The clock of a gate, and sleeping by it.

use std::{future::Future, pin::Pin, sync::Arc};

use tidegate_core::Nanos;
use tidegate_core::{
    Clock,
    clock::{SystemClock, Timer},
};

/// A future that completes at a given time.
pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The clock of a gate. The system clock needs no virtual call; any other clock does.
pub(crate) enum GateTimer {
    System(SystemClock),
    Other(Arc<dyn AnyTimer>),
}

impl Default for GateTimer {
    fn default() -> Self {
        Self::System(SystemClock::new())
    }
}

impl GateTimer {
    #[inline]
    pub(crate) fn now(&self) -> Nanos {
        match self {
            Self::System(clock) => clock.now(),
            Self::Other(timer) => timer.now(),
        }
    }

    pub(crate) fn sleep_until(&self, at: Nanos) -> Sleep {
        match self {
            Self::System(clock) => clock.boxed_sleep(at),
            Self::Other(timer) => timer.boxed_sleep(at),
        }
    }
}

/// A [`Timer`] behind a pointer.
pub(crate) trait AnyTimer: Clock {
    fn boxed_sleep(&self, at: Nanos) -> Sleep;
}

impl<T: Timer + 'static> AnyTimer for T {
    fn boxed_sleep(&self, at: Nanos) -> Sleep {
        Box::pin(self.sleep_until(at))
    }
}
