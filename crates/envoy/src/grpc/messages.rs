//! Bounds the messages of calls before they are decoded: their size, the memory of all that are
//! arriving, and their number of parts. A part of two bytes takes a hundred and more once it is
//! decoded, so the size alone bounds nothing.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use http::Request;
use hyper::body::{Body, Frame, Incoming};
use prost::decode_length_delimiter;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Sleep, sleep},
};
use tokio_util::sync::PollSemaphore;
use tonic::Status;

/// The bytes in front of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Messages up to this size take nothing from the memory for large ones: Envoy's usual ones have a
/// few hundred bytes.
const SMALL: usize = 64 * 1024;
/// The maximum size of all large messages that are arriving or being decoded, in KiB. Each takes
/// about three times its size: as it arrives, in the buffer of its reader, and decoded.
const ALL_LARGE: usize = 8 * 1024;
/// How long the rest of a message may take to arrive.
const ARRIVAL: Duration = Duration::from_secs(10);
/// Messages with at most these parts take nothing from the memory for those with more.
const FEW_PARTS: usize = 512;
/// The maximum number of parts of all messages with many parts that are being decoded.
const ALL_PARTS: usize = 80_000;

/// Marks where the parts of a message are counted: a test counts how often.
#[cfg(not(test))]
const fn begins_to_count() {}
#[cfg(test)]
use tests::begins_to_count;

/// The bounds of a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Its size in bytes.
    pub size: usize,
    /// Its parts: the messages in the first of these fields, those in the second field of each of
    /// them, and so on.
    pub path: &'static [usize],
    /// The maximum number of parts.
    pub parts: usize,
}

/// The memory for large messages, which all calls share.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    arriving: Arc<Semaphore>,
    /// Permits for parts. Their holders need nothing more from the client, so they never wait for
    /// it.
    decoded: Arc<Semaphore>,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            arriving: Arc::new(Semaphore::new(ALL_LARGE)),
            decoded: Arc::new(Semaphore::new(ALL_PARTS)),
        }
    }
}

impl Memory {
    /// The same request, with messages within these limits.
    pub fn bound(&self, limits: Limits, request: Request<Incoming>) -> Request<Messages<Incoming>> {
        request.map(|body| self.bound_body(limits, body))
    }

    fn bound_body<B>(&self, limits: Limits, body: B) -> Messages<B> {
        Messages {
            body,
            limits,
            arriving: PollSemaphore::new(Arc::clone(&self.arriving)),
            decoded: PollSemaphore::new(Arc::clone(&self.decoded)),
            arrives: None,
            passed_on: None,
            arrived: BytesMut::new(),
            counted: None,
            late: None,
        }
    }
}

/// A body that passes on whole messages, after their limits were checked.
pub(super) struct Messages<B> {
    body: B,
    limits: Limits,
    arriving: PollSemaphore,
    decoded: PollSemaphore,
    /// For a large message, while it arrives.
    arrives: Option<OwnedSemaphorePermit>,
    /// For messages that were passed on, until the reader asks for the next ones.
    passed_on: Option<[Option<OwnedSemaphorePermit>; 2]>,
    /// The beginning of a message.
    arrived: BytesMut,
    /// The length and the parts of the whole messages in it, once they were counted.
    counted: Option<(usize, usize)>,
    /// Runs while the rest of a message has not arrived.
    late: Option<Pin<Box<Sleep>>>,
}

impl<B> Messages<B> {
    /// The length of the message that has begun to arrive, with its prefix.
    fn expected(&self) -> Result<Option<usize>, Status> {
        let Some(mut length) = self.arrived.get(1..PREFIX) else {
            return Ok(None);
        };
        let length = length.get_u32() as usize;
        if length > self.limits.size {
            let what = format!(
                "the message has {length} bytes; at most {} are allowed",
                self.limits.size
            );
            return Err(Status::out_of_range(what));
        }
        Ok(Some(PREFIX + length))
    }

    /// The number of a message's parts.
    fn parts(&self, message: &[u8]) -> Result<usize, Status> {
        begins_to_count();
        let mut left = self.limits.parts;
        if count(message, self.limits.path, &mut left).is_none() {
            let what = format!(
                "the message has more than {} parts; send fewer at once",
                self.limits.parts
            );
            return Err(Status::invalid_argument(what));
        }
        Ok(self.limits.parts - left)
    }

