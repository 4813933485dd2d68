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
        use std::fs::{read_dir, read_to_string};

        let mut family = |name, help, metric: &dyn EncodeMetric| {
            metric.encode(out.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        let gauge = |value: u64| ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
        let stat = read_to_string("/proc/self/stat").ok();
        if let Some(stat) = stat.as_deref().and_then(Stat::read) {
            let ticks = rustix::param::clock_ticks_per_second() as f64;
            let cpu = ConstCounter::new(stat.cpu_ticks as f64 / ticks);
            family("process_cpu_seconds", "Processor time of the process", &cpu)?;
            let resident = stat.resident_pages * rustix::param::page_size() as u64;
            family(
                "process_resident_memory_bytes",
                "Resident memory of the process",
                &gauge(resident),
            )?;
            family(
                "process_virtual_memory_bytes",
                "Address space of the process",
                &gauge(stat.virtual_bytes),
            )?;
            family(
                "process_threads",
                "Threads of the process",
                &gauge(stat.threads),
            )?;
            let kernel = read_to_string("/proc/stat").ok();
            if let Some(booted) = kernel.as_deref().and_then(booted_at) {
                let start = ConstGauge::new(booted as f64 + stat.start_ticks as f64 / ticks);
                family(
                    "process_start_time_seconds",
                    "When the process started, in seconds since 1970",
                    &start,
                )?;
            }
        }
        if let Ok(open) = read_dir("/proc/self/fd") {
            // One of them reads this directory.
            let open = open.count().saturating_sub(1) as u64;
            family("process_open_fds", "Open file descriptors", &gauge(open))?;
        }
        if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
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

/// The part of `/proc/self/stat` that is shown. Times are in ticks of the clock.
#[cfg(target_os = "linux")]
#[derive(Debug, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    threads: u64,
    /// Since the system was booted.
    start_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

#[cfg(target_os = "linux")]
impl Stat {
    /// Reads the fields, which proc(5) numbers from 1. The program's name is the second one, in
    /// brackets, and may have blanks and brackets.
    fn read(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Self {
            cpu_ticks: field(14)? + field(15)?,
            threads: field(20)?,
            start_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

/// When the system was booted, in seconds since 1970, from `/proc/stat`.
#[cfg(target_os = "linux")]
fn booted_at(text: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_process_are_read_also_if_its_name_has_blanks_and_brackets() {
        let text = "4321 (a ) b (c) S 1 4321 4321 0 -1 4194560 900 0 0 0 150 50 0 0 20 0 7 0 5000 \
                    104857600 2560 18446744073709551615 1 1 0 0 0 0 0 4096 17663 0 0 0 17 1 0 0 0 0 0";
        let read = Stat::read(text).unwrap();
        let wanted = Stat {
            cpu_ticks: 200,
            threads: 7,
            start_ticks: 5_000,
            virtual_bytes: 104_857_600,
            resident_pages: 2_560,
        };
        assert_eq!(read, wanted);
        assert_eq!(Stat::read("4321 (cut off) S 1"), None);
    }

    #[test]
    fn the_time_of_the_boot_is_read_among_other_lines() {
        assert_eq!(
            booted_at("cpu 1 2 3\nbtime 1700000000\nprocesses 5\n"),
            Some(1_700_000_000)
        );
        assert_eq!(booted_at("cpu 1 2 3\n"), None);
    }

    #[test]
    fn this_process_and_its_system_have_these_files() {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let stat = Stat::read(&stat).unwrap();
        assert!(stat.threads > 0 && stat.resident_pages > 0);
        let kernel = std::fs::read_to_string("/proc/stat").unwrap();
        assert!(booted_at(&kernel).unwrap() > 1_500_000_000);
    }
}
