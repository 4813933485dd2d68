//! Bounds the frames of an HTTP/2 connection that ask for nothing: settings, pings, priorities,
//! window updates.
//!
//! The h2 crate bounds resets, header blocks and empty data frames, but answers any number of
//! these. A client needs one or two for each request, and some more for a long response. A
//! connection that sends more is closed.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::{Duration, Instant},
};
use tokio_util::io::{InspectReader, InspectWriter};

/// How many of these frames a connection may send at once.
const BURST: u64 = 1_000;
/// How many each request, each second, and each kibibyte of the responses allow in addition.
const PER_REQUEST: u64 = 10;
const PER_SECOND: u64 = 10;
const PER_KIB: u64 = 1;

/// The first bytes of an HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame's head.
const HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
/// The flag of the last frame of a stream.
const END_STREAM: u8 = 1;

/// Whether a connection has sent too many control frames.
#[derive(Debug, Default)]
pub struct ControlFrames {
    /// How many bytes the server has sent.
    sent: AtomicU64,
    too_many: Notify,
}

impl ControlFrames {
    /// Counts the frames of a stream, which is otherwise unchanged. HTTP/1 passes.
    pub fn watch<S>(self: &Arc<Self>, stream: S) -> impl AsyncRead + AsyncWrite + Unpin + use<S>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut frames = Frames::new();
        let (reads, writes) = (Arc::clone(self), Arc::clone(self));
        let read = InspectReader::new(stream, move |bytes: &[u8]| {
            // Relaxed: the task that reads also writes.
            if !frames.take(bytes, || reads.sent.load(Ordering::Relaxed)) {
                reads.too_many.notify_one();
            }
        });
        InspectWriter::new(read, move |bytes: &[u8]| {
            // No other task writes.
            let sent = writes.sent.load(Ordering::Relaxed) + bytes.len() as u64;
            writes.sent.store(sent, Ordering::Relaxed);
        })
    }

    /// Waits until the connection has sent too many.
    pub async fn are_too_many(&self) {
        self.too_many.notified().await;
    }
}

/// How far a connection has been read.
#[derive(Clone, Copy, Debug)]
enum At {
    /// This many bytes of the preface have come.
    Preface(usize),
    /// This many bytes of a frame's head have come.
    Head([u8; HEAD], usize),
    /// This many bytes of a frame's content are to come.
    Content(usize),
    Http1,
}

#[derive(Debug)]
struct Frames {
    at: At,
    /// The control frames that no request, time or response has allowed yet.
    control: u64,
    /// The requests, time and bytes sent that have not been counted for an allowance.
    requests: u64,
    since: Instant,
    kib_counted: u64,
}

impl Frames {
    fn new() -> Self {
        Self {
            at: At::Preface(0),
            control: 0,
            requests: 0,
            since: Instant::now(),
            kib_counted: 0,
        }
    }

    /// Counts the frames in these bytes. Returns false once there are too many.
    fn take(&mut self, mut bytes: &[u8], sent: impl Fn() -> u64) -> bool {
        while !bytes.is_empty() {
            match &mut self.at {
                At::Http1 => return true,
                At::Preface(have) => {
                    let some = bytes.len().min(PREFACE.len() - *have);
                    if bytes[..some] != PREFACE[*have..*have + some] {
                        self.at = At::Http1;
                        return true;
                    }
                    bytes = &bytes[some..];
                    *have += some;
                    if *have == PREFACE.len() {
                        self.at = At::Head([0; HEAD], 0);
                    }
                }
                At::Head(head, have) => {
                    let some = bytes.len().min(HEAD - *have);
                    head[*have..*have + some].copy_from_slice(&bytes[..some]);
                    bytes = &bytes[some..];
                    *have += some;
                    if *have == HEAD {
                        let [high, middle, low, kind, flags, ..] = *head;
                        let length = u32::from_be_bytes([0, high, middle, low]) as usize;
                        self.at = if length == 0 {
                            At::Head([0; HEAD], 0)
                        } else {
                            At::Content(length)
                        };
                        let is_asking = kind == CONTINUATION
                            || kind == DATA && (length > 0 || flags & END_STREAM != 0);
                        if kind == HEADERS {
                            self.requests += 1;
                        } else if !is_asking && !self.allow(&sent) {
                            return false;
                        }
                    }
                }
                At::Content(left) => {
                    let some = bytes.len().min(*left);
                    bytes = &bytes[some..];
                    *left -= some;
                    if *left == 0 {
                        self.at = At::Head([0; HEAD], 0);
                    }
                }
            }
        }
        true
    }

