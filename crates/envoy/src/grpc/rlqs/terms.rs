//! How much of a limit is assigned for a second, and to which Envoys.

/// For a second, the Envoys of this server get at most this fraction of what is left in a longer
/// window. So shares shrink near the limit, and other clients also get units.
const PART_OF_ROOM: u64 = 4;
/// The fraction of a longer window's limit that all Envoys together may spend in a second without
/// having reported such a load.
const PART_OF_LIMIT: u64 = 20;

/// How many seconds an assignment lasts. A new one is sent each second, so it covers the time until
/// a lost Envoy has reconnected.
pub(super) const TIME_TO_LIVE: u64 = 5;

/// The properties of a limit that matter for shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    /// The limit per window.
    pub limit: u64,
    /// The window in whole seconds, at least 1.
    pub window: u64,
    /// Whether unused units can be given back. Windows are then aligned to multiples of their
    /// length.
    pub gives_back: bool,
}

impl Terms {
    /// The number of the window that contains this second.
    pub fn window_of(&self, second: u64) -> u64 {
        second / self.window
    }

    /// The even part of a second.
    pub fn even(&self, envoys: u64) -> u64 {
        (self.limit / self.window / envoys.max(1)).max(1)
    }

    /// The tokens that each of `envoys` may spend in a second regardless of its reports, as long as
    /// the others do not need them: the next report may be five seconds away, and its load may have
    /// grown by then.
    pub fn floor(&self, envoys: u64) -> u64 {
        let steady = self.limit / self.window / (2 * envoys.max(1));
        if self.window > 1 && self.gives_back {
            steady.max(self.limit / (PART_OF_LIMIT * envoys.max(1)))
        } else {
            steady
        }
    }

    /// The tokens that an Envoy may spend before it has reported its load.
    pub fn unknown(&self, envoys: u64) -> u64 {
        match self {
            // Each second is independent: what is left in one is lost.
            Self { window: 1, .. } => u64::MAX,
            Self {
                gives_back: true, ..
            } => self.floor(envoys).max(1),
            Self { .. } => self.even(envoys),
        }
    }

    /// How many seconds an assignment of `shares` tokens per second may last if `room` is left
    /// after this second is paid; at least 1.
    pub fn lasting(&self, room: u64, shares: u64) -> u64 {
        if self.window == 1 {
            TIME_TO_LIVE
        } else {
            (1 + room / shares.max(1)).min(TIME_TO_LIVE)
        }
    }

    /// The most that one of `servers` takes of a second at a time, so that those that look first
    /// leave something to the others. If `alone` it was the only one lately.
    pub fn at_a_time(&self, servers: u64, alone: bool) -> u64 {
        if self.window > 1 || servers <= 1 {
            return u64::MAX;
        }
        let tenth = self.limit.div_ceil(10);
        if alone {
            (self.limit - tenth.min(self.limit)).max(1)
        } else {
            self.limit.div_ceil(servers).max(tenth)
        }
    }

    /// How much may be assigned for a second if `room` is left.
    pub fn budget(&self, room: u64) -> u64 {
        if self.window == 1 {
            room
        } else {
            room.div_ceil(PART_OF_ROOM)
        }
    }
}

/// The units that an Envoy needs for its measured load, and the most that it can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wants {
    pub need: u64,
    pub most: u64,
}

/// Divides units by need. What is left goes to those that can use more.
pub(super) fn share_out(wants: &[Wants], units: u64, turn: u64) -> Vec<u64> {
    let needs: Vec<u64> = wants.iter().map(|wants| wants.need).collect();
    let parts = divide(&needs, units, turn);
    let left = units.saturating_sub(parts.iter().sum());
    let more: Vec<u64> = wants
        .iter()
        .zip(&parts)
        .map(|(wants, part)| wants.most.saturating_sub(*part))
        .collect();
    parts
        .into_iter()
        .zip(divide(&more, left, turn))
        .map(|(part, more)| part + more)
        .collect()
}

/// Divides units by demand: no one gets more than it wants, or less than another with the same
/// demand, except for the last units, which rotate with `turn`.
pub(super) fn divide(wants: &[u64], units: u64, turn: u64) -> Vec<u64> {
    let count = wants.len();
    let turn = usize::try_from(turn % (count.max(1) as u64)).unwrap_or(0);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|at| (wants[*at], (at + turn) % count));
    let mut parts = vec![0; count];
    let mut left = units;
    for (done, at) in order.into_iter().enumerate() {
        parts[at] = wants[at].min(left / (count - done) as u64);
        left -= parts[at];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_take_a_second_in_pieces_and_a_lone_one_leaves_a_tenth() {
        let second = Terms {
            limit: 100,
            window: 1,
            gives_back: false,
        };
        let pieces = |servers| [false, true].map(|alone| second.at_a_time(servers, alone));
        assert_eq!(
            [pieces(1), pieces(2), pieces(16)],
            [[u64::MAX; 2], [50, 90], [10, 90]]
        );
        assert_eq!(Terms { limit: 1, ..second }.at_a_time(2, true), 1);
        assert_eq!(
            Terms {
                window: 60,
                ..second
            }
            .at_a_time(2, false),
            u64::MAX
        );
    }
}
