//! The clock for a layer's waits: the clock of its limits.

use std::pin::Pin;

use tidegate_core::{Clock, Nanos};
use tidegate_limiter::{KeyedLimiter, Limiter, SystemClock, Timer};

pub(crate) type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(crate) trait Time: Send + Sync {
    fn now(&self) -> Nanos;
    fn sleep_until(&self, at: Nanos) -> Sleep;
}

impl<C: Timer + 'static> Time for KeyedLimiter<C> {
    fn now(&self) -> Nanos {
        self.clock().now()
    }

    fn sleep_until(&self, at: Nanos) -> Sleep {
        Box::pin(self.clock().sleep_until(at))
    }
}

impl<C: Timer + 'static> Time for Limiter<C> {
    fn now(&self) -> Nanos {
        self.clock().now()
    }

    fn sleep_until(&self, at: Nanos) -> Sleep {
        Box::pin(self.clock().sleep_until(at))
    }
}

impl Time for SystemClock {
    fn now(&self) -> Nanos {
        Clock::now(self)
    }

    fn sleep_until(&self, at: Nanos) -> Sleep {
        Box::pin(Timer::sleep_until(self, at))
    }
}
