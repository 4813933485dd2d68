//! Commands that the shared store decides, and how a connection keeps its replies in order.
//!
//! A connection's thread never waits. It gathers the questions of a pipeline (up to [`MOST`]) in a
//! future, which it polls between its turns. Until all are answered, it runs no further command of
//! that connection. Replies to the pipeline's other commands are buffered in between.
//!
//! Most questions are a connection's only one and take from an exact limit. Those of all
//! connections in a turn share a future.
//!
//! A command that waits in line is a question, too, and the last one of its batch. Its future is
//! given up when its client goes away.
//!
//! A future is not a task of the async runtime. Memory decides what it can at the first poll, and
//! the store's replies wake this thread once for all that have arrived. The runtime drives the
//! connection to the store and the timers.

use std::{
    mem,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
    vec,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{AbortHandle, abortable, join_all},
    stream::FuturesUnordered,
};
use tidegate_core::{Decision, Nanos};
use tidegate_service::decide::{limits::Limit, service::Service};

use crate::{
    Protocol,
    limiting::{write_bucket, write_bucket_error, write_decision, write_done, write_up_to},
    question::{Question, Reply},
    reply::Replies,
    reserving::write_reserved,
    session::Session,
};

/// The maximum number of questions of one connection in flight.
const MOST: usize = 128;
/// The size of the buffered replies, in bytes, above which a batch is sent early.
const BETWEEN: usize = 64 * 1024;

/// A connection's questions to the store, and the replies to its other commands since.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Each with its position in `between`.
    pub questions: Vec<(usize, Question)>,
    pub between: Vec<u8>,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.questions.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.questions.len() >= MOST || self.between.len() >= BETWEEN || self.waits()
    }

    /// Whether it waits in line. Then it has no other question, and no command follows.
    pub fn waits(&self) -> bool {
        match &self.questions[..] {
            [(_, Question::Wait { .. })] => true,
            [(_, Question::Reserve(reserving))] => reserving.waits(),
            _ => false,
        }
    }

    /// Its question, if it has only one and that can share a call with those of other connections.
    fn only_take(&mut self, at: usize, id: u64) -> Option<Take> {
        let [(_, question)] = &self.questions[..] else {
            return None;
        };
        question.shares_calls()?;
        let (
            _,
            Question::Limit {
                limit,
                key,
                cost,
                with_reason,
                ..
            },
        ) = self.questions.pop()?
        else {
            return None;
        };
        Some(Take {
            at,
            id,
            limit,
            key,
            cost,
            with_reason,
            between: mem::take(&mut self.between),
        })
    }

    /// Asks all questions, and assembles the replies in the order of the commands.
    ///
    /// Questions about one key are asked in the order of the commands, those that share calls
    /// together, all others concurrently.
    async fn answer(self, service: &Service) -> Vec<u8> {
        let read = service.now();
        if let [(_, question)] = &self.questions[..] {
            let reply = question.ask(read, service).await;
            let mut out = Vec::with_capacity(self.between.len() + 64);
            write(&mut out, question, &reply);
            out.extend_from_slice(&self.between);
            return out;
        }
        // Boxed, because most batches have one question.
        Box::pin(self.answer_all(read, service)).await
    }

    /// [`answer`](Self::answer) for several questions.
    async fn answer_all(self, read: Nanos, service: &Service) -> Vec<u8> {
        let question = |at: usize| &self.questions[at].1;
        let mut order: Vec<usize> = (0..self.questions.len()).collect();
        // A stable sort: questions about one state stay in order.
        order.sort_by_key(|&at| question(at).is_about());
        let mut chains: Vec<&[usize]> = order
            .chunk_by(|&one, &other| question(one).goes_with(question(other)))
            .collect();
        // In the order of their first commands, which the store's own queue keeps.
        chains.sort_unstable_by_key(|chain| chain.iter().min());
        let asked = chains.into_iter().map(async |chain| {
            let questions: Vec<&Question> = chain.iter().map(|&at| question(at)).collect();
            let replies = Question::ask_in_turn(&questions, read, service).await;
            chain.iter().copied().zip(replies).collect::<Vec<_>>()
        });
        let mut replies: Vec<(usize, Reply)> =
            join_all(asked).await.into_iter().flatten().collect();
        replies.sort_unstable_by_key(|(at, _)| *at);
        let mut out = Vec::with_capacity(self.between.len() + 32 * replies.len());
        let mut written = 0;
        for ((place, question), (_, reply)) in self.questions.iter().zip(&replies) {
            out.extend_from_slice(&self.between[written..*place]);
            written = *place;
            write(&mut out, question, reply);
        }
        out.extend_from_slice(&self.between[written..]);
        out
    }
}

