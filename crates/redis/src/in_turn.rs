//! Several requests for one key, one after the other, in one call.

use tidegate_core::{Clock, Decision};

use crate::{SharedDecision, SharedLimit, Source, StoreError};

impl SharedLimit {
    /// Asks for several costs of one key, each by itself and in this order: as so many calls of [`acquire`](Self::acquire),
    /// but in one round trip. Keep them to some hundreds, as others wait meanwhile.
    pub async fn acquire_in_turn(&self, key: impl AsRef<[u8]>, costs: &[u32]) -> Vec<SharedDecision> {
        let key = key.as_ref();
        let mut answers = Vec::with_capacity(costs.len());
        if self.leases().is_some() || costs.len() < 2 {
            for &cost in costs {
                answers.push(self.acquire(key, cost).await);
            }
            return answers;
        }
        let (inner, whole) = (self.store().inner(), self.redis_key(key));
        let denials = self.denial_tag(&whole).map(|tag| (tag, inner.clock.now()));
        let remembered = |&cost: &u32| denials.and_then(|(tag, now)| inner.denials.get(tag, cost, now));
        let known: Vec<Option<Decision>> = costs.iter().map(remembered).collect();
        let unknown = costs.iter().zip(&known).filter(|(_, known)| known.is_none());
        let asked: Vec<u32> = unknown.map(|(&cost, _)| cost).collect();
        let told = self.store().decide_in_turn(self.plan(), whole, &asked, self.deadline()).await;
        let mut told = told.into_iter();
        for (&cost, known) in costs.iter().zip(known) {
            if let Some(decision) = known {
                inner.counters.remembered.add(1);
                answers.push(SharedDecision { decision, source: Source::Remembered });
                continue;
            }
            answers.push(match told.next().unwrap_or(Err(StoreError::BadReply)) {
                Ok((decision, _)) => {
                    if let Some((tag, asked)) = denials
                        && decision.is_denied()
                    {
                        inner.denials.put(tag, cost, &decision, asked);
                    }
                    SharedDecision { decision, source: Source::Store }
                }
                Err(error) => self.without_store(key, cost, error),
            });
        }
        answers
    }
}
