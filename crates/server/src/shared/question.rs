//! Questions that only the store can answer, as a connection of the Redis protocol gathers them.

use std::sync::Arc;

use tidegate_core::Decision;

use crate::{
    limits::Limit,
    service::{Act, Refusal, Service},
    throttle::{ThrottleError, ThrottleQuota},
};

/// A question for the store, which nothing in memory can answer.
#[derive(Debug)]
pub(crate) enum Question {
    /// For one of a limit's keys.
    Limit { limit: Arc<Limit>, key: Box<[u8]>, cost: u32, act: Act },
    /// For a bucket that comes with the request.
    Throttle { key: Box<[u8]>, quota: ThrottleQuota, quantity: i64 },
}

/// The store's answer to it.
#[derive(Debug)]
pub(crate) enum Reply {
    Limit(Result<Decision, Refusal>),
    Throttle(Result<Decision, ThrottleError>),
}

impl Question {
    /// Whether two questions are about one state: then their order matters.
    pub fn is_about(&self) -> (usize, &[u8]) {
        match self {
            Self::Limit { limit, key, .. } => (Arc::as_ptr(limit) as usize, key),
            Self::Throttle { key, .. } => (0, key),
        }
    }

    /// Asks questions about one state, in this order. Those that take, with no others between them, share a round trip.
    pub async fn ask_in_turn(questions: &[&Self], service: &Service) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(questions.len());
        for run in questions.chunk_by(|one, other| one.takes().is_some() && other.takes().is_some()) {
            match run {
                [Self::Limit { limit, key, .. }, _, ..] => {
                    let costs: Vec<u32> = run.iter().filter_map(|question| question.takes()).collect();
                    let decisions = limit.take_in_turn(key, &costs, service.now()).await;
                    replies.extend(decisions.into_iter().map(|decision| Reply::Limit(Ok(decision))));
                }
                _ => {
                    for question in run {
                        replies.push(question.ask(service).await);
                    }
                }
            }
        }
        replies
    }

    /// What it takes of a limit.
    fn takes(&self) -> Option<u32> {
        match self {
            Self::Limit { cost, act: Act::Take, .. } => Some(*cost),
            _ => None,
        }
    }

    /// Asks it.
    pub async fn ask(&self, service: &Service) -> Reply {
        match self {
            Self::Limit { limit, key, cost, act } => {
                Reply::Limit(limit.decide(*act, key, *cost, service.now()).await)
            }
            Self::Throttle { key, quota, quantity } => {
                Reply::Throttle(service.throttle_in_store(key, *quota, *quantity, service.now()).await)
            }
        }
    }
}
