//! Samples of a watched machine reach the rules that depend on them.
#![cfg(not(loom))]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use tidegate_core::Nanos;
use tidegate_flow::{
    BlockKind, Gate, Guard, Machine, MachineWatch, ManualTimer, Resource, Sample,
    cgroup::memory_limit,
    rules::{FlowRule, MemoryThreshold, Rules, SystemRule, Threshold},
};

/// A fake `/proc` for one test, which is removed on drop.
struct Proc(PathBuf);

impl Proc {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("tidegate-proc-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let proc = Self(dir);
        proc.says("0.10", 1 << 10);
        proc
    }

    /// Replaces a file atomically, because the watch may read it at any moment.
    fn put(&self, name: &str, text: &str) {
        fs::write(self.0.join("new"), text).unwrap();
        fs::rename(self.0.join("new"), self.0.join(name)).unwrap();
    }

    /// Sets the load average, and the memory in use in KiB.
    fn says(&self, load: &str, used: u64) {
        self.put("loadavg", &format!("{load} 0.20 0.30 1/100 4711\n"));
        self.put("stat", "cpu  0 0 0 1000 0 0 0 0 0 0\n");
        self.put(
            "meminfo",
            &format!("MemTotal: {} kB\nMemAvailable: 1000 kB\n", used + 1_000),
        );
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Polls until the condition holds, for minutes if necessary, because a separate thread samples the
/// machine.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let so = (0..60_000).any(|_| {
        thread::park_timeout(Duration::from_millis(5));
        is_so()
    });
    assert!(so, "the condition never held: {what}");
}

fn watched(dir: &Path, rules: Rules) -> (Gate, MachineWatch) {
    let gate = Gate::builder()
        .timer(ManualTimer::new(Nanos::from_secs(1_000)))
        .build();
    gate.load(rules).unwrap();
    let watch = gate
        .watch_machine(Machine::at(dir), Duration::from_millis(1))
        .unwrap();
    (gate, watch)
}

/// Whether a system rule blocks one of four calls in flight.
fn is_busy(r: &Resource) -> bool {
    let calls: Vec<Result<Guard<'_>, _>> = (0..4).map(|_| r.entry().inbound().enter()).collect();
    calls.iter().any(|call| {
        call.as_ref()
            .is_err_and(|blocked| blocked.kind() == BlockKind::System)
    })
}

#[test]
fn the_gate_notices_when_the_machine_becomes_busy_and_idle() {
    let proc = Proc::new("load");
    let system = vec![SystemRule::default().load(2.0)];
    let (gate, watch) = watched(&proc.0, Rules::from(system));
    let r = gate.resource("r");
    // The calls end at once and the clock does not move, so the capacity is one call in flight.
    assert!(!is_busy(&r));
    proc.says("7.50", 1 << 10);
    until("the load is seen", || is_busy(&r));
    proc.says("0.10", 1 << 10);
    until("the load is over", || !is_busy(&r));
    // Nothing samples the machine any more.
    drop(watch);
    proc.says("7.50", 1 << 10);
    assert!(!is_busy(&r));
}

#[test]
fn a_threshold_follows_the_memory_of_the_machine() {
    let proc = Proc::new("memory");
    let memory = MemoryThreshold {
        when_free: 1_000_000.0,
        when_scarce: 0.0,
        low_mark: 1 << 20,
        high_mark: 1 << 30,
    };
    let flow = vec![FlowRule::new("r", Threshold::Memory(memory))];
    let (gate, _watch) = watched(&proc.0, Rules::from(flow));
    let r = gate.resource("r");
    assert!(r.enter().is_ok());
    proc.says("0.10", 2 << 20);
    until("the memory is scarce", || r.enter().is_err());
    proc.says("0.10", 1 << 9);
    until("there is memory again", || r.enter().is_ok());
}

