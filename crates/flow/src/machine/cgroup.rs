//! The limits and the usage of this process's control group, for Linux containers.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The control groups that limit this process: version 2, or version 1 of the controllers `memory`
/// and `cpu`.
#[derive(Clone, Debug)]
pub(crate) struct ControlGroup {
    memory: Option<Memory>,
    cpu: Option<Cpu>,
}

#[derive(Clone, Debug)]
struct Memory {
    dir: PathBuf,
    is_v2: bool,
}

#[derive(Clone, Debug)]
struct Cpu {
    usage: PathBuf,
    is_v2: bool,
    /// The number of processors that the group may use: its quota divided by its period.
    processors: f64,
    /// The CPU time used, in microseconds, and the machine's uptime at the last sample.
    last: Option<(u64, f64)>,
}

impl ControlGroup {
    /// Finds the groups listed in `<proc>/self/cgroup`, below `root` (`/sys/fs/cgroup`). Of a group
    /// and its ancestors, the nearest one with a limit counts. A group that cannot be read has no
    /// limit.
    pub(crate) fn find(proc: &Path, root: &Path) -> Self {
        let text = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let group = |controller: &str| {
            text.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                let (names, path) = (fields.next()?, fields.next()?);
                names
                    .split(',')
                    .any(|name| name == controller)
                    .then_some(path)
            })
        };
        let unified = group("").unwrap_or("/");
        let v2 = |limits: &dyn Fn(&Path) -> bool| above(root, unified).find(|dir| limits(dir));
        let v1 = |names: &[&str], controller: &str, limits: &dyn Fn(&Path) -> bool| {
            let root = names
                .iter()
                .map(|name| root.join(name))
                .find(|dir| dir.is_dir())?;
            above(&root, group(controller).unwrap_or("/")).find(|dir| limits(dir))
        };
        let memory = v2(&|dir| number(&dir.join("memory.max")).is_some())
            .map(|dir| Memory { dir, is_v2: true })
            .or_else(|| {
                // Without a limit the file contains a number near 2⁶³.
                let limits = |dir: &Path| {
                    number(&dir.join("memory.limit_in_bytes")).is_some_and(|limit| limit < 1 << 62)
                };
                v1(&["memory"], "memory", &limits).map(|dir| Memory { dir, is_v2: false })
            });
        let cpu = v2(&|dir| quota_v2(dir).is_some())
            .and_then(|dir| {
                let processors = quota_v2(&dir)?;
                Some(Cpu {
                    usage: dir.join("cpu.stat"),
                    is_v2: true,
                    processors,
                    last: None,
                })
            })
            .or_else(|| {
                let dir = v1(&["cpu", "cpu,cpuacct"], "cpu", &|dir| {
                    quota_v1(dir).is_some()
                })?;
                let processors = quota_v1(&dir)?;
                let usage = ["cpuacct", "cpu,cpuacct", "cpu"].iter().find_map(|name| {
                    let of = above(&root.join(name), group("cpuacct").unwrap_or("/"));
                    of.map(|dir| dir.join("cpuacct.usage"))
                        .find(|file| file.is_file())
                })?;
                Some(Cpu {
                    usage,
                    is_v2: false,
                    processors,
                    last: None,
                })
            });
        Self { memory, cpu }
    }

    /// Returns the memory in use, in bytes, without memory that the system could free immediately.
    /// `None` if no group limits it.
    pub(crate) fn memory(&self) -> io::Result<Option<u64>> {
        let Some(Memory { dir, is_v2 }) = &self.memory else {
            return Ok(None);
        };
        let (usage, inactive) = if *is_v2 {
            ("memory.current", "inactive_file ")
        } else {
            ("memory.usage_in_bytes", "total_inactive_file ")
        };
        let used = number(&dir.join(usage)).ok_or_else(|| unexpected(&dir.join(usage)))?;
        let stat = fs::read_to_string(dir.join("memory.stat"))?;
        let inactive = stat
            .lines()
            .find_map(|line| line.strip_prefix(inactive)?.trim().parse().ok());
        Ok(Some(used.saturating_sub(inactive.unwrap_or(0))))
    }

    /// Returns the share of its CPU quota that the group has used since the last sample, at most 1.
    /// `None` if no group limits the CPU. `uptime` is the machine's, in seconds. The first sample
    /// has nothing to compare with and returns 0.
    pub(crate) fn cpu(&mut self, uptime: f64) -> io::Result<Option<f64>> {
        let Some(cpu) = &mut self.cpu else {
            return Ok(None);
        };
        let text = fs::read_to_string(&cpu.usage)?;
        let micros = if cpu.is_v2 {
            text.lines()
                .find_map(|line| line.strip_prefix("usage_usec ")?.trim().parse().ok())
        } else {
            text.trim().parse::<u64>().ok().map(|nanos| nanos / 1_000)
        };
        let micros: u64 = micros.ok_or_else(|| unexpected(&cpu.usage))?;
        let last = cpu.last.replace((micros, uptime));
        let Some((before, then)) = last.filter(|(_, then)| uptime > *then) else {
            return Ok(Some(0.0));
        };
        let used = micros.saturating_sub(before) as f64 / 1e6;
        Ok(Some((used / ((uptime - then) * cpu.processors)).min(1.0)))
    }
}

/// Returns the memory that the nearest limited control group of this process may use, in bytes.
/// `None` without a limit.
#[must_use]
pub fn memory_limit(proc: &Path, root: &Path) -> Option<u64> {
    let Memory { dir, is_v2 } = ControlGroup::find(proc, root).memory?;
    number(&dir.join(if is_v2 {
        "memory.max"
    } else {
        "memory.limit_in_bytes"
    }))
}

/// Returns a group's directory and its ancestors, up to `root`. Inside a container the path may be
/// that of the host, of which only the root exists.
fn above(root: &Path, path: &str) -> impl Iterator<Item = PathBuf> + use<> {
    let root = root.to_path_buf();
    let leaf = root.join(path.trim_start_matches('/'));
    let dirs: Vec<PathBuf> = leaf.ancestors().map(Path::to_path_buf).collect();
    dirs.into_iter()
        .filter(move |dir| dir.starts_with(&root) && dir.is_dir())
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the number of processors from `cpu.max`, which contains `max 100000`, or a quota and a
/// period in microseconds.
fn quota_v2(dir: &Path) -> Option<f64> {
    let text = fs::read_to_string(dir.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    processors(quota.parse().ok()?, period.parse().ok()?)
}

/// Returns the number of processors from two files. A quota of −1 means no quota.
fn quota_v1(dir: &Path) -> Option<f64> {
    processors(
        number(&dir.join("cpu.cfs_quota_us"))?,
        number(&dir.join("cpu.cfs_period_us"))?,
    )
}

fn processors(quota: u64, period: u64) -> Option<f64> {
    (quota > 0 && period > 0).then(|| quota as f64 / period as f64)
}

fn unexpected(file: &Path) -> io::Error {
    io::Error::other(format!("{} has unexpected content", file.display()))
}
