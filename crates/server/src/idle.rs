//! Which connection has been idle longest, at a cost that hardly grows with the number of connections.

/// How many connections one look at all of them chooses.
const BATCH: usize = 64;

/// Finds the connections that have been idle longest, one after the other. One look at all connections serves the next 64
/// calls: whoever is chosen then and has done nothing since has still been idle longest.
#[derive(Debug, Default)]
pub(crate) struct LongestIdle {
    /// Since when, and which; the longest idle last.
    chosen: Vec<(u64, usize)>,
}

impl LongestIdle {
    /// The next connection to give way. `idle_since` tells since when one has been idle, in any unit; `None` when it is gone
    /// or busy.
    pub fn next(
        &mut self,
        all: impl Iterator<Item = usize>,
        idle_since: impl Fn(usize) -> Option<u64>,
    ) -> Option<usize> {
        while let Some((since, at)) = self.chosen.pop() {
            if idle_since(at) == Some(since) {
                return Some(at);
            }
        }
        let mut idle: Vec<_> = all.filter_map(|at| Some((idle_since(at)?, at))).collect();
        if idle.len() > BATCH {
            idle.select_nth_unstable(BATCH - 1);
            idle.truncate(BATCH);
        }
        idle.sort_unstable_by(|one, other| other.cmp(one));
        self.chosen = idle;
        self.chosen.pop().map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_idle_come_first_whatever_happens_between() {
        let mut since: Vec<Option<u64>> = (0..1_000).map(|at| Some((at * 7_919) % 1_000)).collect();
        let mut longest = LongestIdle::default();
        for step in 0..1_000_u64 {
            let expected = since.iter().flatten().min().copied();
            let found = longest.next(0..1_000, |at| since[at]);
            assert_eq!(found.and_then(|at| since[at]), expected);
            let Some(at) = found else { break };
            // It gives way, or a new one takes its place; another one wakes up.
            since[at] = (step % 3 == 0).then_some(1_000 + 2 * step);
            since[(step as usize * 31) % 1_000] = (step % 2 == 0).then_some(1_001 + 2 * step);
        }
    }
}
