//! Requests that are left of a workload when those that no limit in question could deny are taken out.

/// Requests of some keys, each key's in fragments that begin with a fresh state.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    times: Vec<u64>,
    /// Where in `times` each fragment begins, and whether it is the first of its key.
    starts: Vec<(usize, bool)>,
}

impl Fragments {
    /// Adds a request; `fresh` begins a fragment, `first` one of a key that has none yet.
    pub fn push(&mut self, time: u64, fresh: bool, first: bool) {
        if fresh {
            self.starts.push((self.times.len(), first));
        }
        self.times.push(time);
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Adds other keys.
    pub fn append(&mut self, other: Self) {
        let before = self.times.len();
        self.times.extend(other.times);
        self.starts.extend(other.starts.into_iter().map(|(start, first)| (start + before, first)));
    }

    /// The fragments, each with whether it is its key's first.
    pub fn iter(&self) -> impl Iterator<Item = (bool, &[u64])> {
        let ends = self.starts.iter().skip(1).map(|&(start, _)| start).chain([self.times.len()]);
        self.starts.iter().zip(ends).map(|(&(start, first), end)| (first, &self.times[start..end]))
    }
}
