//! The newest requests, in bounded memory.

use std::collections::VecDeque;

use super::Event;

/// Events in a chunk. Memory is taken, and events are forgotten, a chunk at a time, so that no
/// decision waits for a large copy.
const CHUNK: usize = 1_024;

/// The size of one chunk.
pub(super) const CHUNK_BYTES: u64 = (CHUNK * size_of::<Event>()) as u64;

/// A bounded list that forgets its oldest chunk when it is full.
#[derive(Debug)]
pub(super) struct Ring {
    pub chunks: VecDeque<Vec<Event>>,
    /// At least two.
    most: usize,
    /// The newest time of what was forgotten; all that came later is there.
    pub forgotten: Option<u64>,
}

impl Ring {
    pub fn new(most: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            most: most.max(2),
            forgotten: None,
        }
    }

    pub fn push(&mut self, event: Event) {
        match self.chunks.back_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(event),
            _ => {
                let mut chunk = self.fresh();
                chunk.push(event);
                self.chunks.push_back(chunk);
            }
        }
    }

    /// An empty chunk: a new one, or the oldest one.
    fn fresh(&mut self) -> Vec<Event> {
        if self.chunks.len() < self.most {
            return Vec::with_capacity(CHUNK);
        }
        let mut oldest = self.chunks.pop_front().unwrap_or_default();
        self.forgotten = oldest
            .iter()
            .map(|event| event.time)
            .max()
            .max(self.forgotten);
        oldest.clear();
        oldest
    }

    pub fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK_BYTES
    }
}
