//! How the machine was doing when somebody last looked: load, processor, memory.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One look at the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The load average over one minute.
    pub load: f64,
    /// The share of the processors in use, from 0 to 1.
    pub cpu: f64,
    /// Memory in use, in bytes: of the machine, the container or the process, as the thresholds mean it.
    pub memory: u64,
}

/// The last look, for all threads. Each number is its own; a reader may see one of an older look.
#[derive(Debug, Default)]
pub(crate) struct SystemSample {
    load: AtomicU64,
    cpu: AtomicU64,
    memory: AtomicU64,
    is_fed: AtomicBool,
}

impl SystemSample {
    pub(crate) fn set(&self, sample: Sample) {
        // Relaxed: each number stands for itself.
        self.load.store(sample.load.to_bits(), Ordering::Relaxed);
        self.cpu.store(sample.cpu.to_bits(), Ordering::Relaxed);
        self.memory.store(sample.memory, Ordering::Relaxed);
        self.is_fed.store(true, Ordering::Relaxed);
    }

    /// Whether anybody has ever looked.
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
