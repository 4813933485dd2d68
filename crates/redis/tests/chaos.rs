//! 24 faults of a store and of the network to it, while three nodes use up an exact, a leased and a
//! reported limit, or their callers wait in line. None of the limits is over, and every node is
//! answered by the store again when a fault has ended.
//!
//! Each fault comes once; `TIDEGATE_LONG=1` makes it five times.
#![cfg(feature = "servers")]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{Policy, Quota, algorithm::TokenBucket};
use tidegate_redis::{
    Health, LimitBuilder, Mode, OnError, Part, SharedDecision, SharedLimit, Source, Store,
};
use tidegate_redis_servers::{PATIENCE, Proxy, Reply, Server, eventually};
use tokio::{task::JoinHandle, time::Instant};

const LIMIT: u64 = 900;
const UNREPORTED: u64 = 45;
const MODES: [Mode; 3] = [Mode::Exact, Mode::Leased, Mode::Reported];
/// How long a fault lasts.
const LENGTH: Duration = Duration::from_millis(300);
const HOUR: i64 = 3_600;

/// A store, and three nodes with a proxy each.
struct World {
    server: Server,
    proxies: [Proxy; 3],
    nodes: Vec<Vec<SharedLimit>>,
}

impl World {
    fn start(limits: impl Fn(&Store) -> Vec<LimitBuilder>) -> Self {
        let server = Server::with_clock();
        let proxies = [(); 3].map(|()| Proxy::before(server.port()));
        let nodes = proxies.each_ref().map(|proxy| {
            let store = Store::open(&proxy.address()).expect("the address is well formed");
            eventually("the store is reached", || store.health() == Health::Up);
            let limits = limits(&store).into_iter().map(|limit| {
                let limit = limit
                    .on_error(OnError::Closed)
                    .deadline(Duration::from_millis(500));
                limit.build().expect("the policy can be shared")
            });
            limits.collect()
        });
        Self {
            server,
            proxies,
            nodes: nodes.into(),
        }
    }

    fn ask(&self, command: &str) -> Reply {
        self.server.ask(&command.split(' ').collect::<Vec<_>>())
    }

    fn each(&self, act: impl Fn(&Proxy)) {
        self.proxies.iter().for_each(act);
    }

    /// Another program writes to every key.
    fn overwrite(&self, command: &str) {
        let Reply::Array(keys) = self.ask("KEYS tidegate:*:*:hot") else {
            panic!("there are keys")
        };
        for key in keys {
            self.ask("PING");
            let words: Vec<&str> = command.split(' ').collect();
            self.server.ask(&["DEL", key.text()]);
            if let [name, value] = words[..] {
                self.server.ask(&[name, key.text(), value]);
            }
        }
    }
}

type Act = fn(&mut World);

