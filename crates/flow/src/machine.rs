//! How the machine is doing, by what Linux tells under `/proc`.

use std::{fs, io, path::PathBuf, time::Duration};

use crate::{Gate, Sample, background::Background};

/// Looks at the machine: the load average, the share of the processors in use since the last look, and the memory in
/// use (the machine's, without what the system could free at once).
#[derive(Clone, Debug)]
pub struct Machine {
    proc: PathBuf,
    /// Ticks of all processors, and of those the idle ones, at the last look.
    ticks: (u64, u64),
}

impl Machine {
    /// The machine that this runs on.
    #[must_use]
    pub fn new() -> Self {
        Self::at("/proc")
    }

    /// A machine whose `/proc` is elsewhere, such as the host's inside a container.
    pub fn at(proc: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), ticks: (0, 0) }
    }

    /// Looks. The first look's share of the processors is that since the machine was started.
    ///
    /// # Errors
    /// When a file is not there (on other systems than Linux, all are not) or says something unexpected.
    pub fn look(&mut self) -> io::Result<Sample> {
        let read = |name: &str| fs::read_to_string(self.proc.join(name));
        let unexpected = |name: &str| io::Error::other(format!("/proc/{name} is not as expected"));
        let load = parse_load(&read("loadavg")?).ok_or_else(|| unexpected("loadavg"))?;
        let ticks = parse_ticks(&read("stat")?).ok_or_else(|| unexpected("stat"))?;
        let memory = parse_memory(&read("meminfo")?).ok_or_else(|| unexpected("meminfo"))?;
        let (all, idle) = (ticks.0.saturating_sub(self.ticks.0), ticks.1.saturating_sub(self.ticks.1));
        self.ticks = ticks;
        let cpu = if all == 0 { 0.0 } else { all.saturating_sub(idle) as f64 / all as f64 };
        Ok(Sample { load, cpu, memory })
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

/// The first number of `/proc/loadavg`.
fn parse_load(text: &str) -> Option<f64> {
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

impl Gate {
    /// Looks at the machine now and in each `period`, and tells the gate, for system rules and memory thresholds. A look
    /// that fails later leaves the last one standing.
    ///
    /// # Errors
    /// When the first look fails, or the thread cannot be started.
    pub fn watch_machine(&self, mut machine: Machine, period: Duration) -> io::Result<MachineWatch> {
        self.set_sample(machine.look()?);
        let gate = self.clone();
        let thread = Background::spawn("tidegate-machine", period, move || {
            if let Ok(sample) = machine.look() {
                gate.set_sample(sample);
            }
        })?;
        Ok(MachineWatch { _thread: thread })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_linux_tells_is_understood() {
        assert_eq!(parse_load("2.57 1.90 1.66 3/213 4711\n"), Some(2.57));
        let stat = "cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 2 3 4\n";
        assert_eq!(parse_ticks(stat), Some((621, 450)));
        let memory = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    6000 kB\n";
        assert_eq!(parse_memory(memory), Some(10_000 * 1_024));
        for nonsense in ["", "cpu", "cpu x", "MemTotal: many kB"] {
            assert_eq!((parse_load(nonsense), parse_ticks(nonsense)), (None, None));
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
