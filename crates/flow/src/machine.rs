//! How the machine is doing, by what Linux tells under `/proc`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use crate::{Gate, Sample, background::Background, cgroup::ControlGroup, sample::SystemSample};

/// Looks at the machine: the load average, the share of the processors in use since the last look, and the memory in
/// use (without what the system could free at once).
///
/// In a container whose control group has limits (version 1 or 2), memory is the group's, and the share of the processors
/// is the greater of the machine's and of what the group uses of its quota.
#[derive(Clone, Debug)]
pub struct Machine {
    proc: PathBuf,
    /// Ticks of all processors, and of those the idle ones, at the last look.
    ticks: (u64, u64),
    group: Option<ControlGroup>,
}

impl Machine {
    /// The machine that this runs on, and the limits of this process's control group.
    #[must_use]
    pub fn new() -> Self {
        Self::at("/proc").control_group("/sys/fs/cgroup")
    }

    /// A machine whose `/proc` is elsewhere, such as the host's inside a container. Control groups are not looked at.
    pub fn at(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), ticks: (0, 0), group: None }
    }

    /// The same machine with the limits of this process's control group, which are below `root`; usually
    /// `/sys/fs/cgroup`. They are looked up now, once.
    #[must_use]
    pub fn control_group(mut self, root: impl AsRef<Path>) -> Self {
        self.group = Some(ControlGroup::find(&self.proc, root.as_ref()));
        self
    }

    /// Looks. The first look's share of the processors is that since the machine was started.
    ///
    /// # Errors
    /// When a file is not there (on other systems than Linux, all are not) or says something unexpected.
    pub fn look(&mut self) -> io::Result<Sample> {
        let read = |name: &str| fs::read_to_string(self.proc.join(name));
        let unexpected = |name: &str| io::Error::other(format!("/proc/{name} is not as expected"));
        let load = first_number(&read("loadavg")?).ok_or_else(|| unexpected("loadavg"))?;
        let ticks = parse_ticks(&read("stat")?).ok_or_else(|| unexpected("stat"))?;
        let memory = parse_memory(&read("meminfo")?).ok_or_else(|| unexpected("meminfo"))?;
        let (all, idle) = (ticks.0.saturating_sub(self.ticks.0), ticks.1.saturating_sub(self.ticks.1));
        self.ticks = ticks;
        let cpu = if all == 0 { 0.0 } else { all.saturating_sub(idle) as f64 / all as f64 };
        let machine = Sample { load, cpu, memory };
        let Some(group) = &mut self.group else { return Ok(machine) };
        let uptime = fs::read_to_string(self.proc.join("uptime"))?;
        let uptime = first_number(&uptime).ok_or_else(|| unexpected("uptime"))?;
        let cpu = group.cpu(uptime)?.map_or(cpu, |of_quota| of_quota.max(cpu));
        Ok(Sample { cpu, memory: group.memory()?.unwrap_or(memory), ..machine })
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// The first number of `/proc/loadavg` or `/proc/uptime`.
fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The ticks of all processors in `/proc/stat`, and of those the idle ones (waiting for a disk included).
fn parse_ticks(text: &str) -> Option<(u64, u64)> {
    let numbers = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // The last two, guests', are part of the first two.
    let ticks: Vec<u64> = numbers.split_whitespace().take(8).map_while(|ticks| ticks.parse().ok()).collect();
    Some((ticks.iter().sum(), ticks.get(3)? + ticks.get(4).unwrap_or(&0)))
}

/// The memory in use by `/proc/meminfo`, in bytes.
fn parse_memory(text: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    Some(kib("MemTotal:")?.saturating_sub(kib("MemAvailable:")?) * 1_024)
}

/// A machine that is looked at again and again, until this is dropped.
pub struct MachineWatch {
    _thread: Background,
}

impl MachineWatch {
    /// Looks now, and again after each `period`. A look that fails later leaves the last one standing.
    pub(crate) fn start(
        mut machine: Machine,
        period: Duration,
        sample: Arc<SystemSample>,
    ) -> io::Result<Self> {
        sample.set(machine.look()?);
        let thread = Background::spawn("tidegate-machine", period, move || {
            if let Ok(look) = machine.look() {
                sample.set(look);
            }
        })?;
        Ok(Self { _thread: thread })
    }
}

impl Gate {
    /// Looks at the machine now and in each `period`, and tells the gate, for system rules and memory thresholds. A look
    /// that fails later leaves the last one standing. To let the gate itself do it for as long as it lives, build it with
    /// [`GateBuilder::watch_machine`](crate::GateBuilder::watch_machine).
    ///
    /// # Errors
    /// When the first look fails, or the thread cannot be started.
    pub fn watch_machine(&self, machine: Machine, period: Duration) -> io::Result<MachineWatch> {
        MachineWatch::start(machine, period, self.shared().sample.clone())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_linux_tells_is_understood() {
        assert_eq!(first_number("2.57 1.90 1.66 3/213 4711\n"), Some(2.57));
        let stat = "cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 2 3 4\n";
        assert_eq!(parse_ticks(stat), Some((621, 450)));
        let memory = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    6000 kB\n";
        assert_eq!(parse_memory(memory), Some(10_000 * 1_024));
        for nonsense in ["", "cpu", "cpu x", "MemTotal: many kB"] {
            assert_eq!((first_number(nonsense), parse_ticks(nonsense)), (None, None));
            assert_eq!(parse_memory(nonsense), None);
        }
    }

    #[test]
    fn a_machine_that_says_nothing_is_an_error() {
        let mut machine = Machine::at("/nowhere");
        assert!(machine.look().is_err());
        assert!(Gate::new().watch_machine(machine, Duration::from_secs(1)).is_err());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_says_something_sensible() {
        let sample = Machine::new().look().unwrap();
        assert!(
            (0.0..=1.0).contains(&sample.cpu) && sample.load >= 0.0 && sample.memory > 1 << 20,
            "{sample:?}"
        );
    }
}
