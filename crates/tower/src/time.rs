//! The clock for a layer's waits: the clock of its limits.

use std::pin::Pin;

use tidegate_core::Nanos;
use tidegate_limiter::Timer;

pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) trait Time: Send + Sync {
    fn now(&self) -> Nanos;
    fn sleep_until(&self, at: Nanos) -> Sleep;
}

impl<C: Timer> Time for C {
    fn now(&self) -> Nanos {
        tidegate_core::Clock::now(self)
    }

    fn sleep_until(&self, at: Nanos) -> Sleep {
        Box::pin(Timer::sleep_until(self, at))
    }
}
