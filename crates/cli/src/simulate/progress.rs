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
            let mut ticks = 0_u32;
            while !over(REDRAW) {
                ticks = ticks.saturating_add(1);
                if ticks >= PATIENCE {
                    let _ = write!(
                        io::stderr(),
                        "\r{} (Ctrl-C stops)\x1b[K",
                        line(progress.get())
                    );
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
    while !over(LINES) {
        let _ = writeln!(out, "{}", line(progress.get()));
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
