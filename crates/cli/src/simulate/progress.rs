//! Shows the progress of a long run on standard error: one line that is redrawn on a terminal, or a
//! new line every ten seconds elsewhere (in a job's log).

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_server::shown::span;
use tidegate_sim::{Progress, Stage};

/// How often the line on a terminal is drawn, and how long a run must take to get one.
const REDRAW: Duration = Duration::from_millis(200);
const PATIENCE: u32 = 10;
/// How often a line is written elsewhere.
const LINES: Duration = Duration::from_secs(10);

/// Shows the progress until it is dropped.
pub struct ProgressLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    pub fn show(progress: Arc<Progress>) -> Self {
        let (stop, stopped) = mpsc::channel::<()>();
        let over =
            move |wait| !matches!(stopped.recv_timeout(wait), Err(RecvTimeoutError::Timeout));
        let on_terminal = io::stderr().is_terminal();
        // If a line cannot be written, the run continues.
        let thread = thread::spawn(move || {
            if !on_terminal {
                return write_lines(&progress, &mut io::stderr(), over);
            }
            let (mut ticks, mut pace) = (0_u32, Pace::new(REDRAW));
            while !over(REDRAW) {
                ticks = ticks.saturating_add(1);
                let line = pace.line(progress.get());
                if ticks >= PATIENCE {
                    let _ = write!(io::stderr(), "\r{line} (Ctrl-C stops)\x1b[K");
                }
            }
            if ticks >= PATIENCE {
                let _ = write!(io::stderr(), "\r\x1b[K");
            }
        });
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        // The thread sees that the sender was dropped.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes a line each time that `over` has waited and returns false.
fn write_lines(progress: &Progress, out: &mut impl Write, over: impl Fn(Duration) -> bool) {
    let mut pace = Pace::new(LINES);
    while !over(LINES) {
        let _ = writeln!(out, "{}", pace.line(progress.get()));
    }
}

/// How fast a stage goes on, by what was done after each wait.
struct Pace {
    wait: Duration,
    stage: Option<Stage>,
    /// The number of waits in this stage, and what was done after the first.
    waits: u32,
    first: u64,
}

impl Pace {
    fn new(wait: Duration) -> Self {
        Self {
            wait,
            stage: None,
            waits: 0,
            first: 0,
        }
    }

    /// The line, with the time that is left if the stage's total is known.
    fn line(&mut self, (stage, done, total): (Stage, u64, u64)) -> String {
        if self.stage != Some(stage) {
            (self.stage, self.waits, self.first) = (Some(stage), 0, done);
        }
        let text = line((stage, done, total));
        let (since, waited) = (done.saturating_sub(self.first), self.waits);
        self.waits = self.waits.saturating_add(1);
        if since == 0 || total <= done {
            return text;
        }
        let left =
            f64::from(waited) * self.wait.as_secs_f64() * (total - done) as f64 / since as f64;
        // Whole seconds: it is an estimate.
        let left = Duration::from_secs_f64(left.ceil().clamp(0.0, 1e9));
        format!("{text}, about {} left", span(left))
    }
}

fn line((stage, done, total): (Stage, u64, u64)) -> String {
    let millions = done as f64 / 1e6;
    match (stage, (u128::from(done) * 100).checked_div(total.into())) {
        (Stage::Reading, _) if done == 0 => {
            "waiting for the first lines, as from a pipe that nothing writes to".to_owned()
        }
        (Stage::Reading, _) => format!("reading: {millions:.1} million lines"),
        (Stage::Suggesting, _) => format!("looking for limits: {millions:.1} million decisions"),
        (Stage::Replaying, Some(percent)) => {
            format!(
                "replaying: {percent}% of {:.1} million requests",
                total as f64 / 1e6
            )
        }
        (Stage::Replaying, None) => format!("replaying: {millions:.1} million requests"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_a_terminal_gets_a_line_every_ten_seconds() {
        let progress = Progress::default();
        progress.begin(Stage::Suggesting, 0);
        let (mut out, waits) = (Vec::new(), std::cell::Cell::new(0));
        write_lines(&progress, &mut out, |wait| {
            assert_eq!(wait, Duration::from_secs(10));
            waits.set(waits.get() + 1);
            waits.get() == 3
        });
        let expected = "looking for limits: 0.0 million decisions\n".repeat(2);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn a_stage_whose_total_is_known_has_the_time_that_is_left() {
        let mut pace = Pace::new(Duration::from_secs(10));
        let mut at = |stage, done, total| pace.line((stage, done, total));
        assert_eq!(
            at(Stage::Suggesting, 5, 0),
            "looking for limits: 0.0 million decisions"
        );
        // The first look of a stage is where its pace begins.
        let total = 4_000_000;
        assert!(!at(Stage::Replaying, 1_000_000, total).contains("left"));
        assert_eq!(
            at(Stage::Replaying, 1_500_000, total),
            "replaying: 37% of 4.0 million requests, about 50s left"
        );
        assert_eq!(
            at(Stage::Replaying, 3_000_000, total),
            "replaying: 75% of 4.0 million requests, about 10s left"
        );
        assert!(!at(Stage::Replaying, total, total).contains("left"));
    }

    #[test]
    fn a_line_has_the_stage_and_the_progress() {
        assert_eq!(
            line((Stage::Reading, 0, 0)),
            "waiting for the first lines, as from a pipe that nothing writes to"
        );
        assert_eq!(
            line((Stage::Reading, 1_500_000, 0)),
            "reading: 1.5 million lines"
        );
        assert_eq!(
            line((Stage::Suggesting, 120_800_000, 0)),
            "looking for limits: 120.8 million decisions"
        );
        assert_eq!(
            line((Stage::Replaying, 1, 2_000_000)),
            "replaying: 0% of 2.0 million requests"
        );
        assert_eq!(
            line((Stage::Replaying, 3_000_000, 0)),
            "replaying: 3.0 million requests"
        );
    }
}
