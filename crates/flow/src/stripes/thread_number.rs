//! A number for each thread, which selects its stripe.

use std::{
    cell::Cell,
    sync::atomic::{AtomicUsize, Ordering},
};

thread_local!(static NUMBER: Cell<Option<usize>> = const { Cell::new(None) });

/// Returns the number of the calling thread. Threads that start one after another have different stripes.
#[inline]
pub(super) fn thread_number() -> usize {
    NUMBER.with(|number| number.get().unwrap_or_else(|| choose(number)))
}

#[cold]
fn choose(number: &Cell<Option<usize>>) -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // Relaxed: only the numbers must differ.
    let mine = NEXT.fetch_add(1, Ordering::Relaxed);
    number.set(Some(mine));
    mine
}

/// Lets one thread take the part of several.
#[cfg(all(test, not(loom)))]
pub(crate) fn set_thread_number(mine: usize) {
    NUMBER.with(|number| number.set(Some(mine)));
}
