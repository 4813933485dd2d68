//! The questions that a request puts to a layer: for each limit its key and cost.

use std::borrow::Cow;

use http::request::Parts;
use smallvec::SmallVec;
use tidegate_core::{Algorithm, Decision};
use tidegate_limiter::Timer;

use crate::{
    Bill, NoKey, Reason,
    limit::{Limit, LimitKind},
    log::at_most_once_a_minute,
    options::{LayerOptions, LayerRule, LimitSource, no_decision},
    settle::Settle,
};

/// A request's key and cost for one limit.
pub(crate) struct LimitQuestion<'r, C> {
    pub(crate) rule: usize,
    pub(crate) limit: Cow<'r, Limit<C>>,
    pub(crate) key: Cow<'r, [u8]>,
    pub(crate) cost: u64,
    /// The bill with the cost, if the rule learns it from one.
    pub(crate) bill: Option<&'r Bill>,
}

/// The rule that refuses a request, and its decision.
pub(crate) struct Refused {
    pub(crate) rule: usize,
    pub(crate) reason: Reason,
    pub(crate) decision: Decision,
}

/// All questions that a request puts to a layer.
pub(crate) struct LayerQuestions<'r, C> {
    /// Local limits come first, and limits that cannot refund come last.
    pub(crate) questions: SmallVec<[LimitQuestion<'r, C>; 2]>,
    pub(crate) shadows: SmallVec<[LimitQuestion<'r, C>; 2]>,
}

impl<C: Timer + 'static> LayerOptions<C> {
    /// The question of one rule, or `None` if the rule does not limit the request.
    #[inline]
    pub(crate) fn question<'r>(
        &'r self,
        at: usize,
        rule: &'r LayerRule<C>,
        parts: &'r Parts,
    ) -> Result<Option<LimitQuestion<'r, C>>, Box<Refused>> {
        let limit = match &rule.source {
            LimitSource::Fixed(limit) => Cow::Borrowed(limit),
            LimitSource::ByRequest(choose) => match choose(parts) {
                Some(limit) => Cow::Owned(limit),
                None => return Ok(None),
            },
        };
        let key = match rule.key.key(parts) {
            Some(key) => key,
            None => match self.key_of_none(at, rule, &limit)? {
                Some(key) => key,
                None => return Ok(None),
            },
        };
        if rule
            .exempt
            .as_ref()
            .is_some_and(|exempt| exempt.contains(&key))
        {
            return Ok(None);
        }
        let cost = rule.cost.as_ref().map_or(1, |cost| cost(parts));
        let bill = if matches!(rule.settle, Settle::Bill(_)) {
            parts.extensions.get()
        } else {
            None
        };
        Ok(Some(LimitQuestion {
            rule: at,
            limit,
            key,
            cost,
            bill,
        }))
    }

    /// The key that a request without a key counts for, or `None` if it is not counted.
    #[cold]
    fn key_of_none(
        &self,
        at: usize,
        rule: &LayerRule<C>,
        limit: &Limit<C>,
    ) -> Result<Option<Cow<'static, [u8]>>, Box<Refused>> {
        let (reason, decision) = match self.no_key {
            // A limit in a dry run never refuses.
            _ if rule.shadow => return Ok(None),
            NoKey::Shared => return Ok(Some(Cow::default())),
            NoKey::Admit => return Ok(None),
            NoKey::Deny => (Reason::Limited, no_decision(limit.policy().limit())),
            NoKey::Refuse => {
                self.log(|| {
                    tracing::error!(
                        limit = rule.name.as_str(),
                        why = rule.key.missing(),
                        "refused a request without a key with status 500; set `no_key` to handle such requests otherwise"
                    );
                });
                (Reason::NoKey, no_decision(0))
            }
        };
        Err(Box::new(Refused {
            rule: at,
            reason,
            decision,
        }))
    }

    pub(crate) fn is_exempt(&self, parts: &Parts) -> bool {
        self.exempt
            .as_ref()
            .is_some_and(|is_exempt| is_exempt(parts))
    }

    /// The questions of a request: none if no limit applies to it.
    pub(crate) fn questions<'r>(
        &'r self,
        parts: &'r Parts,
    ) -> Result<LayerQuestions<'r, C>, Box<Refused>> {
        let mut asked = LayerQuestions {
            questions: SmallVec::new(),
            shadows: SmallVec::new(),
        };
        if self.is_exempt(parts) {
            return Ok(asked);
        }
        for (at, rule) in self.rules.iter().enumerate() {
            let Some(question) = self.question(at, rule, parts)? else {
                continue;
            };
            if rule.shadow {
                asked.shadows.push(question);
            } else {
                asked.questions.push(question);
            }
        }
        if asked.questions.len() > 1 {
            asked
                .questions
                .sort_by_key(|question| match question.limit.0 {
                    LimitKind::Keyed(_) | LimitKind::Unkeyed(_) => 0,
                    #[cfg(feature = "shared")]
                    LimitKind::Shared(_) => 1,
                    LimitKind::Own(_) => 2,
                });
        }
        Ok(asked)
    }

    /// Logs at most once a minute.
    pub(crate) fn log(&self, line: impl FnOnce()) {
        at_most_once_a_minute(&self.logged, self.time.now(), line);
    }
}