fn write(out: &mut Vec<u8>, question: &Question, reply: &Reply) {
    // Arrays, integers and errors are the same in both protocol versions.
    let mut replies = Replies {
        out,
        protocol: Protocol::Resp2,
    };
    match (reply, question) {
        (
            Reply::Limit(Ok(decision)),
            Question::Limit {
                limit, with_reason, ..
            }
            | Question::Wait {
                limit, with_reason, ..
            },
        ) => {
            write_decision(&mut replies, decision, limit.spec().shadow, *with_reason);
        }
        (Reply::UpTo(Ok((taken, decision))), Question::UpTo { limit, form, .. }) => {
            write_up_to(&mut replies, (*taken, decision), limit, *form);
        }
        (Reply::Throttle(Ok(decision)), Question::Throttle { form, protocol, .. }) => {
            replies.protocol = *protocol;
            write_bucket(&mut replies, decision, *form);
        }
        (Reply::Operate(Ok(done)), Question::Operate { operation, .. }) => {
            write_done(&mut replies, operation, *done);
        }
        (Reply::Operate(Ok(_)), _) => replies.ok(),
        (
            Reply::Limit(Err(refusal)) | Reply::UpTo(Err(refusal)) | Reply::Operate(Err(refusal)),
            _,
        ) => {
            replies.error(&format!("ERR {refusal}"));
        }
        (Reply::Throttle(Err(error)), Question::Throttle { form, .. }) => {
            write_bucket_error(&mut replies, error, *form);
        }
        (Reply::Reserve(done), Question::Reserve(reserving)) => {
            replies.protocol = reserving.protocol;
            write_reserved(&mut replies, reserving.rights.as_deref(), done);
        }
        // An answer has its question's kind.
        (Reply::Limit(Ok(_)) | Reply::UpTo(Ok(_)) | Reply::Throttle(_) | Reply::Reserve(_), _) => {}
    }
}

/// Replies on their way back to a connection.
#[derive(Debug)]
pub(super) struct Answered {
    /// The connection's slot and number. Another connection may use the slot by now.
    pub at: usize,
    pub id: u64,
    /// `None` when the future panicked, as it does when the runtime is shutting down, or was given
    /// up.
    pub replies: Option<Vec<u8>>,
    pub was_in_line: bool,
}

/// A connection's only question, which takes from a limit whose questions share calls.
struct Take {
    at: usize,
    id: u64,
    limit: Arc<Limit>,
    key: Box<[u8]>,
    cost: u64,
    with_reason: bool,
    /// Replies to commands after it.
    between: Vec<u8>,
}

impl Take {
    /// Asks questions about one limit together.
    async fn ask(takes: &[Self], service: &Service) -> Vec<Option<Vec<u8>>> {
        let limit = &takes[0].limit;
        let requests: Vec<_> = takes.iter().map(|take| (&*take.key, take.cost)).collect();
        let decided = AssertUnwindSafe(limit.take_many(Duration::ZERO, &requests, service.now()))
            .catch_unwind()
            .await;
        let Ok(decisions) = decided else {
            return vec![None; takes.len()];
        };
        let reply = |(take, decision): (&Self, &Decision)| {
            let mut out = Vec::with_capacity(take.between.len() + 64);
            let mut replies = Replies {
                out: &mut out,
                protocol: Protocol::Resp2,
            };
            write_decision(
                &mut replies,
                decision,
                limit.spec().shadow,
                take.with_reason,
            );
            out.extend_from_slice(&take.between);
            Some(out)
        };
        takes.iter().zip(&decisions).map(reply).collect()
    }
}

/// The questions of a listener's thread that are being answered.
pub(super) struct UnderWay {
    /// Those of this turn that will be asked together.
    takes: Vec<Take>,
    batches: FuturesUnordered<Pin<Box<dyn Future<Output = Vec<Answered>> + Send>>>,
    /// How many of them wait in line.
    in_line: usize,
    /// Those that were answered and not yet handed over.
    answered: vec::IntoIter<Answered>,
    alarm: Arc<Alarm>,
    waker: Waker,
}

impl UnderWay {
    /// `ring` wakes the thread from its poll.
    pub fn new(ring: impl Fn() + Send + Sync + 'static) -> Self {
        let alarm = Arc::new(Alarm {
            state: AtomicU8::new(AWAKE),
            ring: Box::new(ring),
        });
        Self {
            takes: Vec::new(),
            batches: FuturesUnordered::new(),
            in_line: 0,
            answered: Vec::new().into_iter(),
            waker: Arc::clone(&alarm).into(),
            alarm,
        }
    }

