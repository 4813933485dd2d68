//! The ways into a resource.

use crate::{
    admit::{admit, admit_plain},
    blocked::Blocked,
    entry::Entry,
    guard::{Guard, OwnedGuard},
    pass::Pass,
    resource::Resource,
};

impl Resource {
    /// An entry with options: a count, an origin, arguments, and so on.
    pub fn entry(&self) -> Entry<'_> {
        Entry::new(self.placed())
    }

    /// Enters with one unit, outbound: see [`Gate::enter`](crate::Gate::enter).
    ///
    /// # Errors
    /// When a rule blocks.
    #[inline]
    pub fn enter(&self) -> Result<Guard<'_>, Blocked> {
        let placed = self.placed();
        admit_plain(placed, 1, false).map(|pass| Guard::new(placed, pass))
    }

    /// As [`enter`](Self::enter), with a guard that borrows nothing.
    ///
    /// # Errors
    /// When a rule blocks.
    pub fn enter_owned(&self) -> Result<OwnedGuard, Blocked> {
        self.entry().enter_owned()
    }
}

impl<'a> Entry<'a> {
    /// Enters. The guard leaves when it is dropped; the call may go ahead after [`Guard::delay`].
    ///
    /// # Errors
    /// When a rule blocks.
    #[inline]
    pub fn enter(self) -> Result<Guard<'a>, Blocked> {
        self.admit().map(|pass| Guard::new(self.resource, pass))
    }

    /// As [`enter`](Self::enter), with a guard that borrows nothing.
    ///
    /// # Errors
    /// When a rule blocks.
    pub fn enter_owned(self) -> Result<OwnedGuard, Blocked> {
        self.admit().map(|pass| OwnedGuard::new(self.resource.clone(), pass))
    }

    /// Enters, and is ready when the call may go ahead: a throttle's delay is slept out without blocking the thread, on
    /// the gate's timer, whatever the async runtime is.
    ///
    /// Dropping the future while it sleeps gives up the call: it is in flight no more, and a breaker's probe gives its
    /// place back. The throttle's place stays empty.
    ///
    /// # Errors
    /// When a rule blocks, at once.
    pub async fn enter_async(self) -> Result<OwnedGuard, Blocked> {
        Ok(self.enter_owned()?.ready().await)
    }

    #[inline]
    fn admit(&self) -> Result<Pass, Blocked> {
        let Self { origin: None, context: None, prioritized: false, .. } = self else { return admit(self) };
        if self.args.is_empty() && self.named.is_empty() {
            admit_plain(self.resource, self.units, self.inbound)
        } else {
            admit(self)
        }
    }
}

impl OwnedGuard {
    /// Waits until the call may go ahead (see [`delay`](Self::delay)), as [`Entry::enter_async`] does: dropping the future
    /// gives up the call.
    pub async fn ready(self) -> Self {
        let Some(sleep) = self.sleep() else { return self };
        let waiting = Waiting(Some(self));
        sleep.await;
        waiting.done()
    }
}

/// A guard whose call has not begun: dropped so, it is cancelled.
struct Waiting(Option<OwnedGuard>);

impl Waiting {
    fn done(mut self) -> OwnedGuard {
        self.0.take().unwrap_or_else(|| unreachable!("taken once, here"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.cancel();
        }
    }
}
