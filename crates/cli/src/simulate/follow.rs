//! `simulate --follow`: limits on a log while it is written, with one line of output per second.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use serde_json::json;
use tidegate_core::{Clock, clock::SystemClock};
use tidegate_server::trace::is_recording;
use tidegate_sim::{
    AlgorithmSpec, Live, LiveCounts, Trial,
    input::{self, is_packed, read_lines},
    report::printable,
};

use super::{Args, Output, SimulateError, note, options, recorded::named};

const SECOND: u64 = 1_000_000_000;
/// How often a file is read again after its end was reached.
const POLL: Duration = Duration::from_millis(100);
const CHUNK: usize = 64 * 1024;
/// How much of a file shows whether it is packed.
const HEAD: u64 = 1024;
/// How many bytes wait for the end of the second; more are decided on earlier.
const PENDING: usize = 8 << 20;

/// Runs every request through the limits as it is logged, and prints a line per second until the
/// input ends.
///
/// Standard input is read from its beginning, and a file from its end. After a rotation, the new
/// file is read from its beginning.
pub fn follow(args: &Args) -> Result<(), SimulateError> {
    let [source] = args.files.as_slice() else {
        return Err(SimulateError::FollowOne);
    };
    let specs = match &args.algorithms {
        Some(lists) => lists.concat(),
        // All algorithms would make a long line.
        None => AlgorithmSpec::all()
            .into_iter()
            .filter(|spec| spec.label() == "sliding-window")
            .collect(),
    };
    let trials = args
        .limits
        .iter()
        .map(|quota| Trial::new(*quota, &specs))
        .collect::<Result<Vec<_>, _>>()?;
    let (mut live, options) = (Live::new(&trials), options(args));
    let (sender, chunks) = sync_channel(64);
    let open = Tail::open(source);
    let (mut tail, head) = open.map_err(|error| input_error(source, error))?;
    check_followed(source, &head)?;
    thread::spawn(move || tail.send_all(&sender));

    let clock = SystemClock::new();
    let (mut format, mut pending, mut is_proved) = (None, Vec::new(), false);
    loop {
        let ended = gather(&chunks, &clock, &mut pending);
        let ended = ended.map_err(|error| input_error(source, error))?;
        if format.is_none() {
            check_followed(source, &pending)?;
        }
        // An incomplete line waits for its end.
        let complete = if ended {
            pending.len()
        } else {
            pending
                .iter()
                .rposition(|&byte| byte == b'\n')
                .map_or(0, |at| at + 1)
        };
        let read = read_lines(&pending[..complete], &mut format, &options)?;
        if !is_proved && !read.proof.samples.is_empty() {
            is_proved = true;
            for sample in &read.proof.samples {
                note(&format!("  {}\n    {sample}", printable(&sample.line, 110)));
            }
            for said in read
                .proof
                .notes(args.limits.iter().map(|quota| quota.window()).min())
            {
                note(&format!("warning: {said}"));
            }
        }
        let second = live.take(&read.trace, read.unparsed.count);
        pending.drain(..complete);
        if pending.len() > PENDING {
            note("a line of more than 8 MiB is left out");
            pending.clear();
        }
        if !print(args, &input::write_utc(clock.now().get()), &second)? {
            return Ok(());
        }
        if ended {
            print(args, "in all", live.total())?;
            return Ok(());
        }
    }
}

/// Refuses an input that begins with other things than lines of a log.
fn check_followed(source: &Path, head: &[u8]) -> Result<(), SimulateError> {
    if is_packed(head) {
        return Err(SimulateError::FollowPacked(named(source)));
    }
    if is_recording(head) {
        return Err(SimulateError::FollowTrace(named(source)));
    }
    Ok(())
}

fn input_error(source: &Path, error: io::Error) -> SimulateError {
    input::InputError::Open {
        source_name: named(source),
        error,
    }
    .into()
}