    /// The number of parts if these bytes are one message of a small size.
    fn parts_of_small(&self, bytes: &[u8]) -> Result<Option<usize>, Status> {
        let Some((mut prefix, message)) = bytes.split_at_checked(PREFIX) else {
            return Ok(None);
        };
        prefix.advance(1);
        let is_one = prefix.get_u32() as usize == message.len();
        if is_one && message.len() <= SMALL.min(self.limits.size) {
            self.parts(message).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The length of all whole messages that have arrived, and how many parts they have.
    fn whole(&self, first: usize) -> Result<(usize, usize), Status> {
        let (mut end, mut all) = (0, 0);
        let mut next = Some(first);
        while let Some(length) = next.filter(|length| end + length <= self.arrived.len()) {
            all += self.parts(&self.arrived[end + PREFIX..end + length])?;
            end += length;
            // A later message in the same bytes is checked for its size when the first ones are
            // gone.
            let rest = self.arrived.get(end + 1..end + PREFIX);
            next = rest.map(|mut length| PREFIX + length.get_u32() as usize);
        }
        Ok((end, all))
    }
}

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for Messages<B> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.passed_on = None;
        loop {
            if let Some(expected) = self.expected()? {
                if self.arrived.len() >= expected {
                    let (end, parts) = match self.counted {
                        Some(counted) => counted,
                        None => self.whole(expected)?,
                    };
                    self.counted = Some((end, parts));
                    let decoded = if parts > FEW_PARTS {
                        let wanted = u32::try_from(parts.min(ALL_PARTS)).unwrap_or(u32::MAX);
                        ready!(self.decoded.poll_acquire_many(context, wanted))
                    } else {
                        None
                    };
                    self.counted = None;
                    self.late = None;
                    self.passed_on = Some([self.arrives.take(), decoded]);
                    // An empty rest would keep the memory of the whole.
                    let whole = if end == self.arrived.len() {
                        mem::take(&mut self.arrived)
                    } else {
                        self.arrived.split_to(end)
                    };
                    return Poll::Ready(Some(Ok(Frame::data(whole.freeze()))));
                }
                if expected > SMALL && self.arrives.is_none() {
                    let wanted = u32::try_from(expected.div_ceil(1024)).unwrap_or(u32::MAX);
                    self.arrives = ready!(self.arriving.poll_acquire_many(context, wanted));
                }
                let missing = expected - self.arrived.len();
                self.arrived.reserve(missing);
            }
            let polled = Pin::new(&mut self.body).poll_frame(context);
            if polled.is_pending() && !self.arrived.is_empty() {
                let late = self.late.get_or_insert_with(|| Box::pin(sleep(ARRIVAL)));
                ready!(late.as_mut().poll(context));
                let what = format!(
                    "the message did not arrive within {} seconds",
                    ARRIVAL.as_secs()
                );
                return Poll::Ready(Some(Err(Status::deadline_exceeded(what))));
            }
            let frame = match ready!(polled) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    return Poll::Ready(Some(Err(Status::from_error(Box::new(error)))));
                }
                // The rest of a message that ends too early: its reader says so.
                None if self.arrived.is_empty() => return Poll::Ready(None),
                None => return Poll::Ready(Some(Ok(Frame::data(self.arrived.split().freeze())))),
            };
            match frame.into_data() {
                Ok(data) => {
                    let parts = if self.arrived.is_empty() {
                        self.parts_of_small(&data)?
                    } else {
                        None
                    };
                    // As nearly always. It needs no copy.
                    if parts.is_some_and(|parts| parts <= FEW_PARTS) {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    self.counted = parts.map(|parts| (data.len(), parts));
                    self.arrived.extend_from_slice(&data);
                }
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.arrived.is_empty() && self.body.is_end_stream()
    }
}

/// Counts the parts of an encoded message down from `left`. `None` if there are more. Wrong
/// encodings end the count: the decoder refuses them.
fn count(mut bytes: &[u8], path: &[usize], left: &mut usize) -> Option<()> {
    let [field, deeper @ ..] = path else {
        return Some(());
    };
    // An error takes memory, also the one at the end.
    while !bytes.is_empty()
        && let Ok(tag) = decode_length_delimiter(&mut bytes)
    {
        let skipped = match tag & 7 {
            0 => decode_length_delimiter(&mut bytes)
                .ok()
                .map(|_| &bytes[..0]),
            1 => bytes.split_off(..8),
            2 => decode_length_delimiter(&mut bytes)
                .ok()
                .and_then(|length| bytes.split_off(..length)),
            5 => bytes.split_off(..4),
            _ => None,
        };
        let Some(content) = skipped else { break };
        if tag == field << 3 | 2 {
            *left = left.checked_sub(1)?;
            count(content, deeper, left)?;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use crate::pb::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    };
    use futures_util::StreamExt as _;
    use http_body_util::{BodyExt, StreamBody};
    use prost::Message;

    use super::*;

    thread_local! {
        /// How often this thread has counted the parts of a message.
        static COUNTS: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn begins_to_count() {
        COUNTS.set(COUNTS.get() + 1);
    }

    fn request(descriptors: usize, entries: usize) -> Vec<u8> {
        let entry = Entry {
            key: "key".to_owned(),
            value: "value".to_owned(),
        };
        let descriptor = RateLimitDescriptor {
            entries: vec![entry; entries],
            ..RateLimitDescriptor::default()
        };
        let descriptors = vec![descriptor; descriptors];
        RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors,
            hits_addend: 1,
        }
        .encode_to_vec()
    }

    fn framed(message: &[u8]) -> Vec<u8> {
        let mut framed = vec![0];
        framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
        framed.extend_from_slice(message);
        framed
    }

    async fn passed(
        pieces: Vec<Vec<u8>>,
        memory: &Memory,
        limits: Limits,
    ) -> Result<Vec<u8>, Status> {
        let frames = pieces
            .into_iter()
            .map(|piece| Ok::<_, hyper::Error>(Frame::data(Bytes::from(piece))));
        let body = memory.bound_body(limits, StreamBody::new(futures_util::stream::iter(frames)));
        Ok(body.collect().await?.to_bytes().to_vec())
    }

    const LIMITS: Limits = Limits {
        size: 200_000,
        path: &[2, 1],
        parts: 100,
    };

    #[tokio::test]
    async fn large_messages_share_a_bounded_memory() {
        let memory = Memory::default();
        let large = request(2, 1)
            .into_iter()
            .chain([0x1a, 0])
            .chain(std::iter::repeat_n([0x1a, 0], 50_000).flatten());
        let large = framed(&large.collect::<Vec<_>>());
        let all = memory
            .arriving
            .clone()
            .acquire_many_owned(u32::try_from(ALL_LARGE).unwrap())
            .await
            .unwrap();
        let (first, second) = large.split_at(1_000);
        let pieces = vec![first.to_vec(), second.to_vec()];
        let mut waiting = std::pin::pin!(passed(pieces.clone(), &memory, LIMITS));
        assert!(
            futures_util::poll!(&mut waiting).is_pending(),
            "all memory is in use"
        );
        assert!(
            passed(vec![framed(&request(2, 2))], &memory, LIMITS)
                .await
                .is_ok(),
            "small ones need none"
        );
        drop(all);
        assert_eq!(waiting.await.unwrap(), large);
        assert_eq!(memory.arriving.available_permits(), ALL_LARGE, "given back");
    }

    #[tokio::test]
    async fn messages_with_many_parts_wait_for_the_memory_that_they_take_once_decoded() {
        let memory = Memory::default();
        let limits = Limits {
            parts: 4_096,
            ..LIMITS
        };
        // Two bytes a part: small before it is decoded.
        let many = framed(&request(1_000, 0));
        assert!(many.len() < SMALL);
        let all = memory
            .decoded
            .clone()
            .acquire_many_owned(u32::try_from(ALL_PARTS).unwrap())
            .await
            .unwrap();
        let mut waiting = std::pin::pin!(passed(vec![many.clone()], &memory, limits));
        assert!(
            futures_util::poll!(&mut waiting).is_pending(),
            "all memory is in use"
        );
        assert!(
            passed(vec![framed(&request(500, 0))], &memory, limits)
                .await
                .is_ok(),
            "few parts need none"
        );
        drop(all);
        assert_eq!(waiting.await.unwrap(), many);
        assert_eq!(memory.decoded.available_permits(), ALL_PARTS, "given back");
    }

    #[tokio::test]
    async fn the_parts_of_a_message_are_counted_once() {
        let memory = Memory::default();
        let limits = Limits {
            parts: 8_192,
            ..LIMITS
        };
        let all = memory
            .decoded
            .clone()
            .acquire_many_owned(u32::try_from(ALL_PARTS).unwrap())
            .await
            .unwrap();
        for (descriptors, entries, waits) in [(2, 2, false), (1_000, 0, true), (60, 100, true)] {
            let message = framed(&request(descriptors, entries));
            for first in [message.len(), PREFIX + 1] {
                let pieces = message.chunks(first).map(<[u8]>::to_vec).collect();
                let mut passed = std::pin::pin!(passed(pieces, &memory, limits));
                let mut is_waiting = true;
                // It is asked again while it waits for memory.
                for _ in 0..3 {
                    is_waiting = is_waiting && futures_util::poll!(&mut passed).is_pending();
                }
                assert_eq!((is_waiting, COUNTS.replace(0)), (waits, 1));
            }
        }
        drop(all);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_never_ends_is_an_error_and_holds_no_memory_after_that() {
        let memory = Memory::default();
        let message = framed(&[0x1a, 0].repeat(50_000));
        let first = Ok::<_, hyper::Error>(Frame::data(Bytes::copy_from_slice(&message[..1_000])));
        let body = futures_util::stream::iter([first]).chain(futures_util::stream::pending());
        let mut body = memory.bound_body(LIMITS, StreamBody::new(body));
        let began = tokio::time::Instant::now();
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(
            (error.code(), began.elapsed()),
            (tonic::Code::DeadlineExceeded, ARRIVAL)
        );
        drop(body);
        assert_eq!(memory.arriving.available_permits(), ALL_LARGE);
    }

    #[tokio::test]
    async fn a_stream_that_is_silent_after_a_large_message_holds_no_memory() {
        let memory = Memory::default();
        let large = framed(&[0x1a, 0].repeat(50_000));
        let first =
            futures_util::stream::iter([Ok::<_, hyper::Error>(Frame::data(Bytes::from(large)))]);
        let body = first.chain(futures_util::stream::pending());
        let mut body = memory.bound_body(LIMITS, StreamBody::new(body));
        body.frame().await.unwrap().unwrap();
        assert!(futures_util::poll!(std::pin::pin!(body.frame())).is_pending());
        assert_eq!(memory.arriving.available_permits(), ALL_LARGE);
    }
}