/// Counts the warnings on this thread.
struct Warnings(Arc<std::sync::atomic::AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn a_rule_that_needs_samples_warns_once_when_it_is_loaded_and_nobody_gives_any() {
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let heard = || count.load(std::sync::atomic::Ordering::Relaxed);
    tracing::subscriber::with_default(Warnings(count.clone()), || {
        let busy = || Rules::from(vec![SystemRule::default().cpu(0.9)]);
        let gate = Gate::new();
        let quiet = SystemRule::default().qps(5);
        gate.load(Rules::from(vec![quiet])).unwrap();
        assert_eq!(heard(), 0);
        gate.load(busy()).unwrap();
        gate.load(busy()).unwrap();
        assert_eq!(heard(), 1);
        let fed = Gate::new();
        fed.set_sample(Sample::default());
        fed.load(busy()).unwrap();
        assert_eq!(heard(), 1);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_gate_that_is_built_to_watch_the_machine_has_a_sample_at_once_and_fails_where_there_is_none() {
    let gate = Gate::builder()
        .watch_machine(Machine::new(), Duration::from_mins(1))
        .unwrap()
        .build();
    let memory = MemoryThreshold {
        when_free: 9.0,
        when_scarce: 0.0,
        low_mark: 1,
        high_mark: 2,
    };
    gate.load(Rules::from(vec![FlowRule::new(
        "r",
        Threshold::Memory(memory),
    )]))
    .unwrap();
    assert!(
        gate.resource("r").enter().is_err(),
        "more than two bytes are in use"
    );
    assert!(
        Gate::builder()
            .watch_machine(Machine::at("/nowhere"), Duration::from_secs(1))
            .is_err()
    );
}

#[test]
fn the_files_of_linux_are_parsed() {
    let proc = Proc::new("parsed");
    proc.put("loadavg", "2.57 1.90 1.66 3/213 4711\n");
    // Guest ticks are a part of the others, and a wait for a disk is idle.
    proc.put("stat", "cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 2 3 4\n");
    proc.put(
        "meminfo",
        "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    6000 kB\n",
    );
    let sample = Machine::at(&proc.0).look().unwrap();
    assert_eq!(
        sample,
        Sample {
            load: 2.57,
            cpu: 171.0 / 621.0,
            memory: 10_000 * 1_024
        }
    );
    for name in ["loadavg", "stat", "meminfo"] {
        for nonsense in ["", "cpu", "cpu x", "MemTotal: many kB"] {
            proc.says("0.10", 1);
            proc.put(name, nonsense);
            let error = Machine::at(&proc.0).look().unwrap_err().to_string();
            assert!(error.contains(name), "{nonsense}: {error}");
        }
    }
}

#[test]
fn a_machine_without_figures_is_an_error() {
    let mut machine = Machine::at("/nowhere");
    assert!(machine.look().is_err());
    assert!(
        Gate::new()
            .watch_machine(machine, Duration::from_secs(1))
            .is_err()
    );
}

#[cfg(target_os = "linux")]
#[test]
fn this_machine_gives_sensible_figures() {
    let sample = Machine::new().look().unwrap();
    assert!(
        (0.0..=1.0).contains(&sample.cpu) && sample.load >= 0.0 && sample.memory > 1 << 20,
        "{sample:?}"
    );
}

/// A tree of files in its own directory, which is removed on drop: a machine that is idle, and its
/// control groups.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root =
            std::env::temp_dir().join(format!("tidegate-cgroup-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let tree = Self(root);
        let machine = [
            ("proc/loadavg", "0.10"),
            ("proc/stat", "cpu 0 0 0 100 0 0 0 0"),
            ("proc/meminfo", "MemTotal: 2000 kB\nMemAvailable: 1000 kB\n"),
            ("proc/uptime", "100.00 50.00\n"),
        ];
        for (path, text) in machine.iter().chain(files) {
            tree.write(path, text);
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn machine(&self) -> Machine {
        Machine::at(self.0.join("proc")).control_group(self.0.join("cgroup"))
    }

    fn limit(&self) -> Option<u64> {
        memory_limit(&self.0.join("proc"), &self.0.join("cgroup"))
    }

    /// The CPU usage when the machine has been up for this time.
    fn cpu(&self, machine: &mut Machine, uptime: &str) -> f64 {
        self.write("proc/uptime", uptime);
        machine.look().unwrap().cpu
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The memory in use of the machine itself.
const OWN: u64 = 1_000 << 10;

#[test]
fn a_group_of_version_2_is_measured_by_its_own_limits() {
    let tree = Tree::new(
        "v2",
        &[
            ("proc/self/cgroup", "0::/pods/web\n"),
            ("cgroup/pods/web/memory.max", "max\n"),
            ("cgroup/pods/memory.max", "1000000\n"),
            ("cgroup/pods/memory.current", "900000\n"),
            ("cgroup/pods/memory.stat", "anon 5\ninactive_file 200000\n"),
            ("cgroup/pods/web/cpu.max", "50000 100000\n"),
            (
                "cgroup/pods/web/cpu.stat",
                "usage_usec 1000000\nuser_usec 5\n",
            ),
        ],
    );
    let mut machine = tree.machine();
    let sample = machine.look().unwrap();
    assert_eq!(sample.memory, 700_000, "the nearest group that has a limit");
    assert_eq!((tree.limit(), sample.cpu.to_bits()), (Some(1_000_000), 0));
    tree.write("cgroup/pods/web/cpu.stat", "usage_usec 1250000\n");
    let quarter = tree.cpu(&mut machine, "101.00 50.00");
    assert!(
        (quarter - 0.5).abs() < 1e-9,
        "a quarter of a second, where half a second is allowed: {quarter}"
    );
    tree.write("cgroup/pods/web/cpu.stat", "usage_usec 9250000\n");
    assert!((tree.cpu(&mut machine, "102.00 50.00") - 1.0).abs() < 1e-9);
}

#[test]
fn a_group_of_version_1_is_measured_by_its_own_limits() {
    let tree = Tree::new(
        "v1",
        &[
            (
                "proc/self/cgroup",
                "4:memory:/docker/7\n3:cpu,cpuacct:/docker/7\n1:name=systemd:/x\n",
            ),
            ("cgroup/memory/memory.limit_in_bytes", "1000000\n"),
            ("cgroup/memory/memory.usage_in_bytes", "500000\n"),
            ("cgroup/memory/memory.stat", "total_inactive_file 100000\n"),
            ("cgroup/cpu,cpuacct/docker/7/cpu.cfs_quota_us", "200000\n"),
            ("cgroup/cpu,cpuacct/docker/7/cpu.cfs_period_us", "100000\n"),
            ("cgroup/cpu,cpuacct/docker/7/cpuacct.usage", "1000000000\n"),
        ],
    );
    let mut machine = tree.machine();
    let sample = machine.look().unwrap();
    assert_eq!(
        (sample.memory, tree.limit(), sample.cpu.to_bits()),
        (400_000, Some(1_000_000), 0)
    );
    tree.write("cgroup/cpu,cpuacct/docker/7/cpuacct.usage", "2000000000\n");
    assert!((tree.cpu(&mut machine, "101.00 50.00") - 0.5).abs() < 1e-9);
}

#[test]
fn without_limits_the_machine_alone_counts() {
    let tree = Tree::new(
        "none",
        &[
            ("proc/self/cgroup", "0::/\n"),
            ("cgroup/memory.max", "max\n"),
            ("cgroup/cpu.max", "max 100000\n"),
        ],
    );
    let mut nowhere = Machine::at(tree.0.join("proc")).control_group("/nowhere");
    for machine in [&mut tree.machine(), &mut nowhere] {
        let first = machine.look().unwrap();
        assert_eq!((first.memory, first.cpu.to_bits()), (OWN, 0));
        // Half of the next ticks are not idle.
        tree.write("proc/stat", "cpu 50 0 0 150 0 0 0 0");
        assert!((machine.look().unwrap().cpu - 0.5).abs() < 1e-9);
        tree.write("proc/stat", "cpu 0 0 0 100 0 0 0 0");
    }
    assert_eq!(tree.limit(), None);
}
