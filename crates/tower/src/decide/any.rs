//! Layers of which one limit suffices: the first that admits takes its cost.

use tidegate_core::Decision;
use tidegate_limiter::{Timer, acquire_any};

use super::{LayerDecision, LayerOptions, LimitKind, LimitQuestion, Reason, TakenUnits, requests};

impl<C: Timer + 'static> LayerOptions<C> {
    /// Decides over limits of this process in one atomic step.
    pub(super) fn decide_any_local(
        &self,
        verdict: &mut LayerDecision<C>,
        questions: &[LimitQuestion<'_, C>],
    ) {
        if questions.is_empty() {
            return;
        }
        match acquire_any(&requests(questions)) {
            Ok(any) => match any.chosen().zip(any.estimate()) {
                Some((at, estimate)) => {
                    let chosen = questions.iter().zip(any.decisions()).nth(at);
                    let Some((question, &decision)) = chosen else {
                        return;
                    };
                    let may_return = !decision.delay().is_zero();
                    let taken = Some(TakenUnits::Here(estimate));
                    self.take(verdict, question, decision, taken, may_return);
                }
                None => refuse_soonest(verdict, questions, any.decisions()),
            },
            Err(full) => self.misconfigured(verdict, questions, &full),
        }
    }

    /// Asks limits in turn, if some are not of this process.
    pub(super) async fn decide_any(&self, questions: &[LimitQuestion<'_, C>]) -> LayerDecision<C> {
        let mut verdict = LayerDecision::new();
        if questions.iter().all(|question| question.limit.is_local()) {
            self.decide_any_local(&mut verdict, questions);
        } else {
            let mut denials = Vec::with_capacity(questions.len());
            for question in questions {
                if let Some(denied) = peeked(question).await.filter(Decision::is_denied) {
                    denials.push(denied);
                    continue;
                }
                let next = self.decide_all(std::slice::from_ref(question)).await;
                match next.refused {
                    None => {
                        verdict = next;
                        denials.clear();
                        break;
                    }
                    Some(refused) => denials.push(refused.decision),
                }
            }
            refuse_soonest(&mut verdict, questions, &denials);
        }
        if let Some(bound) = self.max_wait {
            verdict.within(bound);
        }
        verdict
    }
}

/// Refuses with the denial that ends first, if there is one.
fn refuse_soonest<C: Timer + 'static>(
    verdict: &mut LayerDecision<C>,
    questions: &[LimitQuestion<'_, C>],
    denials: &[Decision],
) {
    let soonest = questions
        .iter()
        .zip(denials)
        .min_by_key(|(_, denied)| denied.severity());
    if let Some((question, denied)) = soonest {
        verdict.add(question, *denied);
        verdict.refuse(question.rule, Reason::Limited, *denied);
    }
}

/// What a limit would decide. A denial of a limit that is passed over does not count. `None` for a
/// custom limit, which can only be asked.
#[cfg_attr(
    not(feature = "shared"),
    allow(clippy::unused_async, reason = "a store is asked")
)]
async fn peeked<C: Timer + 'static>(question: &LimitQuestion<'_, C>) -> Option<Decision> {
    let (key, cost) = (&*question.key, question.cost);
    match &question.limit.0 {
        LimitKind::Keyed(limiter) => Some(limiter.peek(key, cost)),
        LimitKind::Unkeyed(limiter) => Some(limiter.peek(cost)),
        #[cfg(feature = "shared")]
        LimitKind::Shared(limit) => Some(limit.peek(key, cost).await.decision),
        LimitKind::Own(_) => None,
    }
}
