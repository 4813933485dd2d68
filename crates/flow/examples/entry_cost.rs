//! What an entry costs: `cargo run --release -p tidegate-flow --example entry_cost`, one JSON object a line.
//!
//! Each figure is the best of several rounds, as the least disturbed one is closest to what the code costs.

use std::{
    alloc::{GlobalAlloc, Layout as Memory, System},
    hint::black_box,
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tidegate_core::{
    Clock, Nanos,
    stats::{Event, Layout, Window},
};
use tidegate_flow::{
    Gate, Resource, SystemClock,
    rules::{BreakerRule, FlowRule, IsolationRule, Rules, SystemRule, Trip},
};

/// Counts allocations, and the bytes that are allocated.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

// SAFETY: hands every call on to the system's allocator, unchanged.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, memory: Memory) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(memory.size() as u64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(memory) }
    }

    unsafe fn dealloc(&self, at: *mut u8, memory: Memory) {
        BYTES.fetch_sub(memory.size() as u64, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, memory) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OPS: u64 = 1_000_000;
const ROUNDS: u32 = 9;

/// Nanoseconds of one call of `work`, on each of `threads` threads at once.
fn measure(clock: &SystemClock, threads: usize, work: impl Fn() + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let round = || {
        thread::scope(|scope| {
            let runs: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        barrier.wait();
                        let began = clock.now();
                        for _ in 0..OPS {
                            work();
                        }
                        clock.now().saturating_since(began).get()
                    })
                })
                .collect();
            runs.into_iter().map(|run| run.join().expect("no work panics")).max().unwrap_or(0)
        })
    };
    (0..ROUNDS).map(|_| round()).min().unwrap_or(0) as f64 / OPS as f64
}

fn print(work: &str, threads: usize, ns: f64) {
    println!(r#"{{"work":"{work}","who":"tidegate","threads":{threads},"ns_per_op":{ns:.1}}}"#);
}

fn gate(rules: Rules) -> (Gate, Resource) {
    let gate = Gate::new();
    gate.load(rules).expect("good rules");
    let resource = gate.resource("abc");
    (gate, resource)
}

fn main() {
    let clock = SystemClock::new();
    print(
        "clock-read",
        1,
        measure(&clock, 1, || {
            black_box(clock.now());
        }),
    );

    let window = Window::new(Layout::second());
    let whole = Layout::second().whole();
    for threads in [1, 2] {
        print("window-add", threads, measure(&clock, threads, || window.add(clock.now(), Event::Pass, 1)));
    }
    for slot in 0..10 {
        window.add(clock.now().saturating_add(Nanos::from_millis(slot * 100)), Event::Pass, 1);
    }
    let now = clock.now().saturating_add(Nanos::from_millis(900));
    print(
        "window-sum",
        1,
        measure(&clock, 1, || {
            black_box(window.sum(black_box(now), Event::Pass, whole));
        }),
    );

    let flow = || vec![FlowRule::new("abc", u32::MAX)];
    let breaker = BreakerRule::new("abc", Trip::ErrorRatio { ratio: 0.5 }, Duration::from_secs(5));
    let all = Rules {
        flow: flow(),
        isolation: vec![IsolationRule::new("abc", 1_000)],
        breakers: vec![breaker],
        system: vec![SystemRule { qps: Some(u64::MAX), in_flight: Some(1_000), ..SystemRule::default() }],
        ..Rules::default()
    };
    let works = [
        ("entry-exit-no-rule", Rules::default(), false),
        ("entry-exit", Rules { flow: flow(), ..Rules::default() }, false),
        ("entry-exit-four-kinds", all, true),
    ];
    for (work, rules, inbound) in works {
        let (_gate, resource) = gate(rules);
        let enter = || {
            let entry = resource.entry();
            let entry = if inbound { entry.inbound() } else { entry };
            drop(black_box(entry.enter()));
        };
        enter();
        for threads in [1, 2] {
            print(work, threads, measure(&clock, threads, enter));
        }
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        (0..1_000).for_each(|_| enter());
        let each = (ALLOCATIONS.load(Ordering::Relaxed) - before) / 1_000;
        println!(r#"{{"work":"{work}","who":"tidegate","threads":1,"allocations_per_op":{each}}}"#);
    }

    let (named, _resource) = gate(Rules { flow: flow(), ..Rules::default() });
    print(
        "entry-exit-by-name",
        1,
        measure(&clock, 1, || {
            drop(black_box(named.resource(black_box("abc")).enter()));
        }),
    );
    let (_gate, blocked) = gate(Rules { flow: vec![FlowRule::new("abc", 0)], ..Rules::default() });
    print(
        "entry-blocked",
        1,
        measure(&clock, 1, || {
            drop(black_box(blocked.enter()));
        }),
    );

    let many = Gate::new();
    let before = BYTES.load(Ordering::Relaxed);
    for n in 0..100_000 {
        drop(many.resource(&format!("resource {n}")).enter());
    }
    let bytes = (BYTES.load(Ordering::Relaxed) - before) / 100_000;
    println!(r#"{{"work":"resource-memory","who":"tidegate","keys":100000,"bytes_per_key":{bytes}}}"#);
}