    /// Adds a connection's batch. [`next`](Self::next) asks its questions. A batch that waits in line
    /// is given up through its handle.
    pub fn add(
        &mut self,
        mut batch: Batch,
        (at, session): (usize, &Session),
        service: &Arc<Service>,
    ) -> Option<AbortHandle> {
        let id = session.id;
        if let Some(take) = batch.only_take(at, id) {
            self.takes.push(take);
            return None;
        }
        let service = Arc::clone(service);
        if batch.waits() {
            self.in_line += 1;
            let waiting = async move { batch.answer(&service).await };
            let (waiting, handle) = abortable(AssertUnwindSafe(waiting).catch_unwind());
            self.batches.push(Box::pin(async move {
                let replies = waiting.await.ok().and_then(Result::ok);
                vec![Answered {
                    at,
                    id,
                    replies,
                    was_in_line: true,
                }]
            }));
            return Some(handle);
        }
        self.batches.push(Box::pin(async move {
            let replies = AssertUnwindSafe(batch.answer(&service))
                .catch_unwind()
                .await
                .ok();
            vec![Answered {
                at,
                id,
                replies,
                was_in_line: false,
            }]
        }));
        None
    }

    /// Asks the questions that were gathered, those about one limit together.
    fn ask_together(&mut self, service: &Arc<Service>) {
        let mut takes = mem::take(&mut self.takes);
        while let Some(limit) = takes.last().map(|take| Arc::clone(&take.limit)) {
            let (same, others) = takes
                .into_iter()
                .partition(|take| Arc::ptr_eq(&take.limit, &limit));
            takes = others;
            let (same, service): (Vec<Take>, _) = (same, Arc::clone(service));
            self.batches.push(Box::pin(async move {
                let replies = Take::ask(&same, &service).await;
                let answered = |(take, replies): (Take, _)| Answered {
                    at: take.at,
                    id: take.id,
                    replies,
                    was_in_line: false,
                };
                same.into_iter().zip(replies).map(answered).collect()
            }));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.batches.is_empty() && self.answered.len() == 0
    }

    /// Whether the store must answer.
    pub fn asks_the_store(&self) -> bool {
        !self.takes.is_empty() || self.batches.len() > self.in_line
    }

    /// The next answered batch, if there is one now. Must be called within the async runtime's
    /// context.
    pub fn next(&mut self, service: &Arc<Service>) -> Option<Answered> {
        self.ask_together(service);
        loop {
            if let Some(answered) = self.answered.next() {
                self.in_line -= usize::from(answered.was_in_line);
                return Some(answered);
            }
            match self
                .batches
                .poll_next_unpin(&mut Context::from_waker(&self.waker))
            {
                Poll::Ready(Some(answered)) => self.answered = answered.into_iter(),
                Poll::Ready(None) | Poll::Pending => return None,
            }
        }
    }

    /// Whether the thread may wait for its sockets. If so, an answer from now on ends the wait;
    /// otherwise there may already be one.
    pub fn may_wait(&self) -> bool {
        self.alarm.may_wait()
    }

    /// The thread no longer waits.
    pub fn waited(&self) {
        self.alarm.waited();
    }
}

/// The thread will look for answers before it waits.
const AWAKE: u8 = 0;
/// The thread waits for its sockets.
const WAITING: u8 = 1;
/// There may be an answer that the thread has not seen.
const RUNG: u8 = 2;

/// Wakes a listener's thread. Only a waiting thread costs a system call.
struct Alarm {
    state: AtomicU8,
    ring: Box<dyn Fn() + Send + Sync>,
}

impl Alarm {
    fn may_wait(&self) -> bool {
        // AcqRel, here and below: a thread that sees the other's change of the state sees what
        // happened before it. Either the listener's thread sees that there is an answer, or the
        // other one sees that it waits.
        let waits =
            self.state
                .compare_exchange(AWAKE, WAITING, Ordering::AcqRel, Ordering::Acquire);
        if waits.is_err() {
            self.waited();
        }
        waits.is_ok()
    }

    fn waited(&self) {
        self.state.swap(AWAKE, Ordering::AcqRel);
    }
}

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(RUNG, Ordering::AcqRel) == WAITING {
            (self.ring)();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn an_answer_ends_the_wait_once_and_is_seen_by_who_does_not_wait_yet() {
        let rings = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&rings);
        let under_way = UnderWay::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let rung = || rings.load(Ordering::Relaxed);
        under_way.waker.wake_by_ref();
        assert!(!under_way.may_wait(), "there may be an answer");
        assert!(under_way.may_wait(), "which the thread has looked for");
        assert_eq!(rung(), 0, "nobody waited");
        under_way.waker.wake_by_ref();
        under_way.waker.wake_by_ref();
        assert_eq!(rung(), 1, "one system call for both");
        under_way.waited();
        assert!(under_way.may_wait());
    }
}
