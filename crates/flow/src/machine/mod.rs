//! Samples of the machine, read from Linux's `/proc`.

#[doc(hidden)]
pub mod cgroup;
pub(crate) mod sample;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use self::{
    cgroup::ControlGroup,
    sample::{Sample, SystemSample},
};
use crate::background::Background;

/// Samples the machine: the load average, the CPU usage since the last sample, and the memory in
/// use (without memory that the system could free immediately).
///
/// In a container whose control group (version 1 or 2) has limits, the memory is that of the group,
/// and the CPU usage is the greater of the machine's usage and the group's usage of its quota.
#[derive(Clone, Debug)]
pub struct Machine {
    proc: PathBuf,
    /// The ticks of all processors at the last sample, and how many of them were idle.
    ticks: (u64, u64),
    group: Option<ControlGroup>,
}

impl Machine {
    /// Returns the machine that the process runs on, with the limits of the process's control
    /// group.
    #[must_use]
    pub fn new() -> Self {
        Self::at("/proc").control_group("/sys/fs/cgroup")
    }

    /// Returns a machine whose `/proc` is at another path, such as the host's `/proc` inside a
    /// container. Control groups are ignored.
    pub fn at(proc: impl Into<PathBuf>) -> Self {
        Self {
            proc: proc.into(),
            ticks: (0, 0),
            group: None,
        }
    }

    /// Adds the limits of this process's control group below `root`, usually `/sys/fs/cgroup`. The
    /// group is looked up once, by this call.
    #[must_use]
    pub fn control_group(mut self, root: impl AsRef<Path>) -> Self {
        self.group = Some(ControlGroup::find(&self.proc, root.as_ref()));
        self
    }

    /// Takes a sample. The CPU usage of the first sample covers the time since the machine booted.
    ///
    /// # Errors
    /// If a file is missing (on systems other than Linux, all are) or has unexpected content.
    pub fn look(&mut self) -> io::Result<Sample> {
        let read = |name: &str| fs::read_to_string(self.proc.join(name));
        let unexpected =
            |name: &str| io::Error::other(format!("/proc/{name} has unexpected content"));
        let load = first_number(&read("loadavg")?).ok_or_else(|| unexpected("loadavg"))?;
        let ticks = parse_ticks(&read("stat")?).ok_or_else(|| unexpected("stat"))?;
        let memory = parse_memory(&read("meminfo")?).ok_or_else(|| unexpected("meminfo"))?;
        let (all, idle) = (
            ticks.0.saturating_sub(self.ticks.0),
            ticks.1.saturating_sub(self.ticks.1),
        );
        self.ticks = ticks;
        let cpu = if all == 0 {
            0.0
        } else {
            all.saturating_sub(idle) as f64 / all as f64
        };
        let machine = Sample { load, cpu, memory };
        let Some(group) = &mut self.group else {
            return Ok(machine);
        };
        let uptime = fs::read_to_string(self.proc.join("uptime"))?;
        let uptime = first_number(&uptime).ok_or_else(|| unexpected("uptime"))?;
        let cpu = group.cpu(uptime)?.map_or(cpu, |of_quota| of_quota.max(cpu));
        Ok(Sample {
            cpu,
            memory: group.memory()?.unwrap_or(memory),
            ..machine
        })
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the first number of `/proc/loadavg` or `/proc/uptime`.
fn first_number(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

/// Returns the ticks of all processors in `/proc/stat`, and how many of them were idle (including
/// those spent waiting for a disk).
fn parse_ticks(text: &str) -> Option<(u64, u64)> {
    let numbers = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // The last two fields, for guests, are included in the first two.
    let ticks: Vec<u64> = numbers
        .split_whitespace()
        .take(8)
        .map_while(|ticks| ticks.parse().ok())
        .collect();
    Some((
        ticks.iter().sum(),
        ticks.get(3)? + ticks.get(4).unwrap_or(&0),
    ))
}

/// Returns the memory in use according to `/proc/meminfo`, in bytes.
fn parse_memory(text: &str) -> Option<u64> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    };
    Some(kib("MemTotal:")?.saturating_sub(kib("MemAvailable:")?) * 1_024)
}

/// Samples a machine periodically until this value is dropped.
pub struct MachineWatch {
    _thread: Background,
}

impl MachineWatch {
    /// Samples now and after each `period`. If a later sample fails, the previous one stays in
    /// effect.
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
