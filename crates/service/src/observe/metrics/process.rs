//! The process itself, under the names that every Prometheus client has for it.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{counter::ConstCounter, gauge::ConstGauge},
};

/// Reads `/proc` at each scrape. Families that cannot be read are left out.
#[derive(Debug)]
pub(super) struct Process;

impl Collector for Process {
    #[cfg(target_os = "linux")]
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        use procfs::{CurrentSI, WithCurrentSystemInfo, process::LimitValue};

        let mut family = |name, help, metric: &dyn EncodeMetric| {
            metric.encode(out.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        let Ok(process) = procfs::process::Process::myself() else {
            return Ok(());
        };
        let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        if let Ok(stat) = process.stat() {
            let ticks = procfs::ticks_per_second() as f64;
            let cpu = ConstCounter::new((stat.utime + stat.stime) as f64 / ticks);
            family("process_cpu_seconds", "Processor time of the process", &cpu)?;
            let resident = stat.rss_bytes().get();
            family(
                "process_resident_memory_bytes",
                "Resident memory of the process",
                &gauge(resident),
            )?;
            family(
                "process_virtual_memory_bytes",
                "Address space of the process",
                &gauge(stat.vsize),
            )?;
            let threads = u64::try_from(stat.num_threads).unwrap_or_default();
            family("process_threads", "Threads of the process", &gauge(threads))?;
            if let Ok(kernel) = procfs::KernelStats::current() {
                let start = ConstGauge::new(kernel.btime as f64 + stat.starttime as f64 / ticks);
                family(
                    "process_start_time_seconds",
                    "When the process started, in seconds since 1970",
                    &start,
                )?;
            }
        }
        if let Ok(open) = process.fd_count() {
            family(
                "process_open_fds",
                "Open file descriptors",
                &gauge(open as u64),
            )?;
        }
        if let Ok(limits) = process.limits()
            && let LimitValue::Value(most) = limits.max_open_files.soft_limit
        {
            family(
                "process_max_fds",
                "The most file descriptors that the process may open",
                &gauge(most),
            )?;
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn encode(&self, _: DescriptorEncoder<'_>) -> fmt::Result {
        Ok(())
    }
}
