//! Guards: a call in flight, which leaves when its guard is dropped.

use std::{error::Error, fmt, future::Future, time::Duration};

use crate::{
    failure::FailureCheck,
    leave::leave,
    pass::{Outcome, Pass},
    resource::Resource,
    timer::{Sleep, block_on},
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

            /// The resource that was entered.
            #[must_use]
            pub fn resource(&self) -> &Resource {
                &self.resource
            }

            /// How long the call has to wait before it goes ahead: zero unless a rule throttles. The caller waits;
            /// [`Entry::enter_async`](crate::Entry::enter_async) does it by itself.
            #[must_use]
            pub const fn delay(&self) -> Duration {
                Duration::from_nanos(self.pass.delay)
            }

            /// The wait until the call may go ahead, if there is one.
            pub(crate) fn sleep(&self) -> Option<Sleep> {
                (self.pass.delay > 0).then(|| self.resource.state.shared.timer.sleep_until(self.pass.started))
            }

            /// Blocks the thread until the delay is over: for callers that are not async and have nothing else to do.
            pub fn wait(&mut self) {
                if let Some(sleep) = self.sleep() {
                    self.pass.delay = 0;
                    block_on(sleep);
                }
            }

            /// The call has failed: it counts as an exception, and breakers hear of it. An error that is a
            /// [`Blocked`](crate::Blocked) (of a resource further in) is no failure of this one.
            pub fn fail(&mut self, error: &(dyn Error + 'static)) {
                self.pass.fail(error);
            }

            /// The call has failed, whatever the error.
            pub fn mark_failed(&mut self) {
                self.pass.outcome = Outcome::Failed;
            }

            /// Reports how the call went, and returns it: an error is as with [`fail`](Self::fail).
            ///
            /// # Errors
            /// Those of the call.
            pub fn done<T, E: Error + 'static>(mut self, result: Result<T, E>) -> Result<T, E> {
                if let Err(error) = &result {
                    self.fail(error);
                }
                result
            }

            /// The call was given up and says nothing about the resource: breakers do not judge it, and a probe gives
            /// its place back. In the statistics it has ended, after the time it took.
            pub fn cancel(mut self) {
                self.pass.outcome = Outcome::Cancelled;
            }

            /// For `#[guard]`, which names no crate.
            #[doc(hidden)]
            #[must_use]
            pub const fn failure_check(&self) -> FailureCheck {
                FailureCheck
            }

            /// Runs a future as this call; `failed` says of its output whether the call has failed. If the future is
            /// dropped before it is ready, the call is cancelled.
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
    /// A call in flight. It ends when the guard is dropped: well, unless it was said to have failed or a panic is
    /// under way.
    Guard<'a>, &'a Resource
);
guard!(
    /// As [`Guard`], borrowing nothing: to be moved to another thread or task.
    OwnedGuard, Resource
);