/// A fault: its name, how often the store has its data from then on, how it begins, and how it
/// ends.
struct Fault(&'static str, u64, Act, Act);

const NOTHING: Act = |_| ();
/// Some 300 ms. On Valkey a loop until a time would never end: time stands still there while a
/// script runs.
const BUSY: &str = "for i = 1, 80000000 do end";

const FAULTS: [Fault; 24] = [
    Fault(
        "restart without its data",
        2,
        |world| world.server.kill(),
        |world| world.server.start_again(),
    ),
    Fault(
        "freeze",
        1,
        |world| world.server.freeze(),
        |world| world.server.thaw(),
    ),
    Fault(
        "freeze for longer than the deadline",
        1,
        |world| {
            world.server.freeze();
            std::thread::park_timeout(Duration::from_millis(700));
        },
        |world| world.server.thaw(),
    ),
    Fault("emptied", 2, |world| drop(world.ask("FLUSHALL")), NOTHING),
    Fault(
        "emptied in the background",
        2,
        |world| drop(world.ask("FLUSHALL ASYNC")),
        NOTHING,
    ),
    Fault(
        "scripts forgotten",
        1,
        |world| drop(world.ask("SCRIPT FLUSH")),
        NOTHING,
    ),
    Fault(
        "out of memory",
        1,
        |world| drop(world.ask("CONFIG SET maxmemory 1")),
        |world| drop(world.ask("CONFIG SET maxmemory 0")),
    ),
    Fault(
        "a replica",
        1,
        |world| drop(world.ask("REPLICAOF 127.0.0.1 1")),
        |world| drop(world.ask("REPLICAOF NO ONE")),
    ),
    Fault(
        "too few replicas",
        1,
        |world| drop(world.ask("CONFIG SET min-replicas-to-write 1")),
        |world| drop(world.ask("CONFIG SET min-replicas-to-write 0")),
    ),
    Fault(
        "clients killed",
        1,
        |world| drop(world.ask("CLIENT KILL TYPE normal SKIPME yes")),
        NOTHING,
    ),
    Fault(
        "writes paused",
        1,
        |world| drop(world.ask("CLIENT PAUSE 300 WRITE")),
        NOTHING,
    ),
    Fault(
        "clients paused",
        1,
        |world| drop(world.ask("CLIENT PAUSE 300 ALL")),
        NOTHING,
    ),
    Fault(
        "busy with a script",
        1,
        |world| drop(world.server.ask(&["EVAL", BUSY, "0"])),
        NOTHING,
    ),
    Fault(
        "no right to run scripts",
        1,
        |world| drop(world.ask("ACL SETUSER default -eval -evalsha")),
        |world| drop(world.ask("ACL SETUSER default +@all")),
    ),
    Fault(
        "keys of another type",
        2,
        |world| world.overwrite("LPUSH other"),
        |world| world.overwrite(""),
    ),
    Fault(
        "keys of another program",
        2,
        |world| world.overwrite("SET other"),
        |world| world.overwrite(""),
    ),
    Fault(
        "far away",
        1,
        |world| world.each(|proxy| proxy.delay(Duration::from_millis(80))),
        |world| world.each(|proxy| proxy.delay(Duration::ZERO)),
    ),
    Fault(
        "slower than the deadline",
        1,
        |world| world.each(|proxy| proxy.delay(Duration::from_millis(700))),
        |world| world.each(|proxy| proxy.delay(Duration::ZERO)),
    ),
    Fault(
        "one node cut off",
        1,
        |world| world.proxies[0].cut(),
        NOTHING,
    ),
    Fault(
        "all nodes cut off",
        1,
        |world| world.each(Proxy::cut),
        NOTHING,
    ),
    Fault(
        "one node silenced",
        1,
        |world| world.proxies[0].silence(),
        |world| world.proxies[0].cut(),
    ),
    Fault(
        "all nodes refused",
        1,
        |world| {
            world.each(|proxy| proxy.refuse(true));
            world.each(Proxy::cut);
        },
        |world| world.each(|proxy| proxy.refuse(false)),
    ),
    Fault(
        "an hour ahead",
        1,
        |world| world.server.shift_clock(HOUR),
        |world| world.server.shift_clock(0),
    ),
    Fault(
        "an hour behind",
        1,
        |world| world.server.shift_clock(-HOUR),
        |world| world.server.shift_clock(0),
    ),
];

/// Two callers of each limit of each node, until they are stopped: what they were admitted, by
/// mode.
async fn use_up(world: &mut World, fault: &Fault) -> [u64; 3] {
    let stop = Arc::new(AtomicBool::new(false));
    let admitted = Arc::new([const { AtomicU64::new(0) }; 3]);
    let mut tasks = Vec::new();
    for (mode, limit) in world
        .nodes
        .iter()
        .flatten()
        .enumerate()
        .map(|(at, limit)| (at % 3, limit))
    {
        for _ in 0..2 {
            let (limit, stop, admitted) = (limit.clone(), Arc::clone(&stop), Arc::clone(&admitted));
            tasks.push(tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    if limit.acquire("hot", 1).await.is_allowed() {
                        admitted[mode].fetch_add(1, Ordering::Relaxed);
                    }
                    tokio::time::sleep(Duration::from_millis(4)).await;
                }
            }));
        }
    }
    let sum = || {
        admitted
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect::<Vec<_>>()
    };
    let many = async |least: u64| {
        for _ in 0..PATIENCE.as_millis() / 5 {
            if sum().iter().all(|&count| count >= least) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{}: {:?} were admitted", fault.0, sum());
    };
    many(100).await;
    fault.2(world);
    tokio::time::sleep(LENGTH).await;
    fault.3(world);
    // Everything is used up in the end, so a unit that was counted twice, or not at all, would
    // show.
    many(LIMIT * 4 / 5).await;
    for limit in world.nodes.iter().flatten() {
        let mut denied = 0;
        for _ in 0..PATIENCE.as_millis() / 5 {
            let told = limit.acquire("hot", 1).await;
            denied += u32::from(told.is_denied() && !matches!(told.source, Source::Failed(_)));
            if denied == 5 {
                break;
            }
            assert!(
                !told.is_allowed() || sum().iter().all(|&count| count <= 3 * LIMIT),
                "{}",
                fault.0
            );
            let mode = MODES
                .iter()
                .position(|mode| *mode == limit.mode())
                .expect("it is one of them");
            admitted[mode].fetch_add(u64::from(told.is_allowed()), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(
            denied,
            5,
            "{}: the store decides again: {:?}",
            fault.0,
            limit.store()
        );
    }
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.expect("no caller panics");
    }
    admitted
        .each_ref()
        .map(|count| count.load(Ordering::Relaxed))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_makes_a_limit_over_and_every_node_recovers() {
    let rounds = if std::env::var_os("TIDEGATE_LONG").is_some() {
        5
    } else {
        1
    };
    for fault in &FAULTS {
        for _ in 0..rounds {
            let mut world = World::start(|store| {
                let quota: Quota = "900/360d".parse().expect("the quota is well formed");
                let policy = Policy::sliding_window(quota);
                let limit = |mode: Mode| store.limit(&format!("{mode:?}"), policy).mode(mode);
                MODES.map(limit).into()
            });
            let admitted = use_up(&mut world, fault).await;
            let Fault(name, lives, ..) = fault;
            for (mode, admitted) in MODES.into_iter().zip(admitted) {
                let excess = if mode == Mode::Reported {
                    3 * UNREPORTED
                } else {
                    0
                };
                assert!(
                    admitted <= lives * (LIMIT + excess),
                    "{name}, {mode:?}: {admitted} admitted of {LIMIT}"
                );
            }
            println!("{name}: {admitted:?}");
        }
    }
}

/// The units a second of two limits that callers wait for, and the burst.
const RATE: u64 = 50;
const BURST: u64 = 5;
/// How many callers each node has: half of them wait for one limit, and half for both.
const CALLERS: usize = 4;
/// How long tickets stay of a node that does not ask.
const TICKETS_STAY: Duration = Duration::from_secs(5);
/// The time from a grant to its answer, without a fault.
const LAG: Duration = Duration::from_millis(200);

/// When callers were admitted, by limit.
type Admitted = [Vec<(usize, Instant)>; 2];

/// Callers of all nodes that wait in line again and again.
struct Waiting {
    stop: Arc<AtomicBool>,
    admitted: Arc<Mutex<Admitted>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Waiting {
    fn start(world: &World) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let admitted = Arc::new(Mutex::new(Admitted::default()));
        let nodes = world.nodes.iter();
        let callers = nodes.flat_map(|node| std::iter::repeat_n(node, CALLERS));
        let tasks = callers.cloned().enumerate().map(|(caller, limits)| {
            let (stop, admitted) = (Arc::clone(&stop), Arc::clone(&admitted));
            tokio::spawn(async move {
                let asked = &limits[..=caller % 2];
                let part = |limit| Part {
                    limit,
                    key: b"hot",
                    cost: 1,
                };
                let parts: Vec<Part<'_>> = asked.iter().map(part).collect();
                while !stop.load(Ordering::Relaxed) {
                    let answers = limits[0].store().wait_all(&parts, PATIENCE).await;
                    let answers = answers.expect("the keys differ");
                    if answers.iter().all(SharedDecision::is_allowed) {
                        let mut admitted = admitted.lock().expect("no caller panics");
                        for limit in 0..asked.len() {
                            admitted[limit].push((caller, Instant::now()));
                        }
                    } else {
                        tokio::time::sleep(Duration::from_millis(4)).await;
                    }
                }
            })
        });
        Self {
            tasks: tasks.collect(),
            stop,
            admitted,
        }
    }

    /// Waits until each caller was admitted this often since a time.
    async fn until_each(&self, count: usize, since: Instant, fault: &str) {
        let least = || {
            let mut counts = vec![0; self.tasks.len()];
            let admitted = self.admitted.lock().expect("no caller panics");
            for (caller, _) in admitted[0].iter().filter(|(_, at)| *at >= since) {
                counts[*caller] += 1;
            }
            counts
        };
        for _ in 0..PATIENCE.as_millis() / 5 {
            if least().into_iter().all(|admitted| admitted >= count) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{fault}: the callers were admitted {:?} times", least());
    }

    async fn end(self) -> Admitted {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            let ended = tokio::time::timeout(PATIENCE, task).await;
            ended.expect("each wait ends").expect("no caller panics");
        }
        let mut admitted = self.admitted.lock().expect("no caller panics");
        std::mem::take(&mut *admitted)
    }
}

/// Whether no prefix of the times has more of them than the limit admits from `began` to then, if
/// its bucket was full this often. A caller notes its time after the decision, so `began` must not
/// come after the first decision.
fn is_never_over(times: &[Instant], fulls: u64, began: Instant) -> bool {
    times.iter().zip(1..).all(|(at, count)| {
        let span = at.duration_since(began);
        f64::from(count) <= (fulls * BURST) as f64 + RATE as f64 * span.as_secs_f64() + 1.0
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_makes_callers_in_line_starve_or_their_limits_over() {
    for Fault(name, lives, begin, end) in &FAULTS {
        let mut world = World::start(|store| {
            let quota = Quota::per_second(RATE);
            let policy = TokenBucket::new(quota).burst(BURST);
            let policy: Policy = policy.expect("the burst is small").into();
            let limit = |name: &str| store.limit(name, policy).line(true);
            vec![limit("one"), limit("both")]
        });
        let began = Instant::now();
        let waiting = Waiting::start(&world);
        waiting.until_each(3, Instant::now(), name).await;
        begin(&mut world);
        tokio::time::sleep(LENGTH).await;
        end(&mut world);
        let ended = Instant::now();
        waiting.until_each(1, ended, name).await;
        let calm = Instant::now();
        waiting.until_each(4, calm, name).await;
        let admitted = waiting.end().await;
        // A step of the clock forward fills a bucket.
        let fulls = lives + 2 * u64::from(name.starts_with("an hour"));
        for times in &admitted {
            let times: Vec<_> = times.iter().map(|(_, at)| *at).collect();
            let since = |from: Instant| {
                let since = times.iter().copied().filter(|at| *at >= from);
                since.collect::<Vec<_>>()
            };
            assert!(is_never_over(&times, fulls, began), "{name}: {times:?}");
            assert!(
                is_never_over(&since(calm), 1, calm - LAG),
                "{name}: {times:?}"
            );
            let mut before = ended;
            for at in since(ended) {
                let pause = at.duration_since(before);
                // A starved caller waits for two times of a ticket. A second may go by on a busy
                // machine.
                assert!(
                    pause < TICKETS_STAY + Duration::from_secs(2),
                    "{name}: {pause:?}"
                );
                before = at;
            }
        }
        for limit in world.nodes.iter().flatten() {
            let until = Instant::now() + PATIENCE;
            while limit.waiting("hot").await != Ok(0) {
                assert!(
                    Instant::now() < until,
                    "{name}: the lines are empty in the end"
                );
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        println!(
            "{name}: {} and {} were admitted",
            admitted[0].len(),
            admitted[1].len()
        );
    }
}
