//! What a caller that waits keeps allocated. This is a separate test binary because it counts the
//! whole process.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Waker},
};

use tidegate_limiter::{KeyedLimiter, Nanos, Policy, Quota, Request, wait_all};

/// Counts the bytes in use, with what an allocator adds: 8 bytes each, in steps of 16.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn chunk(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

#[allow(unsafe_code, reason = "the trait is unsafe; all calls are passed on")]
// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(chunk(layout), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(chunk(layout), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

const CALLERS: usize = 100_000;

/// The bytes of each of many callers, with its future.
fn bytes_each<'a, F: Future + 'a>(wait: impl Fn(usize) -> F) -> usize {
    let mut callers: Vec<Pin<Box<F>>> = Vec::with_capacity(CALLERS);
    let before = BYTES.load(Ordering::Relaxed);
    for number in 0..CALLERS {
        let mut caller = Box::pin(wait(number));
        let polled = caller
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        callers.push(caller);
    }
    let each = (BYTES.load(Ordering::Relaxed) - before) / CALLERS;
    drop(callers);
    // The timer's thread and the tables of lines keep some.
    let stay = BYTES.load(Ordering::Relaxed).saturating_sub(before);
    assert!(stay < each * CALLERS / 4, "{stay} bytes stay");
    each
}

#[test]
fn a_hundred_thousand_callers_take_few_bytes_each() {
    let policy = Policy::token_bucket(Quota::per_hour(1));
    let limiter = KeyedLimiter::new(policy).unwrap();
    let _used = limiter.acquire("a", 1);
    let deadline = Some(Nanos::new(u64::MAX - 1));
    let one_key = bytes_each(|_| limiter.wait("a", 1, deadline));
    let request = [Request::keyed(&limiter, b"a", 1)];
    let all_of_one = bytes_each(|_| wait_all(&request, deadline));
    for key in 0..CALLERS {
        let _used = limiter.acquire(key as u64, 1);
    }
    let own_keys = bytes_each(|key| limiter.wait(key as u64, 1, deadline));
    println!("{one_key} in one line, {all_of_one} as wait_all, {own_keys} in a line of its own");
    assert!((200..=512).contains(&one_key), "{one_key}");
    assert!((200..=512).contains(&all_of_one), "{all_of_one}");
    assert!((200..=2_000).contains(&own_keys), "{own_keys}");
}
