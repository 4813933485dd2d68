//! One decision over all limits of a layer.
#![cfg_attr(
    not(feature = "shared"),
    allow(
        clippy::match_wildcard_for_single_variants,
        reason = "with shared limits there are more variants"
    )
)]

mod any;
mod once;

use std::{borrow::Cow, time::Duration};

use http::request::Parts;
use smallvec::SmallVec;
use tidegate_core::Decision;
use tidegate_limiter::{Request, Timer, acquire_all, acquire_all_estimates_at, wait_all_estimates};

use crate::{
    Reason, Refusal,
    header_decision::HeaderDecision,
    hold::{Holds, TakenUnits},
    in_flight::Returns,
    limit::LimitKind,
    options::{LayerOptions, LimitSource, no_decision},
    question::{LayerQuestions, LimitQuestion, Refused},
    settle::Settle,
    signals,
};

/// A layer's decision.
pub(crate) struct LayerDecision<C: Timer + 'static> {
    pub(crate) decisions: SmallVec<[HeaderDecision<C>; 2]>,
    pub(crate) refused: Option<Box<Refused>>,
    pub(crate) holds: Holds<C>,
}

impl<C: Timer + 'static> LayerDecision<C> {
    pub(crate) fn new() -> Self {
        Self {
            decisions: SmallVec::new(),
            refused: None,
            holds: Holds::new(),
        }
    }

    /// How long the request must wait before the service is called.
    pub(crate) fn delay(&self) -> Duration {
        self.decisions
            .iter()
            .map(|decided| decided.decision.delay())
            .max()
            .unwrap_or_default()
    }

    /// Records the state of a limit for the response headers.
    #[inline]
    pub(crate) fn add(&mut self, question: &LimitQuestion<'_, C>, decision: Decision) {
        let chosen = match &question.limit {
            Cow::Borrowed(_) => None,
            Cow::Owned(limit) => Some(limit.clone()),
        };
        self.decisions.push(HeaderDecision {
            rule: question.rule,
            decision,
            chosen,
        });
    }

    /// Refuses the request. If several limits deny in one step, the one with the longest wait is
    /// reported; among equals, the first.
    #[cold]
    pub(crate) fn refuse(&mut self, rule: usize, reason: Reason, decision: Decision) {
        if self
            .refused
            .as_ref()
            .is_none_or(|refused| refused.decision.severity() < decision.severity())
        {
            self.refused = Some(Box::new(Refused {
                rule,
                reason,
                decision,
            }));
        }
    }

    /// Adds the verdict of a later step, which runs only if all earlier steps admitted.
    pub(crate) fn then(&mut self, next: Self) {
        self.refused = next.refused;
        if self.refused.is_some() {
            // Dropping the holds refunds the earlier steps.
            self.holds = Holds::new();
            self.decisions = next.decisions;
        } else {
            self.holds.append(next.holds);
            self.decisions.extend(next.decisions);
        }
    }

    /// Refuses a request whose delay exceeds the bound.
    fn within(&mut self, bound: Duration) {
        let late = self
            .decisions
            .iter_mut()
            .filter(|decided| decided.decision.delay() > bound);
        let mut refused = None;
        for decided in late {
            decided.decision = denied_within(&decided.decision, bound);
            refused = Some((decided.rule, decided.decision));
        }
        if let Some((rule, decision)) = refused {
            self.refuse(rule, Reason::Limited, decision);
            self.holds = Holds::new();
        }
    }
}

impl<C> HeaderDecision<C> {
    /// Whether the request is served now, and takes nothing that must be returned.
    #[inline]
    pub(crate) fn just_admits(&self) -> bool {
        let decision = &self.decision;
        decision.is_allowed()
            && decision.delay().is_zero()
            && TakenUnits::permits(decision, 1).is_none()
    }
}

/// A denial stays, and a delay above the bound becomes one, for the time above it.
fn denied_within(decision: &Decision, bound: Duration) -> Decision {
    if decision.is_denied() {
        return *decision;
    }
    let late = decision.delay().saturating_sub(bound);
    Decision::deny(
        decision.standing(),
        u64::try_from(late.as_nanos()).unwrap_or(u64::MAX - 1),
    )
}

