//! The calls of Kuadrant's rate limit service: check, report, reserve and commit.

use tidegate_core::Nanos;
use tidegate_service::decide::{
    reservations::{Id, ReservationError},
    service::{Ask, InForce, Refusal, WaitFor},
};

use super::{
    Act, Answer, DescriptorService, Descriptors, Found, Place, Question, Unanswered, Verdict,
    drop_replaced, limited, limited_mut, undecided,
};

impl DescriptorService {
    /// Whether the limits would admit the hits. Nothing is taken.
    ///
    /// # Errors
    /// The same as [`decide`](Self::decide).
    pub async fn check(&self, question: &Question<'_>, now: Nanos) -> Result<Answer, Unanswered> {
        self.each(question, Act::Peek, None, now).await
    }

    /// Adds hits that were used, whether they fit or not. With `hits`, each descriptor adds as
    /// many.
    ///
    /// # Errors
    /// The same as [`decide`](Self::decide). Some limits may have been charged then.
    pub async fn report(
        &self,
        question: &Question<'_>,
        hits: Option<u64>,
        now: Nanos,
    ) -> Result<Answer, Unanswered> {
        if question.id.is_some() {
            return Err(Unanswered::NotOnce { what: "a report" });
        }
        let answer = self.each(question, Act::Charge, hits, now).await?;
        Ok(Answer {
            is_over: false,
            ..answer
        })
    }

    async fn each(
        &self,
        question: &Question<'_>,
        act: Act,
        hits: Option<u64>,
        now: Nanos,
    ) -> Result<Answer, Unanswered> {
        let in_force = self.service.in_force();
        let mut places = self.limited(&in_force, question, now)?;
        for found in limited_mut(&mut places) {
            found.act = act;
            if let Some(held) = found.held.take() {
                found.cost = held.hits;
            }
            found.cost = hits.unwrap_or(found.cost);
            found.limit.accepts(act)?;
            found.decision = Some(found.limit.decide(act, &found.key, found.cost, now).await?);
        }
        let is_over = Verdict::of(limited(&places)).is_over();
        Ok(self.answer(Descriptors::of(&in_force), question, &places, is_over, now))
    }

    /// Takes `amount` from all limits if all admit, for at most `ttl`, and may wait in line for that. `None` if a limit denies;
    /// the id is empty if no limit concerns the descriptors.
    ///
    /// # Errors
    /// The same as [`decide`](Self::decide); also for an override in the request, and if the
    /// reservation cannot be kept.
    pub async fn reserve(
        &self,
        question: &Question<'_>,
        (amount, ttl): (u64, Nanos),
        wait: Option<WaitFor>,
        now: Nanos,
    ) -> Result<Option<String>, Unanswered> {
        if wait.is_some() && question.id.is_some() {
            return Err(Refusal::WaitOnce.into());
        }
        let in_force = self.service.in_force();
        let mut places = self.limited(&in_force, question, now)?;
        for found in limited_mut(&mut places) {
            if found.rule.is_none() {
                let why = "a limit that a request brings along cannot be reserved; configure it";
                return Err(Unanswered::Override(why.to_owned()));
            }
            (found.act, found.cost) = (Act::Take, amount);
        }
        let reserved: Vec<&mut Found<'_>> = limited_mut(&mut places).collect();
        if reserved.is_empty() {
            return Ok(Some(String::new()));
        }
        let ask = |found: &&mut Found<'_>| {
            (
                found.limit.spec().name.clone(),
                found.key.clone(),
                found.cost,
            )
        };
        let owned: Vec<_> = reserved.iter().map(ask).collect();
        let asks: Vec<Ask<'_>> = owned
            .iter()
            .map(|(limit, key, cost)| Ask {
                limit: limit.as_bytes(),
                key: Some(key),
                cost: *cost,
            })
            .collect();
        let result = match wait {
            Some(wait) => {
                let waited = Box::pin(self.service.reserve_waiting(&asks, ttl, wait)).await;
                waited.map(|(decided, id)| (decided.into_joint(), id))
            }
            None => self.service.reserve(question.id, &asks, ttl, now).await,
        };
        let (joint, id) = result.map_err(|(_, refusal)| refusal)?;
        for (found, answer) in reserved.into_iter().zip(joint.answers) {
            found.decision = Some(answer.decision);
            found.is_uncharged = id.is_none();
        }
        // Counts each rule.
        let is_denied = id.is_none();
        self.answer(
            Descriptors::of(&in_force),
            question,
            &places,
            is_denied,
            now,
        );
        Ok(id.map(|id| id.to_string()))
    }

    /// Corrects a reservation to the `actual` amount. If the id is unknown, the amount is
    /// [reported](Self::report). Returns whether it was settled now.
    ///
    /// # Errors
    /// The same as [`decide`](Self::decide); also if the reservation concerns limits of another
    /// domain.
    pub async fn commit(
        &self,
        question: &Question<'_>,
        (id, actual): (&str, u64),
        now: Nanos,
    ) -> Result<bool, Unanswered> {
        let refuse = |why| Unanswered::Refused(Refusal::Reservation(why));
        let found = match id.parse::<Id>() {
            Ok(id) => self.service.reserved(id).await.map(|parts| (id, parts)),
            Err(why) => Err(why),
        };
        let (id, parts) = match found {
            Ok(found) => found,
            Err(ReservationError::Unknown | ReservationError::NotAnId) => {
                if actual > 0 {
                    self.report(question, Some(actual), now).await?;
                }
                return Ok(false);
            }
            Err(why) => return Err(refuse(why)),
        };
        let domain = format!("{}.", question.domain);
        if parts.iter().any(|part| !part.limit.starts_with(&domain)) {
            return Err(refuse(ReservationError::Unknown));
        }
        let costs = vec![actual; parts.len()];
        self.service
            .settle(id, Some(&costs), now)
            .await
            .map_err(refuse)
    }

    /// The limits of a valid question.
    fn limited<'q>(
        &self,
        in_force: &InForce,
        question: &'q Question<'_>,
        now: Nanos,
    ) -> Result<Vec<Place<'q>>, Unanswered> {
        question.check()?;
        let mut places = self.places(in_force, question, now);
        drop_replaced(Descriptors::of(in_force), &mut places);
        match undecided(&places) {
            Some(why) => Err(why.clone()),
            None => Ok(places),
        }
    }
}
