//! The common state and the notes as words, for a snapshot.

use super::{FairState, MOST_CLAIMS, TenantNote, permits::Claim};
use crate::Nanos;

/// The words of a common state before its claims, and those of a claim.
const OWN: usize = 11;
const OF_CLAIM: usize = 5;

/// The units in a note. Sums of the highest limits stay far below this.
const MOST_UNITS: core::ops::Range<f32> = 0.0..1e30;

impl FairState {
    /// The number of words of a saved state.
    pub const WORDS: usize = OWN + OF_CLAIM * MOST_CLAIMS;

    /// The state as words, for a snapshot; `None` if it is fresh.
    #[must_use]
    pub fn to_words(&self) -> Option<[u64; Self::WORDS]> {
        let mut words = [0; Self::WORDS];
        let (own, claims) = words.split_at_mut(OWN);
        own.copy_from_slice(&[
            self.now.get(),
            self.virtual_now.get(),
            self.part.to_bits(),
            self.level.to_bits(),
            self.epoch,
            self.active[0].to_bits(),
            self.active[1].to_bits(),
            self.refused[0].to_bits(),
            self.refused[1].to_bits(),
            self.asker.into(),
            self.crowded,
        ]);
        let (claims, _) = claims.as_chunks_mut();
        for (words, claim) in claims.iter_mut().zip(&self.claims) {
            *words = claim.to_words();
        }
        self.is_started.then_some(words)
    }

    /// Parses the words of [`to_words`](Self::to_words); `None` if they are not a state. Have the
    /// shares [follow](super::FairShares::follow) it.
    #[must_use]
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let (own, claims) = words.split_first_chunk::<OWN>()?;
        let (claims, []) = claims.as_chunks::<OF_CLAIM>() else {
            return None;
        };
        if claims.len() != MOST_CLAIMS {
            return None;
        }
        let [now, virtual_now, part, level, epoch, ..] = *own;
        let [
            ..,
            active,
            active_before,
            refused,
            refused_before,
            asker,
            crowded,
        ] = *own;
        let mut state = Self {
            is_started: true,
            now: time(now)?,
            virtual_now: time(virtual_now)?,
            part: number(part).filter(|part| (0.0..1.0).contains(part))?,
            level: number(level)?,
            epoch: time(epoch)?.get(),
            epochs_ahead: 0,
            active: [weight(active)?, weight(active_before)?],
            refused: [weight(refused)?, weight(refused_before)?],
            asker: u32::try_from(asker).ok()?,
            crowded: Some(crowded).filter(|crowded| *crowded <= epoch + 1)?,
            claims: [Claim::default(); MOST_CLAIMS],
        };
        for (claim, words) in state.claims.iter_mut().zip(claims) {
            *claim = Claim::from_words(*words)?;
        }
        Some(state)
    }

    /// The same state, as if it had been made earlier by this time. Have the shares
    /// [follow](super::FairShares::follow) it.
    #[must_use]
    pub fn sooner(mut self, by: Nanos) -> Self {
        self.now = self.now.saturating_since(by);
        for claim in &mut self.claims {
            claim.asked = claim.asked.saturating_since(by);
            claim.until = claim.until.saturating_since(by);
        }
        self
    }
}

impl Claim {
    fn to_words(self) -> [u64; OF_CLAIM] {
        [
            self.tenant.into(),
            self.cost,
            self.rank.to_bits(),
            self.asked.get(),
            self.until.get(),
        ]
    }

    fn from_words([tenant, cost, rank, asked, until]: [u64; OF_CLAIM]) -> Option<Self> {
        Some(Self {
            tenant: u32::try_from(tenant).ok()?,
            cost,
            rank: number(rank)?,
            asked: time(asked)?,
            until: time(until)?,
        })
    }
}

impl TenantNote {
    /// The note as words, for a snapshot.
    #[must_use]
    pub fn to_words(&self) -> [u64; 3] {
        let pair = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        [
            pair(self.name, self.asked),
            pair(self.refused, self.taken.to_bits()),
            pair(self.charged.to_bits(), self.advance.to_bits()),
        ]
    }

    /// Parses the words of [`to_words`](Self::to_words); `None` if they are not a note.
    #[must_use]
    pub fn from_words(words: [u64; 3]) -> Option<Self> {
        let [[name, asked], [refused, taken], [charged, advance]] =
            words.map(|word| [(word >> 32) as u32, word as u32]);
        let units = |bits| Some(f32::from_bits(bits)).filter(|units| MOST_UNITS.contains(units));
        Some(Self {
            name,
            asked,
            refused,
            taken: units(taken)?,
            charged: units(charged)?,
            advance: units(advance)?,
        })
    }
}

fn time(nanos: u64) -> Option<Nanos> {
    (nanos <= Nanos::MAX.get()).then(|| Nanos::new(nanos))
}

fn number(bits: u64) -> Option<f64> {
    Some(f64::from_bits(bits)).filter(|number| number.is_finite())
}

fn weight(bits: u64) -> Option<f64> {
    number(bits).filter(|weight| *weight >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_state_are_refused() {
        assert_eq!(FairState::default().to_words(), None);
        let state = FairState {
            is_started: true,
            epoch: 3,
            crowded: 4,
            level: -1.0,
            ..FairState::default()
        };
        let words = state.to_words().unwrap();
        assert_eq!(FairState::from_words(&words), Some(state));
        for (at, wrong) in [
            (0, u64::MAX),
            (1, u64::MAX),
            (2, 1.0_f64.to_bits()),
            (3, f64::NAN.to_bits()),
            (4, u64::MAX),
            (5, f64::INFINITY.to_bits()),
            (8, (-1.0_f64).to_bits()),
            (9, 1 << 32),
            (10, 5),
            (OWN, 1 << 32),
            (OWN + 2, f64::NAN.to_bits()),
            (OWN + 4, u64::MAX),
        ] {
            let mut words = words;
            words[at] = wrong;
            assert_eq!(FairState::from_words(&words), None, "{at}");
        }
        assert_eq!(FairState::from_words(&words[1..]), None);
        for wrong in [f32::NAN, f32::INFINITY, 1e30, -1.0] {
            assert_eq!(TenantNote::from_words([0, 0, wrong.to_bits().into()]), None);
        }
    }
}
