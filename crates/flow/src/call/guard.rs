//! Guards: each one represents a call in flight, which ends when its guard is dropped.

use std::{error::Error, fmt, future::Future, time::Duration};

use tidegate_core::clock::block_on;

use crate::call::{
    failure::FailureCheck,
    leave::leave,
    pass::{Outcome, Pass},
    resource::Resource,
    timer::Sleep,
};

macro_rules! guard {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)?, $resource:ty) => {
        $(#[$doc])*
        #[must_use = "dropping the guard ends the call at once"]
        pub struct $name $(<$life>)? {
            resource: $resource,
            pass: Pass,
        }

        impl $(<$life>)? $name $(<$life>)? {
            #[inline]
            pub(crate) const fn new(resource: $resource, pass: Pass) -> Self {
                Self { resource, pass }
            }

            /// Returns the resource that was entered.
            #[must_use]
            pub fn resource(&self) -> &Resource {
                &self.resource
            }

            /// Returns how long the call must wait before it proceeds. It is zero unless a rule
            /// throttles or a prioritized call borrowed units. The caller has to wait;
            /// [`Entry::enter_async`](crate::Entry::enter_async) waits automatically.
            #[must_use]
            pub const fn delay(&self) -> Duration {
                Duration::from_nanos(self.pass.delay)
            }

            /// Returns the sleep until the call may proceed, if it has to wait.
            pub(crate) fn sleep(&self) -> Option<Sleep> {
                (self.pass.delay > 0).then(|| self.resource.state.shared.timer.sleep_until(self.pass.started))
            }

            /// Blocks the thread until the delay is over. Intended for synchronous callers.
            pub fn wait(&mut self) {
                if let Some(sleep) = self.sleep() {
                    self.pass.delay = 0;
                    block_on(sleep);
                }
            }

            /// Marks the call as failed: it counts as an exception, and breakers record it. A
            /// [`Blocked`](crate::Blocked) error, which comes from a nested resource, does not
            /// count as a failure of this one.
            pub fn fail(&mut self, error: &(dyn Error + 'static)) {
                self.pass.fail(error);
            }

            /// Marks the call as failed with any error.
            pub fn mark_failed(&mut self) {
                self.pass.outcome = Outcome::Failed;
            }

            /// Ends the call and returns `result`. An error is handled as in [`fail`](Self::fail).
            ///
            /// # Errors
            /// The error of the call itself.
            pub fn done<T, E: Error + 'static>(mut self, result: Result<T, E>) -> Result<T, E> {
                if let Err(error) = &result {
                    self.fail(error);
                }
                result
            }

            /// Cancels the call, which then says nothing about the resource: breakers ignore it,
            /// and a probe returns its permit. In the statistics the call has ended, with the time
            /// it took.
            pub fn cancel(mut self) {
                self.pass.outcome = Outcome::Cancelled;
            }

            /// For the expansion of `#[guard]`, which names no crate.
            #[doc(hidden)]
            #[must_use]
            pub const fn failure_check(&self) -> FailureCheck {
                FailureCheck
            }

            /// Runs a future as this call. `failed` decides from the output whether the call
            /// failed. If the future is dropped before it completes, the call is cancelled.
            pub async fn run<F: Future>(mut self, call: F, failed: impl FnOnce(&F::Output) -> bool) -> F::Output {
                self.pass.outcome = Outcome::Cancelled;
                let output = call.await;
                self.pass.outcome = if failed(&output) { Outcome::Failed } else { Outcome::Well };
                output
            }
        }

        impl $(<$life>)? Drop for $name $(<$life>)? {
            #[inline]
            fn drop(&mut self) {
                leave(&self.resource, &mut self.pass);
            }
        }

        impl $(<$life>)? fmt::Debug for $name $(<$life>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("resource", &self.resource.name()).finish_non_exhaustive()
            }
        }
    };
}

guard!(
    /// A call in flight. It ends when the guard is dropped. It counts as successful unless it was
    /// marked as failed or the thread is panicking.
    Guard<'a>, &'a Resource
);
guard!(
    /// Same as [`Guard`], but without a borrow, so that it can move to another thread or task.
    OwnedGuard, Resource
);
