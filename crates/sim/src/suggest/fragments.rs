//! The rest of a workload, without the requests that none of the limits in question could deny.

/// Requests of some keys, in fragments that each begin with a fresh state.
#[derive(Debug, Default)]
pub(super) struct Fragments {
    times: Vec<u64>,
    /// The index in `times` at which each fragment begins, and whether it is the first of its key.
    starts: Vec<(usize, bool)>,
}

impl Fragments {
    /// Adds a request; `fresh` begins a fragment, and `first` marks the first fragment of a key.
    pub fn push(&mut self, time: u64, fresh: bool, first: bool) {
        if fresh {
            self.starts.push((self.times.len(), first));
        }
        self.times.push(time);
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.times.len()
    }

    /// Adds other keys.
    pub fn append(&mut self, other: Self) {
        let before = self.times.len();
        self.times.extend(other.times);
        self.starts.extend(
            other
                .starts
                .into_iter()
                .map(|(start, first)| (start + before, first)),
        );
    }

    /// The fragments, each with a flag for the first of its key.
    pub fn iter(&self) -> impl Iterator<Item = (bool, &[u64])> {
        let ends = self
            .starts
            .iter()
            .skip(1)
            .map(|&(start, _)| start)
            .chain([self.times.len()]);
        self.starts
            .iter()
            .zip(ends)
            .map(|(&(start, first), end)| (first, &self.times[start..end]))
    }
}
