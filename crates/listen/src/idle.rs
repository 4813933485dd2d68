//! Finds the connection that was idle longest, at a cost that hardly grows with the number of
//! connections.

/// How many connections one pass over all of them selects.
const BATCH: usize = 64;

/// Finds the connections that were idle longest, one after another. One pass over all connections
/// serves the next 64 calls: a selected connection that has done nothing since is still among those
/// idle longest.
#[derive(Debug, Default)]
pub struct LongestIdle {
    /// The start of its idle time, and the connection; the longest idle is last.
    chosen: Vec<(u64, usize)>,
}

impl LongestIdle {
    /// The next connection to close. `idle_since` returns when a connection became idle, in any
    /// unit; `None` if it is gone or busy.
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
    fn the_longest_idle_come_first_despite_changes_in_between() {
        let mut since: Vec<Option<u64>> = (0..1_000).map(|at| Some((at * 7_919) % 1_000)).collect();
        let mut longest = LongestIdle::default();
        for step in 0..1_000_u64 {
            let expected = since.iter().flatten().min().copied();
            let found = longest.next(0..1_000, |at| since[at]);
            assert_eq!(found.and_then(|at| since[at]), expected);
            let Some(at) = found else { break };
            // It is closed, or a new connection takes its slot. Another connection wakes up.
            since[at] = (step % 3 == 0).then_some(1_000 + 2 * step);
            since[(step as usize * 31) % 1_000] = (step % 2 == 0).then_some(1_001 + 2 * step);
        }
    }
}
