//! Decisions over shared limits.

use tidegate_limiter::Timer;
use tidegate_redis::{
    Mode, Once, Part, SharedDecision, SharedEstimate, SharedLimit, Source, Store, StoreError,
};

use crate::{
    Reason,
    decide::LayerDecision,
    hold::{Hold, TakenUnits},
    in_flight::Returns,
    limit::LimitKind,
    options::{LayerOptions, no_decision},
    question::LimitQuestion,
    settle::Settle,
};

impl<C: Timer + 'static> LayerOptions<C> {
    /// Decides over shared limits: the limits of one store in one step, and the stores one after
    /// another.
    pub(crate) async fn decide_shared(
        &self,
        questions: &[LimitQuestion<'_, C>],
    ) -> LayerDecision<C> {
        let shared = |question: &LimitQuestion<'_, C>| match &question.limit.0 {
            LimitKind::Shared(limit) => Some(limit.clone()),
            _ => None,
        };
        let mut verdict = LayerDecision::new();
        let mut left: Vec<(SharedLimit, &LimitQuestion<'_, C>)> = questions
            .iter()
            .filter_map(|question| Some((shared(question)?, question)))
            .collect();
        while let Some((first, _)) = left.first() {
            let store = first.store().clone();
            let (together, others): (Vec<_>, Vec<_>) = left
                .into_iter()
                .partition(|(limit, _)| limit.store().is_same(&store));
            left = others;
            let next = match &together[..] {
                [(limit, question)] => self.decide_one(limit, question).await,
                _ => self.decide_in_store(&store, &together).await,
            };
            verdict.then(next);
            if verdict.refused.is_some() {
                break;
            }
        }
        verdict
    }

    async fn decide_one(
        &self,
        limit: &SharedLimit,
        question: &LimitQuestion<'_, C>,
    ) -> LayerDecision<C> {
        let mut verdict = LayerDecision::new();
        if Returns::of(limit.policy()) != Returns::AtTheEnd {
            // Units of an allotment have no time of their own, so they could not return.
            let (answer, taken) = if self.settles(question) || limit.mode() == Mode::Exact {
                let asked = limit.acquire_estimate(&question.key, question.cost);
                let (answer, taken) = asked.await;
                (answer, Some(taken))
            } else {
                (limit.acquire(&question.key, question.cost).await, None)
            };
            self.take_shared(&mut verdict, question, &answer, taken);
            return verdict;
        }
        // A separate task asks the store: if this request is dropped before the answer, the task
        // drops the permit when it arrives.
        let (asked, key, cost) = (
            limit.clone(),
            question.key.clone().into_owned(),
            question.cost,
        );
        match tokio::spawn(async move { asked.permit(&key, cost).await }).await {
            Ok(Ok(permit)) => {
                let answer = permit.decision();
                if !matches!(answer.source, Source::Failed(_)) {
                    verdict.add(question, answer.decision);
                }
                let hold = Hold::of_permit(question.limit.clone().into_owned(), permit);
                verdict.holds.push(hold, Settle::Back);
            }
            Ok(Err(denied)) => self.take_shared(&mut verdict, question, &denied, None),
            // The runtime is shutting down.
            Err(_) => verdict.refuse(question.rule, Reason::StoreFailed, no_decision(0)),
        }
        verdict
    }

    async fn decide_in_store(
        &self,
        store: &Store,
        together: &[(SharedLimit, &LimitQuestion<'_, C>)],
    ) -> LayerDecision<C> {
        let part = |(limit, question): &'_ (SharedLimit, &'_ LimitQuestion<'_, C>)| {
            (
                limit.clone(),
                question.key.clone().into_owned(),
                question.cost,
            )
        };
        let owned: Vec<_> = together.iter().map(part).collect();
        let parts: Vec<Part<'_>> = owned
            .iter()
            .map(|(limit, key, cost)| Part {
                limit,
                key,
                cost: *cost,
            })
            .collect();
        let mut verdict = LayerDecision::new();
        let in_store = together
            .iter()
            .any(|(limit, question)| self.settles(question) || limit.mode() == Mode::Exact);
        let asked = if in_store {
            store.acquire_all_estimates(&parts).await
        } else {
            let answers = store.acquire_all(&parts).await;
            answers.map(|answers| (answers, Vec::new()))
        };
        match asked {
            Ok((answers, taken)) => {
                let mut taken = taken.into_iter();
                let allowed = answers.iter().all(SharedDecision::is_allowed);
                for ((_, question), answer) in together.iter().zip(&answers) {
                    let taken = taken.next();
                    // If another limit denied, the state of the limits that would have admitted is
                    // unknown.
                    if allowed || answer.is_denied() {
                        self.take_shared(&mut verdict, question, answer, taken);
                    }
                }
            }
            Err(error) => {
                let first = together.first().map(|(_, question)| *question);
                self.refuse_apart(&mut verdict, first, &error);
            }
        }
        verdict
    }

    /// Decides over limits of one store, for a request with an id. The second value says whether the
    /// store had admitted it before; `None` if the store did not decide.
    pub(crate) async fn admit_in_store(
        &self,
        store: &Store,
        id: &[u8],
        questions: &[LimitQuestion<'_, C>],
    ) -> (LayerDecision<C>, Option<bool>) {
        let shared = |question: &LimitQuestion<'_, C>| match &question.limit.0 {
            LimitKind::Shared(limit) => Some((
                limit.clone(),
                question.key.clone().into_owned(),
                question.cost,
            )),
            _ => None,
        };
        let owned: Vec<_> = questions.iter().filter_map(shared).collect();
        let parts: Vec<_> = owned
            .iter()
            .map(|(limit, key, cost)| {
                let cost = *cost;
                (Part { limit, key, cost }, false)
            })
            .collect();
        let mut verdict = LayerDecision::new();
        let Once {
            decisions,
            is_repeat,
        } = match store.admit_all_once(id, &parts).await {
            Ok(once) => once,
            Err(error) => {
                self.refuse_apart(&mut verdict, questions.first(), &error);
                return (verdict, Some(false));
            }
        };
        let allowed = decisions.iter().all(SharedDecision::is_allowed);
        for (question, answer) in questions.iter().zip(&decisions) {
            if allowed || answer.is_denied() {
                self.take_shared(&mut verdict, question, answer, None);
            }
        }
        let by_store = decisions.iter().all(|one| one.source == Source::Store);
        (verdict, by_store.then_some(is_repeat))
    }

    #[cold]
    fn refuse_apart(
        &self,
        verdict: &mut LayerDecision<C>,
        first: Option<&LimitQuestion<'_, C>>,
        error: &StoreError,
    ) {
        self.log(|| tracing::error!(%error, "the shared limits of a layer cannot be decided together; requests are refused with status 500"));
        let rule = first.map_or(0, |question| question.rule);
        verdict.refuse(rule, Reason::Misconfigured, no_decision(0));
    }

    fn take_shared(
        &self,
        verdict: &mut LayerDecision<C>,
        question: &LimitQuestion<'_, C>,
        answer: &SharedDecision,
        taken: Option<SharedEstimate>,
    ) {
        match (&answer.source, answer.is_denied()) {
            (Source::Failed(_), true) => {
                verdict.refuse(question.rule, Reason::StoreFailed, answer.decision);
            }
            // Nothing was taken, and the state of the limit is unknown.
            (Source::Failed(_), false) => {}
            _ => {
                let taken = taken.map(TakenUnits::Shared);
                self.take(verdict, question, answer.decision, taken, true);
            }
        }
    }
}
