//! One line on standard error that says how far a long run has come.

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use tidegate_sim::Progress;

const TICK: Duration = Duration::from_millis(200);
/// Ticks before the first line: a run that is over within two seconds shows none.
const PATIENCE: u32 = 10;

/// Shows the progress until it is dropped; nothing where standard error is no terminal.
pub struct ProgressLine {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl ProgressLine {
    pub fn show(progress: Arc<Progress>) -> Self {
        if !io::stderr().is_terminal() {
            return Self { stop: None, thread: None };
        }
        let (stop, stopped) = mpsc::channel::<()>();
        let draw = move || {
            let mut ticks = 0_u32;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                ticks = ticks.saturating_add(1);
                if ticks >= PATIENCE {
                    // Where the line cannot be written, the run is more important.
                    let _ = write!(io::stderr(), "\r{}\x1b[K", line(progress.get()));
                }
            }
            if ticks >= PATIENCE {
                let _ = write!(io::stderr(), "\r\x1b[K");
            }
        };
        Self { stop: Some(stop), thread: Some(thread::spawn(draw)) }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        // The thread sees that nobody can tell it anything any more.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn line((done, total): (u64, u64)) -> String {
    let millions = |count: u64| count as f64 / 1e6;
    match (u128::from(done) * 100).checked_div(total.into()) {
        Some(percent) => {
            format!("replaying: {percent} % of {:.1} million requests (Ctrl-C stops)", millions(total))
        }
        None => format!("reading: {:.1} million lines (Ctrl-C stops)", millions(done)),
    }
}
