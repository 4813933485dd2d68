//! Decisions by the first of several limits that admits.

use tidegate_core::Decision;

use super::{
    Part, SharedDecision,
    joint::{decide_any, formers_of},
};
use crate::{Store, StoreError};

/// The decision of the first of several limits that admits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a decision has no effect unless the caller reads it"]
pub struct AnyOf {
    /// The index of the limit that admitted and took its cost; `None` if all denied.
    pub chosen: Option<usize>,
    /// Its decision alone, or the denials of all in their order.
    pub decisions: Vec<SharedDecision>,
}

impl Store {
    /// Takes the cost of the first of these limits that admits. If all deny, none is charged, and
    /// each has denied.
    ///
    /// The store decides in one step. What nodes hold of a leased limit counts as used. Where one
    /// step is not possible (the keys are in different slots of a cluster, two parts have one key,
    /// or another rule binds a limit), the limits are asked in turn. If the store makes no
    /// decision, each limit's [`OnError`](crate::OnError) decides, in turn, too.
    ///
    /// # Panics
    /// If polled outside a Tokio runtime with time enabled.
    pub async fn acquire_any(&self, parts: &[Part<'_>]) -> AnyOf {
        let decided = Box::pin(self.any_in_one_step(parts)).await;
        self.batcher().monitor.decided(&decided);
        match decided {
            Ok(Some((chosen, decisions))) => AnyOf {
                chosen,
                decisions: decisions
                    .into_iter()
                    .map(SharedDecision::by_store)
                    .collect(),
            },
            Ok(None) => Box::pin(self.any_in_turn(parts)).await,
            Err(error) => {
                let mut decisions = Vec::with_capacity(parts.len());
                for (at, part) in parts.iter().enumerate() {
                    let (limit, key) = (part.limit, part.key);
                    let answer = limit.without_store(key, part.cost, error.clone());
                    if answer.is_allowed() {
                        return only(at, answer);
                    }
                    decisions.push(answer);
                }
                AnyOf {
                    chosen: None,
                    decisions,
                }
            }
        }
    }

    /// `None` if one step is not possible.
    async fn any_in_one_step(
        &self,
        parts: &[Part<'_>],
    ) -> Result<Option<(Option<usize>, Vec<Decision>)>, StoreError> {
        let Some(deadline) = parts.iter().map(|part| part.limit.deadline()).min() else {
            return Ok(Some((None, Vec::new())));
        };
        let formers = formers_of(parts, deadline).await?;
        if formers.iter().any(|formers| !formers.is_empty()) {
            return Ok(None);
        }
        let requests = parts
            .iter()
            .map(|part| part.limit.request(part.key, part.cost));
        let requests: Vec<_> = requests.collect();
        match decide_any(self, &requests, deadline).await {
            Err(StoreError::CrossSlot | StoreError::OneKey) => Ok(None),
            decided => decided.map(Some),
        }
    }

    async fn any_in_turn(&self, parts: &[Part<'_>]) -> AnyOf {
        let mut decisions = Vec::with_capacity(parts.len());
        for (at, part) in parts.iter().enumerate() {
            let asked = part.limit.peek(part.key, part.cost).await;
            // A peek that is denied counts as no denial for a block. A request that no limit admits
            // counts for the last.
            let is_last = at + 1 == parts.len();
            if asked.is_denied() && !is_last {
                decisions.push(asked);
                continue;
            }
            let answer = match self.acquire_all(&[*part]).await {
                Ok(mut answers) if answers.len() == 1 => answers.remove(0),
                Ok(_) => part
                    .limit
                    .without_store(part.key, part.cost, StoreError::BadReply),
                Err(error) => part.limit.without_store(part.key, part.cost, error),
            };
            if answer.is_allowed() {
                return only(at, answer);
            }
            decisions.push(answer);
        }
        AnyOf {
            chosen: None,
            decisions,
        }
    }
}

fn only(at: usize, answer: SharedDecision) -> AnyOf {
    AnyOf {
        chosen: Some(at),
        decisions: vec![answer],
    }
}
