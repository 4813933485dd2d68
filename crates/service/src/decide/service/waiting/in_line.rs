//! The future of a caller that waits in line.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Part, Refusal, Service};
use crate::decide::waits::{LimitWaits, WaitOutcome};

/// A wait within the bounds, as long as the limits are in force and the server does not stop.
// Not an async function: its future would hold its arguments twice.
pub(super) struct InLine<'a, W> {
    service: &'a Service,
    parts: &'a [Part<'a>],
    wait: W,
    /// The number of the last change after which it looked whether it may wait.
    seen: u64,
    place: Option<usize>,
    outcome: WaitOutcome,
}

impl Service {
    /// Waits in line.
    ///
    /// # Errors
    /// If the request cannot wait, or no longer: see [`Refusal`].
    pub(super) fn in_line<'a, W>(
        &'a self,
        parts: &'a [Part<'a>],
        wait: W,
    ) -> Result<InLine<'a, W>, Refusal> {
        // First, so that the caller sees a change after the check.
        let seen = self.waits.changes();
        self.may_wait(parts)?;
        Ok(InLine {
            service: self,
            parts,
            wait,
            seen,
            place: None,
            outcome: WaitOutcome::Left,
        })
    }
}

impl<W> InLine<'_, W> {
    /// Where the caller is counted.
    fn keys(&self) -> impl Iterator<Item = (&LimitWaits, &str, u64)> + Clone {
        let enforced = self.parts.iter().filter(|part| part.is_enforced());
        enforced.map(|part| {
            let limit = &part.limit;
            let tag = limit.limiter().hash_keys().tag(part.key);
            (&limit.memory.waits, limit.spec().name.as_str(), tag)
        })
    }
}

impl<T, E, W: Future<Output = Result<T, E>> + Unpin> Future for InLine<'_, W> {
    type Output = Result<Result<T, E>, Refusal>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let caller = self.get_mut();
        let waits = &caller.service.waits;
        loop {
            let changes = waits.changes();
            if mem::replace(&mut caller.seen, changes) != changes
                && let Err(refusal) = caller.service.may_wait(caller.parts)
            {
                caller.outcome = WaitOutcome::Ended;
                return Poll::Ready(Err(refusal));
            }
            if let Poll::Ready(done) = Pin::new(&mut caller.wait).poll(cx) {
                caller.outcome = if done.is_ok() {
                    WaitOutcome::Admitted
                } else {
                    WaitOutcome::Denied
                };
                return Poll::Ready(Ok(done));
            }
            match caller.place {
                // Most requests wait for nothing, and need no place.
                None => caller.place = Some(waits.enter(caller.keys(), cx.waker())?),
                Some(place) => waits.wake_by(place, cx.waker()),
            }
            if waits.changes() == changes {
                return Poll::Pending;
            }
        }
    }
}

impl<W> Drop for InLine<'_, W> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let keys = self.keys().map(|(limit, _, tag)| (limit, tag));
            self.service.waits.leave(place, keys, self.outcome);
        }
    }
}
