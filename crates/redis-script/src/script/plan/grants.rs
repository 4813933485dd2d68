//! Computes grants from the reply of the lease scripts.

use tidegate_core::lease::{Grant, Mode, Request, Terms};
use tidegate_core::{Algorithm, Nanos};

use super::{Plan, ValueLayout, state};

impl Plan {
    /// How long units that are taken now count alike, from the reply's part for the key. `None` if the
    /// value cannot be a state of this limit.
    #[doc(hidden)]
    pub fn counted_alike(&self, before: Option<&[u8]>, now: Nanos) -> Option<Nanos> {
        if matches!(self.layout, ValueLayout::Log { .. }) {
            return Some(Nanos::MAX);
        }
        let state = self.state(before)?;
        Some(self.policy.counted_alike_for(&state, now))
    }

    /// The grants for these requests in order, from the reply's part for their key. `None` if the
    /// value cannot be a state of this limit.
    #[doc(hidden)]
    pub fn grants<'a>(
        &self,
        terms: &Terms,
        before: Option<&[u8]>,
        now: Nanos,
        requests: impl ExactSizeIterator<Item = &'a Request>,
    ) -> Option<Vec<Grant>> {
        let ValueLayout::Log { lifetime, permits } = self.layout else {
            let mut state = self.state(before)?;
            return Some(
                requests
                    .map(|request| terms.serve(&mut state, now, request))
                    .collect(),
            );
        };
        let answers = before?.chunks_exact(state::ANSWER);
        if answers.len() != requests.len() {
            return None;
        }
        let limit = self.policy.limit();
        let grant = |(reply, request): (&[u8], &'a Request)| {
            let answer = |cost| state::answer(reply, now, limit, (lifetime, permits), cost).0;
            if terms.mode() == Mode::Reported {
                let decision = answer(request.cost);
                let units = u32::try_from(decision.remaining())
                    .unwrap_or(u32::MAX)
                    .min(request.ahead);
                return Grant {
                    decision,
                    units,
                    usable_for: Nanos::MAX,
                    now,
                };
            }
            let usable_for = terms.usable_for(Nanos::MAX);
            let room = limit.saturating_sub(state::counting(reply));
            let units = terms.units(room, usable_for, request);
            Grant {
                decision: answer(request.cost.saturating_add(units.into())),
                units,
                usable_for,
                now,
            }
        };
        Some(answers.zip(requests).map(grant).collect())
    }
}
