//! The methods that enter a resource.

use crate::{
    call::{
        admit::{admit, admit_plain},
        entry::Entry,
        guard::{Guard, OwnedGuard},
        pass::Pass,
        resource::Resource,
    },
    rules::blocked::Blocked,
};

impl Resource {
    /// Returns an entry with options: a count, an origin, arguments, and so on.
    pub fn entry(&self) -> Entry<'_> {
        Entry::new(self.placed())
    }

    /// Enters with one outbound unit: see [`Gate::enter`](crate::Gate::enter).
    ///
    /// # Errors
    /// [`Blocked`] if a rule blocks the entry.
    #[inline]
    pub fn enter(&self) -> Result<Guard<'_>, Blocked> {
        let placed = self.placed();
        admit_plain(placed, 1, false).map(|pass| Guard::new(placed, pass))
    }

    /// Same as [`enter`](Self::enter), but returns a guard that borrows nothing.
    ///
    /// # Errors
    /// [`Blocked`] if a rule blocks the entry.
    pub fn enter_owned(&self) -> Result<OwnedGuard, Blocked> {
        self.entry().enter_owned()
    }
}

impl<'a> Entry<'a> {
    /// Enters. The guard exits when it is dropped. The call may proceed after [`Guard::delay`].
    ///
    /// # Errors
    /// [`Blocked`] if a rule blocks the entry.
    #[inline]
    pub fn enter(self) -> Result<Guard<'a>, Blocked> {
        self.admit().map(|pass| Guard::new(self.resource, pass))
    }

    /// Same as [`enter`](Self::enter), but returns a guard that borrows nothing.
    ///
    /// # Errors
    /// [`Blocked`] if a rule blocks the entry.
    pub fn enter_owned(self) -> Result<OwnedGuard, Blocked> {
        self.admit()
            .map(|pass| OwnedGuard::new(self.resource.clone(), pass))
    }

    /// Enters, and completes when the call may proceed. It sleeps for the delay on the gate's timer
    /// without blocking the thread, and works with every async runtime.
    ///
    /// Dropping the future while it sleeps cancels the call: it is no longer in flight, and a
    /// breaker's probe returns its permit. The reserved place in a throttle stays unused.
    ///
    /// # Errors
    /// [`Blocked`] if a rule blocks the entry; the future returns it without waiting.
    pub async fn enter_async(self) -> Result<OwnedGuard, Blocked> {
        Ok(self.enter_owned()?.ready().await)
    }

    #[inline]
    fn admit(&self) -> Result<Pass, Blocked> {
        let Self {
            origin: None,
            context: None,
            prioritized: false,
            ..
        } = self
        else {
            return admit(self);
        };
        if self.args.is_empty() && self.named.is_empty() {
            admit_plain(self.resource, self.units, self.inbound)
        } else {
            admit(self)
        }
    }
}

impl OwnedGuard {
    /// Waits until the call may proceed (see [`delay`](Self::delay)), as [`Entry::enter_async`]
    /// does. Dropping the future cancels the call.
    pub async fn ready(self) -> Self {
        let Some(sleep) = self.sleep() else {
            return self;
        };
        let waiting = Waiting(Some(self));
        sleep.await;
        waiting.done()
    }
}

/// A guard whose call has not begun. Dropping it cancels the call.
struct Waiting(Option<OwnedGuard>);

impl Waiting {
    fn done(mut self) -> OwnedGuard {
        self.0
            .take()
            .unwrap_or_else(|| unreachable!("taken once, here"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.cancel();
        }
    }
}