    fn allow(&mut self, sent: impl Fn() -> u64) -> bool {
        self.control += 1;
        if self.control <= BURST {
            return true;
        }
        let (seconds, kib) = (self.since.elapsed().as_secs(), sent() / 1024);
        let requests = std::mem::take(&mut self.requests);
        let allowed =
            requests * PER_REQUEST + seconds * PER_SECOND + (kib - self.kib_counted) * PER_KIB;
        self.since += Duration::from_secs(seconds);
        self.kib_counted = kib;
        self.control = self.control.saturating_sub(allowed);
        self.control <= BURST
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(kind: u8, flags: u8, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(content.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], content].concat()
    }

    /// How many of these frames pass.
    fn passed(frames: &mut Frames, frame: &[u8], count: usize, sent: u64) -> usize {
        (0..count)
            .take_while(|_| frames.take(frame, || sent))
            .count()
    }

    fn begun() -> Frames {
        let mut frames = Frames::new();
        assert!(frames.take(PREFACE, || 0));
        frames
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_control_frame_is_counted_and_requests_time_and_responses_allow_more() {
        // PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, an unknown kind, and data without
        // data.
        let burst = usize::try_from(BURST).unwrap();
        for (kind, length) in [(2, 5), (3, 4), (4, 6), (6, 8), (8, 4), (0xfa, 0), (0, 0)] {
            let control = frame(kind, 0, &vec![0; length]);
            assert_eq!(passed(&mut begun(), &control, 5_000, 0), burst, "{kind}");
        }
        let ping = frame(6, 0, &[0; 8]);
        let mut frames = begun();
        assert_eq!(passed(&mut frames, &ping, burst, 0), burst);
        assert!(frames.take(&frame(HEADERS, 4, &[0x82]), || 0));
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(passed(&mut frames, &ping, 5_000, 3 * 1024), 10 + 20 + 3);
    }

    #[test]
    fn requests_with_a_few_control_frames_each_never_end_and_neither_do_bodies() {
        let request = [
            frame(HEADERS, 4, &[0x82]),
            frame(8, 0, &[0; 4]).repeat(2),
            frame(6, 0, &[0; 8]),
        ]
        .concat();
        assert_eq!(passed(&mut begun(), &request, 100_000, 0), 100_000);
        assert_eq!(
            passed(&mut begun(), &frame(0, 0, b"data"), 100_000, 0),
            100_000
        );
        // A download: two updates for each 4 KiB.
        let mut frames = begun();
        for kib in 0..100_000 {
            assert!(frames.take(&frame(8, 0, &[0; 4]).repeat(2), || kib * 4 * 1024));
        }
    }

    proptest! {
        #[test]
        fn frames_are_counted_however_they_are_cut(
            kinds in prop::collection::vec((any::<u8>(), 0_usize..20), 0..50),
            cuts in prop::collection::vec(1_usize..30, 1..20),
        ) {
            let frames = kinds.iter().flat_map(|(kind, length)| frame(*kind, 0, &vec![7; *length]));
            let bytes: Vec<u8> = PREFACE.iter().copied().chain(frames).collect();
            let (mut whole, mut cut) = (Frames::new(), Frames::new());
            whole.take(&bytes, || 0);
            let mut rest = &bytes[..];
            for length in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, after) = rest.split_at((*length).min(rest.len()));
                cut.take(piece, || 0);
                rest = after;
            }
            prop_assert_eq!((whole.control, whole.requests), (cut.control, cut.requests));
        }
    }
}
