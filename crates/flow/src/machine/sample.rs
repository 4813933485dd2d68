//! The last sample of the machine: load, CPU and memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One sample of the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The load average over one minute.
    pub load: f64,
    /// The CPU usage, from 0 to 1.
    pub cpu: f64,
    /// The memory in use, in bytes: of the machine, the container or the process, whichever the
    /// thresholds refer to.
    pub memory: u64,
}

/// The last sample, shared by all threads. Each number is stored separately, so a reader may see
/// numbers of two samples.
#[derive(Debug, Default)]
pub(crate) struct SystemSample {
    load: AtomicU64,
    cpu: AtomicU64,
    memory: AtomicU64,
    is_fed: AtomicBool,
}

impl SystemSample {
    pub(crate) fn set(&self, sample: Sample) {
        // Relaxed: the numbers are independent.
        self.load.store(sample.load.to_bits(), Ordering::Relaxed);
        self.cpu.store(sample.cpu.to_bits(), Ordering::Relaxed);
        self.memory.store(sample.memory, Ordering::Relaxed);
        self.is_fed.store(true, Ordering::Relaxed);
    }

    /// Whether any sample has been set.
    pub(crate) fn is_fed(&self) -> bool {
        self.is_fed.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn load(&self) -> f64 {
        f64::from_bits(self.load.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn cpu(&self) -> f64 {
        f64::from_bits(self.cpu.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn memory(&self) -> u64 {
        self.memory.load(Ordering::Relaxed)
    }
}
