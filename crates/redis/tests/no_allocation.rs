//! What a decision from a piece allocates: nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use tidegate_core::{Policy, Quota};
use tidegate_redis::{Mode, Source, Store};
use tidegate_redis_servers::{PATIENCE, Server};

thread_local! {
    /// Allocations of this thread: the store's tasks run on others, and allocate when they like.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count() {
        // A thread that ends has no counter left, and none of interest.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
    }
}

// SAFETY: hands every call on to the system's allocator, unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: as the caller promises.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// The caller's future runs on the test's own thread; everything else on the workers.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_decision_from_a_piece_or_a_remembered_denial_allocates_nothing() {
    let server = Server::start(&[]);
    let store = Store::open(&server.address()).expect("the address is well formed");
    let limit = |name, quota: &str| {
        let quota: Quota = quota.parse().expect("the quota is well formed");
        let limit = store.limit(name, Policy::sliding_window(quota)).mode(Mode::Leased);
        limit.slack(Duration::from_mins(5)).deadline(PATIENCE).build().expect("the policy can be shared")
    };
    for (limit, wanted) in
        [(limit("large", "1000000/1h"), Source::Lease), (limit("small", "1/1h"), Source::Remembered)]
    {
        let mut free = 0;
        for _ in 0..5_000 {
            let before = ALLOCATIONS.get();
            let answer = limit.acquire("a key", 1).await;
            // A few renew the piece, for which a task is made.
            free += u32::from(answer.source == wanted && ALLOCATIONS.get() == before);
        }
        assert!(free > 2_500, "{free} decisions that allocate nothing, of {wanted:?}");
    }
}