impl<C: Timer + 'static> LayerOptions<C> {
    /// Decides on a request to a layer whose one limit is of this process and takes nothing back: as
    /// [`decide_first`](Self::decide_first), without lists of questions and of what is held. `None`
    /// if the layer is not of this kind, or the request has no key.
    #[inline]
    pub(crate) fn decide_plain(&self, parts: &Parts) -> Option<HeaderDecision<C>> {
        let [rule] = self.rules.as_slice() else {
            return None;
        };
        let LimitSource::Fixed(limit) = &rule.source else {
            return None;
        };
        let is_special = self.once.is_some()
            || self.any
            || self.max_wait.is_some()
            || self.exempt.is_some()
            || rule.shadow
            || rule.exempt.is_some()
            || !matches!(rule.settle, Settle::Before)
            || rule.returns.took_back();
        if is_special {
            return None;
        }
        let key = rule.key.key(parts)?;
        if rule.returns.of(limit, true, &key) != Returns::Refused {
            return None;
        }
        let cost = || rule.cost.as_ref().map_or(1, |cost| cost(parts));
        let decision = match &limit.0 {
            LimitKind::Keyed(limiter) => limiter.acquire(&key, cost()),
            LimitKind::Unkeyed(limiter) => limiter.acquire(cost()),
            _ => return None,
        };
        Some(HeaderDecision {
            rule: 0,
            decision,
            chosen: None,
        })
    }

    /// Takes in a [plain](Self::decide_plain) decision that does not just admit.
    #[cold]
    pub(crate) fn take_plain(
        &self,
        verdict: &mut LayerDecision<C>,
        decided: HeaderDecision<C>,
        parts: &Parts,
    ) {
        if let [rule] = self.rules.as_slice()
            && let Ok(Some(question)) = self.question(decided.rule, rule, parts)
            && let Some(permits) = TakenUnits::permits(&decided.decision, question.cost)
        {
            return self.take(verdict, &question, decided.decision, Some(permits), false);
        }
        if decided.decision.is_denied() {
            verdict.refuse(decided.rule, Reason::Limited, decided.decision);
        }
        verdict.decisions.push(decided);
    }

    /// Decides, into a new verdict, if no waiting is needed. Otherwise returns false, and nothing
    /// is taken.
    #[inline]
    pub(crate) fn decide_first(&self, verdict: &mut LayerDecision<C>, parts: &Parts) -> bool {
        if self.once.is_some()
            && !self.any
            && let Some(is_decided) = self.decide_first_once(verdict, parts)
        {
            return is_decided;
        }
        let decided = match &self.rules[..] {
            // Most layers have one limit, and a list of questions would cost as much as its
            // decision.
            [rule] if !rule.shadow && !self.is_exempt(parts) => self
                .question(0, rule, parts)
                .map(|question| self.decide_now(verdict, question.as_slice(), &[], parts)),
            _ => self
                .questions(parts)
                .map(|asked| self.decide_now(verdict, &asked.questions, &asked.shadows, parts)),
        };
        decided.unwrap_or_else(|refused| {
            verdict.refused = Some(refused);
            true
        })
    }

    /// Decides immediately, into a new verdict. Returns false, with nothing taken, if the decision
    /// must ask a store or wait in line.
    #[inline]
    fn decide_now(
        &self,
        verdict: &mut LayerDecision<C>,
        questions: &[LimitQuestion<'_, C>],
        shadows: &[LimitQuestion<'_, C>],
        parts: &Parts,
    ) -> bool {
        if !questions
            .iter()
            .chain(shadows)
            .all(|question| question.limit.is_local())
        {
            return false;
        }
        if self.any {
            self.decide_any_local(verdict, questions);
        } else {
            self.decide_local(verdict, questions, false);
        }
        if let Some(bound) = self.max_wait {
            verdict.within(bound);
        }
        if verdict.refused.is_some() {
            return self.max_wait.is_none() || self.any;
        }
        self.decide_shadows_now(verdict, shadows, parts);
        true
    }

    fn decide_shadows_now(
        &self,
        verdict: &mut LayerDecision<C>,
        shadows: &[LimitQuestion<'_, C>],
        parts: &Parts,
    ) {
        for shadow in shadows {
            let mut shadowed = LayerDecision::new();
            self.decide_local(&mut shadowed, std::slice::from_ref(shadow), false);
            self.add_shadow(verdict, shadowed, parts);
        }
    }

    /// Decides asynchronously. It builds the questions again: closures return the same for the same
    /// request.
    pub(crate) async fn decide_later(&self, parts: &Parts) -> LayerDecision<C> {
        match self.questions(parts) {
            Ok(asked) => match self.named(&asked, parts) {
                Some(named) => Box::pin(self.decide_once(&named, &asked, parts)).await,
                None => self.decide(&asked, parts).await,
            },
            Err(refused) => LayerDecision {
                refused: Some(refused),
                ..LayerDecision::new()
            },
        }
    }

    /// Decides, and waits for admission up to the layer's bound.
    async fn decide(&self, asked: &LayerQuestions<'_, C>, parts: &Parts) -> LayerDecision<C> {
        let mut verdict = match (self.max_wait, &asked.questions[..]) {
            (_, questions) if self.any => self.decide_any(questions).await,
            (None, questions) => self.decide_all(questions).await,
            (Some(bound), [question]) if question.limit.is_local() => {
                self.wait_in_line(question, bound).await
            }
            (Some(bound), questions)
                if questions.iter().all(|question| question.limit.is_local()) =>
            {
                self.wait_in_lines(questions, bound).await
            }
            (Some(bound), questions) => self.ask_again(questions, bound).await,
        };
        self.decide_shadows(&mut verdict, &asked.shadows, parts)
            .await;
        verdict
    }

    /// Asks the limits in a dry run about a request that is admitted.
    async fn decide_shadows(
        &self,
        verdict: &mut LayerDecision<C>,
        shadows: &[LimitQuestion<'_, C>],
        parts: &Parts,
    ) {
        if verdict.refused.is_some() {
            return;
        }
        for shadow in shadows {
            let shadowed = self.decide_all(std::slice::from_ref(shadow)).await;
            self.add_shadow(verdict, shadowed, parts);
        }
    }

    /// Keeps what limits in a dry run hold, and reports the refusal that they would have caused.
    fn add_shadow(
        &self,
        verdict: &mut LayerDecision<C>,
        shadowed: LayerDecision<C>,
        parts: &Parts,
    ) {
        let Some(refused) = shadowed.refused else {
            return verdict.holds.append(shadowed.holds);
        };
        let refusal = self.refusal(&refused, parts);
        signals::refused_in_a_dry_run(&refusal);
        match &self.on_shadow {
            Some(hears) => hears(&refusal),
            None => {
                tracing::debug!(limit = refusal.name, decision = %refused.decision, "refused in a dry run");
            }
        }
    }

    pub(crate) fn refusal<'a>(&'a self, refused: &'a Refused, request: &'a Parts) -> Refusal<'a> {
        let Refused {
            rule,
            reason,
            decision,
        } = refused;
        Refusal {
            reason: *reason,
            name: self.rules[*rule].name.as_str(),
            decision,
            request,
        }
    }

    async fn wait_in_line(
        &self,
        question: &LimitQuestion<'_, C>,
        bound: Duration,
    ) -> LayerDecision<C> {
        let LimitQuestion { key, cost, .. } = question;
        let deadline = Some(self.time.now().saturating_add(bound.into()));
        let waited = match &question.limit.0 {
            LimitKind::Keyed(limiter) => limiter.wait_estimate(key, *cost, deadline).await,
            LimitKind::Unkeyed(limiter) => limiter.wait_estimate(*cost, deadline).await,
            _ => return self.decide_all(std::slice::from_ref(question)).await,
        };
        let mut verdict = LayerDecision::new();
        match waited {
            Ok((decision, estimate)) => {
                // The delay has already been waited out.
                let decision = if decision.delay().is_zero() {
                    *decision
                } else {
                    undelayed(&decision)
                };
                self.take(
                    &mut verdict,
                    question,
                    decision,
                    Some(TakenUnits::Here(estimate)),
                    false,
                );
            }
            Err(error) => {
                self.take(
                    &mut verdict,
                    question,
                    denied_within(error.decision(), bound),
                    None,
                    false,
                );
            }
        }
        verdict
    }

    /// Waits for several limits of this process.
    async fn wait_in_lines(
        &self,
        questions: &[LimitQuestion<'_, C>],
        bound: Duration,
    ) -> LayerDecision<C> {
        let requests = requests(questions);
        let deadline = self.time.now().saturating_add(bound.into());
        let waited = wait_all_estimates(&requests, Some(deadline)).await;
        let mut verdict = LayerDecision::new();
        match waited {
            Ok((all, estimates)) => {
                let decided = all.decisions().iter().zip(estimates);
                for (question, (decision, estimate)) in questions.iter().zip(decided) {
                    // The delay has already been waited out.
                    let decision = undelayed(decision);
                    self.take(
                        &mut verdict,
                        question,
                        decision,
                        Some(TakenUnits::Here(estimate)),
                        false,
                    );
                }
            }
            Err(error) => match error.decision() {
                Some(all) => {
                    for (question, decision) in questions.iter().zip(all.decisions()) {
                        if decision.is_denied() || decision.delay() > bound {
                            self.take(
                                &mut verdict,
                                question,
                                denied_within(decision, bound),
                                None,
                                false,
                            );
                        } else {
                            verdict.add(question, standing(question).unwrap_or(*decision));
                        }
                    }
                }
                None => self.misconfigured(&mut verdict, questions, &error),
            },
        }
        verdict
    }

    fn misconfigured(
        &self,
        verdict: &mut LayerDecision<C>,
        questions: &[LimitQuestion<'_, C>],
        error: &dyn std::fmt::Display,
    ) {
        self.log(
            || tracing::error!(%error, "the limits of a layer cannot be decided together; raise max_keys"),
        );
        let rule = questions.first().map_or(0, |first| first.rule);
        verdict.refuse(rule, Reason::Misconfigured, no_decision(0));
    }

    async fn ask_again(
        &self,
        questions: &[LimitQuestion<'_, C>],
        bound: Duration,
    ) -> LayerDecision<C> {
        let deadline = self.time.now().saturating_add(bound.into());
        loop {
            let left = Duration::from(deadline.saturating_since(self.time.now()));
            let mut verdict = self.decide_all(questions).await;
            verdict.within(left);
            let wait = verdict
                .refused
                .as_ref()
                .and_then(|refused| refused.decision.retry_after());
            let Some(wait) = wait.filter(|wait| *wait <= left && !wait.is_zero()) else {
                return verdict;
            };
            drop(verdict);
            let until = self.time.now().saturating_add(wait.into());
            if until > deadline {
                let mut verdict = self.decide_all(questions).await;
                verdict.within(Duration::ZERO);
                return verdict;
            }
            self.time.sleep_until(until).await;
        }
    }

    async fn decide_all(&self, questions: &[LimitQuestion<'_, C>]) -> LayerDecision<C> {
        let locals = questions
            .iter()
            .take_while(|question| question.limit.is_local())
            .count();
        let (local, far) = questions.split_at(locals);
        let mut verdict = LayerDecision::new();
        self.decide_local(&mut verdict, local, !far.is_empty());
        #[cfg(feature = "shared")]
        let far = {
            let own = far
                .iter()
                .take_while(|question| matches!(question.limit.0, LimitKind::Shared(_)))
                .count();
            let (shared, own) = far.split_at(own);
            if verdict.refused.is_none() && !shared.is_empty() {
                let next = self.decide_shared(shared).await;
                verdict.then(next);
            }
            own
        };
        for question in far {
            if verdict.refused.is_some() {
                break;
            }
            let LimitKind::Own(limit) = &question.limit.0 else {
                continue;
            };
            let decision = limit.decide(&question.key, question.cost).await;
            let mut next = LayerDecision::new();
            self.take(&mut next, question, decision, None, true);
            verdict.then(next);
        }
        verdict
    }

    /// Decides over the local limits in one atomic step. The verdict is filled in place: it is
    /// large, and nearly every request comes this way.
    fn decide_local(
        &self,
        verdict: &mut LayerDecision<C>,
        questions: &[LimitQuestion<'_, C>],
        may_return: bool,
    ) {
        match questions {
            [] => {}
            [question] => {
                let LimitQuestion { key, cost, .. } = question;
                let notes = self.notes(question, may_return);
                let noted = |(decision, estimate)| (decision, Some(estimate));
                let (decision, estimate) = match &question.limit.0 {
                    LimitKind::Keyed(limiter) if notes => noted(
                        limiter
                            .at(limiter.clock().now())
                            .acquire_estimate(key, *cost),
                    ),
                    LimitKind::Keyed(limiter) => (limiter.acquire(key, *cost), None),
                    LimitKind::Unkeyed(limiter) if notes => {
                        noted(limiter.at(limiter.clock().now()).acquire_estimate(*cost))
                    }
                    LimitKind::Unkeyed(limiter) => (limiter.acquire(*cost), None),
                    _ => return,
                };
                let may_return = may_return || !decision.delay().is_zero();
                let taken = match estimate {
                    Some(estimate) => Some(TakenUnits::Here(estimate)),
                    None => TakenUnits::permits(&decision, *cost),
                };
                if taken.is_none() && !may_return {
                    // As nearly always, no unit can return.
                    verdict.add(question, decision);
                    if decision.is_denied() {
                        verdict.refuse(question.rule, Reason::Limited, decision);
                    }
                    return;
                }
                self.take(verdict, question, decision, taken, may_return);
            }
            several => self.decide_together(verdict, several, may_return),
        }
    }

    fn decide_together(
        &self,
        verdict: &mut LayerDecision<C>,
        questions: &[LimitQuestion<'_, C>],
        may_return: bool,
    ) {
        let asked = requests(questions);
        let notes = |question| self.notes(question, may_return);
        let decided = if questions.iter().any(notes) {
            acquire_all_estimates_at(&asked, self.time.now())
        } else {
            acquire_all(&asked).map(|all| (all, Vec::new()))
        };
        match decided {
            Ok((all, estimates)) => {
                let allowed = all.is_allowed();
                let may_return = may_return
                    || all
                        .decisions()
                        .iter()
                        .any(|decision| !decision.delay().is_zero());
                for (at, (question, decision)) in questions.iter().zip(all.decisions()).enumerate()
                {
                    if allowed || decision.is_denied() {
                        let taken = match estimates.get(at) {
                            Some(estimate) => Some(TakenUnits::Here(*estimate)),
                            None => TakenUnits::permits(decision, question.cost),
                        };
                        self.take(verdict, question, *decision, taken, may_return);
                    } else {
                        // This limit was not charged.
                        verdict.add(question, standing(question).unwrap_or(*decision));
                    }
                }
            }
            Err(full) => self.misconfigured(verdict, questions, &full),
        }
    }

    /// Whether units that a request takes may return, so that the limit must note where they count.
    #[inline]
    fn notes(&self, question: &LimitQuestion<'_, C>, may_return: bool) -> bool {
        may_return || self.settles(question) || self.returns(question) != Returns::Refused
    }

    /// Whether the cost is known only after the service has run.
    #[inline]
    pub(crate) fn settles(&self, question: &LimitQuestion<'_, C>) -> bool {
        !matches!(self.rules[question.rule].settle, Settle::Before)
    }

    #[inline]
    fn returns(&self, question: &LimitQuestion<'_, C>) -> Returns {
        let is_own = matches!(question.limit, Cow::Borrowed(_));
        self.rules[question.rule]
            .returns
            .of(&question.limit, is_own, &question.key)
    }

    /// Takes in a limit's decision. `may_return` says whether the units may have to be returned, for
    /// example because a store denies. `estimate` says where those of a limit of this process count.
    #[inline]
    pub(crate) fn take(
        &self,
        verdict: &mut LayerDecision<C>,
        question: &LimitQuestion<'_, C>,
        decision: Decision,
        taken: Option<TakenUnits>,
        may_return: bool,
    ) {
        verdict.add(question, decision);
        if decision.is_denied() {
            return verdict.refuse(question.rule, Reason::Limited, decision);
        }
        let rule = &self.rules[question.rule];
        let in_flight = matches!(taken, Some(TakenUnits::Permits(_)))
            || self.returns(question) == Returns::AtTheEnd;
        // If no unit can return, the cost is not recorded.
        if may_return || in_flight || !matches!(rule.settle, Settle::Before) {
            let settle = match &rule.settle {
                _ if in_flight => Settle::Back,
                Settle::Bill(_) => Settle::Bill(question.bill.cloned()),
                settle => settle.clone(),
            };
            verdict.holds.add(question, taken, settle);
        }
    }
}

/// The requests to limits of this process.
fn requests<'q, C: Timer>(questions: &'q [LimitQuestion<'_, C>]) -> SmallVec<[Request<'q, C>; 4]> {
    let of = |LimitQuestion {
                  limit, key, cost, ..
              }: &'q LimitQuestion<'_, C>| match &limit.0 {
        LimitKind::Keyed(limiter) => Some(Request::keyed(limiter, key, *cost)),
        LimitKind::Unkeyed(limiter) => Some(Request::unkeyed(limiter, *cost)),
        _ => None,
    };
    questions.iter().filter_map(of).collect()
}

/// The room of a limit that was not charged.
fn standing<C: Timer>(question: &LimitQuestion<'_, C>) -> Option<Decision> {
    match &question.limit.0 {
        LimitKind::Keyed(limiter) => Some(limiter.peek(&question.key, 0)),
        LimitKind::Unkeyed(limiter) => Some(limiter.peek(0)),
        _ => None,
    }
}

/// The decision without its delay, for a request that has waited.
fn undelayed(decision: &Decision) -> Decision {
    Decision::allow(decision.standing())
}
