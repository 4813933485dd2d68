//! Commands that the shared store answers: how a connection's replies keep their order around them.
//!
//! A connection's thread never waits. It gathers the questions of a pipeline (up to [`MOST`]) and hands them to the async
//! runtime; until all are answered it runs no further command of that connection. What other commands of the same pipeline
//! have replied meanwhile is kept between the answers.

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

/// How many questions of one connection are under way at most.
const MOST: usize = 128;
/// With so many bytes of replies kept between them, a batch is sent off too.
const BETWEEN: usize = 64 * 1024;

/// What a connection has asked the store, and what else it has replied since.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Each with its place in `between`.
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

    /// Asks all of it, and puts the replies together in the order of the commands.
    ///
    /// Questions about one key are asked in the order in which the commands came; all else at once.
    async fn answer(self, service: &Service) -> Vec<u8> {
        let mut about: HashMap<_, Vec<usize>> = HashMap::with_capacity(self.questions.len());
        for (at, (_, question)) in self.questions.iter().enumerate() {
            about.entry(question.is_about()).or_default().push(at);
        }
        let mut order: Vec<Vec<usize>> = about.into_values().collect();
        // By the first command of each key: the store's own queue keeps this order.
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
    // Arrays, integers and errors are the same in both versions of the protocol.
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
    /// The connection's place, and its number: the place may be another's by now.
    pub at: usize,
    pub id: u64,
    /// `None` when the runtime dropped the batch.
    pub replies: Option<Vec<u8>>,
}

/// Where a listener thread finds the replies.
pub(super) struct Mailbox {
    answers: Mutex<Vec<Answered>>,
    /// Wakes the thread.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Mailbox {
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { answers: Mutex::default(), wake: Box::new(wake) }
    }

    /// All that has arrived.
    pub fn take(&self) -> Vec<Answered> {
        std::mem::take(&mut *self.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, answered: Answered) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.push(answered);
        // Whoever put the first has woken the thread, which takes them all.
        let first = answers.len() == 1;
        drop(answers);
        if first {
            (self.wake)();
        }
    }
}

/// Puts an answer into the mailbox, whatever happens to the task that has it.
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

/// Has a connection's batch answered on the runtime.
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
