//! A circuit breaker by itself.

use std::{fmt, future::Future};

use crate::{
    Blocked, BreakerState, Gate, Guard, Resource, Timer,
    rules::{BreakerRule, LoadError, Rules, Target},
};

/// A circuit breaker for programs that need nothing else of a gate: one resource with one rule,
/// which give it its name. A clone is a handle to the same breaker.
///
/// ```
/// use std::time::Duration;
/// use tidegate_flow::{Breaker, CallError, rules::{BreakerRule, Trip}};
///
/// let payments = Breaker::new(
///     BreakerRule::new("payments", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5)).min_calls(2),
/// )?;
/// assert_eq!(payments.call(|| "12".parse::<u32>())?, 12);
/// for _ in 0..2 {
///     assert!(matches!(payments.call(|| "twelve".parse::<u32>()), Err(CallError::Failed(_))));
/// }
/// // Two of three calls have failed: the breaker is open, and does not run this one.
/// assert!(matches!(payments.call(|| "13".parse::<u32>()), Err(CallError::Open(_))));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Breaker {
    resource: Resource,
}

/// Why [`Breaker::call`] has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError<E> {
    /// The breaker is open, so the call did not run. [`Blocked::retry_after`] is the time until a
    /// probe may run.
    #[error(transparent)]
    Open(Blocked),
    /// The error of the call.
    #[error(transparent)]
    Failed(E),
}

impl Breaker {
    /// Creates a breaker that uses the system clock.
    ///
    /// # Errors
    /// If the rule is invalid.
    pub fn new(rule: BreakerRule) -> Result<Self, LoadError> {
        Self::of(&Gate::new(), rule)
    }

    /// Creates a breaker with another clock, such as a [`ManualTimer`](crate::ManualTimer) in
    /// tests.
    ///
    /// # Errors
    /// If the rule is invalid.
    pub fn with_timer(rule: BreakerRule, timer: impl Timer + 'static) -> Result<Self, LoadError> {
        Self::of(&Gate::builder().timer(timer).build(), rule)
    }

    fn of(gate: &Gate, rule: BreakerRule) -> Result<Self, LoadError> {
        let name = rule.resource.as_str().to_owned();
        let rule = BreakerRule {
            resource: Target::Name(name.clone()),
            ..rule
        };
        gate.load(Rules {
            breakers: vec![rule],
            ..Rules::default()
        })?;
        Ok(Self {
            resource: gate.resource(&name),
        })
    }

    /// Runs `call` unless the breaker is open, and records whether it fails and how long it takes.
    /// A call that panics fails.
    ///
    /// # Errors
    /// [`CallError::Open`] if the breaker does not admit the call, otherwise the call's own error.
    pub fn call<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, CallError<E>> {
        let mut guard = self.enter().map_err(CallError::Open)?;
        let result = call();
        if result.is_err() {
            guard.mark_failed();
        }
        result.map_err(CallError::Failed)
    }

    /// The same for a future. Dropping it before its end cancels the call, which the breaker then
    /// ignores.
    ///
    /// # Errors
    /// The same as [`call`](Self::call).
    pub async fn call_async<T, E>(
        &self,
        call: impl Future<Output = Result<T, E>>,
    ) -> Result<T, CallError<E>> {
        let guard = self.enter().map_err(CallError::Open)?;
        guard
            .run(call, Result::is_err)
            .await
            .map_err(CallError::Failed)
    }

    /// Admits a call that ends when the guard is dropped, for a failure that only the caller can
    /// see: mark it with [`Guard::mark_failed`].
    ///
    /// # Errors
    /// If the breaker is open, or all of its probes are in flight.
    pub fn enter(&self) -> Result<Guard<'_>, Blocked> {
        self.resource.enter()
    }

    /// Returns the state. An open breaker whose open time has passed stays open until a call probes
    /// it.
    #[must_use]
    pub fn state(&self) -> BreakerState {
        self.resource
            .breakers()
            .first()
            .map_or(BreakerState::Closed, |(_, state)| *state)
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Breaker")
            .field("name", &self.resource.name())
            .field("state", &self.state())
            .finish()
    }
}
