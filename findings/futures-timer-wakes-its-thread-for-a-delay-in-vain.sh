#!/usr/bin/env bash
# futures-timer 3.0.4: a `Delay` wakes the timer's own thread when it is made, and again when it is dropped before its end, however late that end is. So a
# deadline around each piece of work (`select` of the work and a `Delay`) costs two wake-ups of another thread, though none ends by time. A `Delay` that is
# made while another one sleeps, and would end long after it, wakes the thread, too.
#
# Seen on 2026-11-29, futures-timer 3.0.4, Rust 1.95, Linux; sleeps of the thread (voluntary context switches) for 100 delays of an hour, 20 ms apart:
#   made and kept: 100
#   dropped: 100
#
# Fails if this changes by more than a tenth (a pause is sometimes too short for the thread).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cargo init -q --vcs none --name probe
cargo add -q futures-timer@=3.0.4
cat >src/main.rs <<'RUST'
use std::{fs, thread, time::Duration};

/// How often the timer's thread has gone to sleep.
fn sleeps() -> u64 {
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        if status.starts_with("Name:\tfutures-timer") {
            let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches:"));
            return line.unwrap().split_whitespace().nth(1).unwrap().parse().unwrap();
        }
    }
    panic!("the thread does not run");
}

fn pause() {
    thread::sleep(Duration::from_millis(20));
}

fn main() {
    let hour = Duration::from_secs(3_600);
    let mut delays = vec![futures_timer::Delay::new(hour)];
    pause();
    let before = sleeps();
    for _ in 0..100 {
        delays.push(futures_timer::Delay::new(2 * hour));
        pause();
    }
    println!("made and kept: {}", sleeps() - before);
    let before = sleeps();
    for delay in delays.drain(1..) {
        drop(delay);
        pause();
    }
    println!("dropped: {}", sleeps() - before);
}
RUST
cargo run -q --release | tee seen
awk '{ if ($NF < 90 || $NF > 110) exit 1; lines++ } END { if (lines != 2) exit 1 }' seen
