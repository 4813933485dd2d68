//! Requests with an id, which are safe to repeat: a repeat of an admitted request takes nothing.
//!
//! Only admissions are remembered. A denial took nothing, and clients keep an id when they try again
//! after the wait of a denial.
//!
//! An admitted request with an id keeps its units if it is dropped before its service is called:
//! its repeat is admitted without taking any.

#[cfg(feature = "shared")]
use std::borrow::Cow;

use http::request::Parts;
use tidegate_core::{Decision, Standing};
use tidegate_limiter::{
    Timer,
    repeats::{Mark, Repeats},
};
#[cfg(feature = "shared")]
use tidegate_redis::Store;

use super::LayerDecision;
#[cfg(feature = "shared")]
use crate::limit::LimitKind;
use crate::{
    in_flight::Returns,
    options::LayerOptions,
    question::{LayerQuestions, LimitQuestion},
};

/// A request with an id that counts once.
pub(super) struct Named<'r> {
    #[cfg(feature = "shared")]
    id: Cow<'r, [u8]>,
    mark: Mark,
    repeats: &'r Repeats,
    /// The number of decisions that are remembered.
    parts: usize,
}

impl<C: Timer + 'static> LayerOptions<C> {
    /// The request's name, if it has an id and is about limits whose units are spent. A permit
    /// belongs to one request, so each repeat needs its own.
    pub(super) fn named<'r>(
        &'r self,
        asked: &LayerQuestions<'_, C>,
        parts: &'r Parts,
    ) -> Option<Named<'r>> {
        let once = self.once.as_deref().filter(|_| !self.any)?;
        let id = once.id(parts)?;
        let all = || asked.questions.iter().chain(&asked.shadows);
        if all().next().is_none() || all().any(|one| self.returns(one) == Returns::AtTheEnd) {
            return None;
        }
        let of = all().map(|question| {
            let name = self.rules[question.rule].name.as_str();
            (name, &*question.key, question.cost)
        });
        Some(Named {
            mark: once.repeats.mark(&id, of),
            #[cfg(feature = "shared")]
            id,
            repeats: &once.repeats,
            // A request that only limits in a dry run count has one decision, too.
            parts: asked.questions.len().max(1),
        })
    }

    /// Decides on a request with an id, as [`decide_first`](Self::decide_first). `None` if the
    /// request has no id.
    pub(super) fn decide_first_once(
        &self,
        verdict: &mut LayerDecision<C>,
        parts: &Parts,
    ) -> Option<bool> {
        self.once.as_deref()?.id(parts)?;
        let asked = match self.questions(parts) {
            Ok(asked) => asked,
            Err(refused) => {
                verdict.refused = Some(refused);
                return Some(true);
            }
        };
        let LayerQuestions { questions, shadows } = &asked;
        let Some(named) = self.named(&asked, parts) else {
            return Some(self.decide_now(verdict, questions, shadows, parts));
        };
        let mut all = questions.iter().chain(shadows);
        if !all.all(|question| question.limit.is_local()) {
            return Some(false);
        }
        let mut is_new = false;
        let first = named
            .repeats
            .once_all(named.mark, named.parts, self.time.now(), || {
                is_new = true;
                self.decide_local(verdict, questions, false);
                if let Some(bound) = self.max_wait {
                    verdict.within(bound);
                }
                verdict.admission(questions.len()).ok_or(())
            });
        match first {
            Ok(first) if !is_new => verdict.repeat(questions, &first),
            _ if verdict.refused.is_some() => return Some(self.max_wait.is_none()),
            _ => {
                verdict.holds.run();
                self.decide_shadows_now(verdict, shadows, parts);
            }
        }
        Some(true)
    }

    /// Decides on a request with an id. If all its limits are in one store, the store remembers the
    /// admission, for all processes. Otherwise this process does.
    pub(super) async fn decide_once(
        &self,
        named: &Named<'_>,
        asked: &LayerQuestions<'_, C>,
        parts: &Parts,
    ) -> LayerDecision<C> {
        let (questions, now) = (&asked.questions[..], self.time.now());
        if let Some(first) = named.repeats.first(named.mark, named.parts, now) {
            let mut verdict = LayerDecision::new();
            verdict.repeat(questions, &first);
            return verdict;
        }
        #[cfg(feature = "shared")]
        if let Some(store) = self.store_of(questions) {
            let answer = self.admit_in_store(&store, &named.id, questions).await;
            let (mut verdict, by_store) = answer;
            if by_store != Some(true) {
                self.decide_shadows(&mut verdict, &asked.shadows, parts)
                    .await;
            }
            if by_store.is_none() {
                self.remember(&mut verdict, named, questions);
            }
            verdict.holds.run();
            return verdict;
        }
        let mut verdict = self.decide(asked, parts).await;
        self.remember(&mut verdict, named, questions);
        verdict
    }

    fn remember(
        &self,
        verdict: &mut LayerDecision<C>,
        named: &Named<'_>,
        questions: &[LimitQuestion<'_, C>],
    ) {
        let Some(all) = verdict.admission(questions.len()) else {
            return;
        };
        let now = self.time.now();
        let kept = named
            .repeats
            .once_all(named.mark, named.parts, now, || Ok::<_, ()>(all));
        if kept.is_ok() {
            verdict.holds.run();
        }
    }

    /// The store that decides about all these limits at once.
    #[cfg(feature = "shared")]
    fn store_of(&self, questions: &[LimitQuestion<'_, C>]) -> Option<Store> {
        let store = |question: &LimitQuestion<'_, C>| match &question.limit.0 {
            LimitKind::Shared(limit) if !self.settles(question) => Some(limit.store().clone()),
            _ => None,
        };
        let (first, others) = questions.split_first()?;
        let first = store(first).filter(|_| self.max_wait.is_none())?;
        let is_same = |question| store(question).is_some_and(|other| other.is_same(&first));
        others.iter().all(is_same).then_some(first)
    }
}

impl<C: Timer + 'static> LayerDecision<C> {
    /// The decisions of this number of limits, if they admit and all are known.
    fn admission(&self, limits: usize) -> Option<Vec<Decision>> {
        if self.refused.is_some() || self.decisions.len() != limits {
            return None;
        }
        let mut all: Vec<_> = self.decisions.iter().map(|one| one.decision).collect();
        if all.is_empty() {
            all.push(Decision::allow(Standing {
                limit: 0,
                room: 0,
                unit: 1,
                reset_after: 0,
            }));
        }
        Some(all)
    }

    /// The first decisions, for a repeat.
    fn repeat(&mut self, questions: &[LimitQuestion<'_, C>], first: &[Decision]) {
        for (question, decision) in questions.iter().zip(first) {
            self.add(question, *decision);
        }
    }
}
