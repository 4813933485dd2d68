//! Commands that the shared store decides, and how a connection keeps its replies in order.
//!
//! A connection's thread never waits. It gathers the questions of a pipeline (up to [`MOST`]) and hands them to the async
//! runtime. Until all are answered, it runs no further command of that connection. Replies to the pipeline's other commands
//! are buffered in between.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::join_all;
use tokio::runtime::Handle;

use super::{
    Protocol,
    limiting::{write_cell, write_decision},
    question::{Question, Reply},
    reply::Replies,
    session::Session,
};
use crate::service::Service;

/// The maximum number of questions of one connection in flight.
const MOST: usize = 128;
/// A batch is also sent when this many bytes of replies are buffered.
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
        self.questions.len() >= MOST || self.between.len() >= BETWEEN
    }

    /// Asks all questions, and assembles the replies in the order of the commands.
    ///
    /// Questions about one key are asked in the order of the commands, all others concurrently.
    async fn answer(self, service: &Service) -> Vec<u8> {
        let mut about: HashMap<_, Vec<usize>> = HashMap::with_capacity(self.questions.len());
        for (at, (_, question)) in self.questions.iter().enumerate() {
            about.entry(question.is_about()).or_default().push(at);
        }
        let mut order: Vec<Vec<usize>> = about.into_values().collect();
        // Sorted by the first command of each key, an order that the store's own queue keeps.
        order.sort_unstable();
        let asked = order.into_iter().map(async |chain| {
            let questions: Vec<&Question> = chain.iter().map(|&at| &self.questions[at].1).collect();
            let replies = Question::ask_in_turn(&questions, service).await;
            chain.into_iter().zip(replies).collect::<Vec<_>>()
        });
        let mut replies: Vec<(usize, Reply)> = join_all(asked).await.into_iter().flatten().collect();
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
    let mut replies = Replies { out, protocol: Protocol::Resp2 };
    match (reply, question) {
        (Reply::Limit(Ok(decision)), Question::Limit { limit, .. }) => {
            write_decision(&mut replies, decision, limit.spec().shadow);
        }
        (Reply::Limit(Ok(decision)) | Reply::Throttle(Ok(decision)), _) => {
            write_cell(&mut replies, decision);
        }
        (Reply::Limit(Err(refusal)), _) => replies.error(&format!("ERR {refusal}")),
        (Reply::Throttle(Err(error)), _) => replies.error(&error.to_string()),
    }
}

/// Replies on their way back to a connection.
#[derive(Debug)]
pub(super) struct Answered {
    /// The connection's slot and number. Another connection may use the slot by now.
    pub at: usize,
    pub id: u64,
    /// `None` when the runtime dropped the batch.
    pub replies: Option<Vec<u8>>,
}

/// Where a listener thread receives the replies.
pub(super) struct Mailbox {
    answers: Mutex<Vec<Answered>>,
    /// Wakes the thread.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Mailbox {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { answers: Mutex::default(), wake: Box::new(wake) }
    }

    /// Takes all replies that have arrived.
    pub fn take(&self) -> Vec<Answered> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, answered: Answered) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(answered);
        // The first reply wakes the thread, which takes them all.
        let first = answers.len() == 1;
        drop(answers);
        if first {
            (self.wake)();
        }
    }
}

/// Puts a reply into the mailbox, even if its task is dropped.
struct Ticket {
    mailbox: Arc<Mailbox>,
    at: usize,
    id: u64,
    replies: Option<Vec<u8>>,
}

impl Ticket {
    fn redeem(mut self, replies: Vec<u8>) {
        self.replies = Some(replies);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.mailbox.put(Answered { at: self.at, id: self.id, replies: self.replies.take() });
    }
}

/// Sends a connection's batch to the runtime.
pub(super) fn send(
    batch: Batch,
    (at, session): (usize, &Session),
    runtime: &Handle,
    service: &Arc<Service>,
    mailbox: &Arc<Mailbox>,
) {
    let ticket = Ticket { mailbox: Arc::clone(mailbox), at, id: session.id, replies: None };
    let service = Arc::clone(service);
    runtime.spawn(async move {
        let replies = batch.answer(&service).await;
        ticket.redeem(replies);
    });
}
