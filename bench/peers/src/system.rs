//! Measurements of this process and this machine by the system (Linux).

use std::{fs, io, num::NonZeroUsize, thread};

use rustix::thread::{CpuSet, sched_setaffinity};

fn field(path: &str, name: &str) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    let value = text.lines().find_map(|line| {
        line.strip_prefix(name)?
            .split_whitespace()
            .next()?
            .parse()
            .ok()
    });
    value.ok_or_else(|| io::Error::other(format!("{path} has no number after {name:?}")))
}

/// How often this thread was taken from its processor while it wanted to go on.
pub fn preemptions() -> io::Result<u64> {
    field("/proc/thread-self/status", "nonvoluntary_ctxt_switches:")
}

/// Keeps this thread on one processor, if there is one for each of `threads`: on a busy machine
/// they might share one for a while, and then would not meet. A single thread goes where it finds
/// room.
pub fn keep_apart(number: usize, threads: usize) {
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    if threads > 1 && threads <= processors {
        let mut one = CpuSet::new();
        one.set(number);
        // Where the system has other numbers for us, the threads stay as they were.
        let _ = sched_setaffinity(None, &one);
    }
}

/// Resident bytes of this process. From the page tables: `statm` adds up what each processor keeps
/// for itself, and may be late.
pub fn resident() -> io::Result<u64> {
    Ok(field("/proc/self/smaps_rollup", "Rss:")? * 1024)
}

/// Load average of the last minute, as the system writes it.
pub fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace()
        .next()
        .unwrap_or("unknown")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_memory_is_resident() {
        let before = resident().unwrap();
        let touched = std::hint::black_box(vec![1_u8; 256 << 20]);
        let after = resident().unwrap();
        // Other tests allocate at the same time, with less.
        assert!(after >= before + (128 << 20), "{before} {after}");
        drop(touched);
    }

    #[test]
    fn preemptions_are_counted() {
        assert!(preemptions().is_ok());
    }
}