/// Collects input until the second is over; returns true if the input has ended.
fn gather(
    chunks: &Receiver<io::Result<Vec<u8>>>,
    clock: &SystemClock,
    pending: &mut Vec<u8>,
) -> io::Result<bool> {
    let end = (clock.now().get() / SECOND + 1) * SECOND;
    loop {
        // Even if the clock is set during this second, one line is printed per second.
        let left = Duration::from_nanos(end.saturating_sub(clock.now().get()).min(SECOND));
        if left.is_zero() || pending.len() > PENDING {
            return Ok(false);
        }
        match chunks.recv_timeout(left) {
            Ok(chunk) => pending.extend_from_slice(&chunk?),
            Err(RecvTimeoutError::Timeout) => return Ok(false),
            Err(RecvTimeoutError::Disconnected) => return Ok(true),
        }
    }
}

/// Returns false if the reader of the output has closed it.
fn print(args: &Args, when: &str, counts: &LiveCounts) -> Result<bool, SimulateError> {
    let line = match args.format {
        Output::Text => format!("{when}  {counts}"),
        Output::Json => {
            let limits = counts.limits.iter().map(|limit| {
                json!({
                    "limit": limit.quota.to_string(), "algorithm": limit.algorithm,
                    "denied": limit.denied, "denied_keys": limit.denied_keys,
                })
            });
            json!({
                "time": when, "requests": counts.requests, "keys": counts.keys, "left_out": counts.left_out,
                "unparsed": counts.unparsed, "limits": limits.collect::<Vec<_>>(),
            })
            .to_string()
        }
    };
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(SimulateError::Output(error)),
    }
}

/// A log that grows.
enum Tail {
    /// Standard input, or a pipe.
    Stream(Box<dyn Read + Send>),
    File {
        path: PathBuf,
        file: File,
        /// The file that has replaced this one.
        next: Option<File>,
    },
}

impl Tail {
    /// The input, and how a file begins.
    fn open(path: &Path) -> io::Result<(Self, Vec<u8>)> {
        if path.as_os_str() == "-" {
            return Ok((Self::Stream(Box::new(io::stdin())), Vec::new()));
        }
        let mut file = File::open(path)?;
        // A pipe has no end to begin at.
        if !file.metadata()?.is_file() {
            return Ok((Self::Stream(Box::new(file)), Vec::new()));
        }
        let mut head = Vec::new();
        (&mut file).take(HEAD).read_to_end(&mut head)?;
        file.seek(SeekFrom::End(0))?;
        let tail = Self::File {
            path: path.to_owned(),
            file,
            next: None,
        };
        Ok((tail, head))
    }

    /// Sends each line until the input ends or the receiver is dropped. A followed file never ends.
    fn send_all(&mut self, sender: &SyncSender<io::Result<Vec<u8>>>) {
        loop {
            let mut chunk = vec![0; CHUNK];
            let read = match self {
                Self::Stream(input) => input.read(&mut chunk),
                Self::File { file, .. } => file.read(&mut chunk),
            };
            let sent = match (read, &mut *self) {
                (Err(error), _) if error.kind() == io::ErrorKind::Interrupted => continue,
                (Err(error), _) => {
                    // The thread ends here, so a dropped receiver changes nothing.
                    let _ = sender.send(Err(error));
                    return;
                }
                (Ok(0), Self::Stream(_)) => return,
                (Ok(0), Self::File { path, file, next }) => {
                    // Read to the end once more: a last line may have come before the new file
                    // existed.
                    match next.take() {
                        Some(new) => *file = new,
                        None => *next = replaced(path, file),
                    }
                    if next.is_none() {
                        thread::park_timeout(POLL);
                    }
                    continue;
                }
                (Ok(length), _) => {
                    chunk.truncate(length);
                    sender.send(Ok(chunk))
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }
}

/// The file that has replaced one that was read to its end, from its beginning: another file of the
/// same name, or the same file if it was truncated. `None` if there is none (yet).
fn replaced(path: &Path, file: &mut File) -> Option<File> {
    let (old, position) = (file.metadata().ok()?, file.stream_position().ok()?);
    let new = File::open(path).ok()?;
    let now = new.metadata().ok()?;
    ((now.dev(), now.ino()) != (old.dev(), old.ino()) || now.len() < position).then_some(new)
}
