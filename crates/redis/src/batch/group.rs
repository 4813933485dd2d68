//! Grouping of requests into calls.

use std::sync::Arc;

use indexmap::IndexSet;
use rapidhash::fast::RandomState;

use super::{Batched, Waiting};
use crate::Deadline;

/// Requests for one limit, and in a cluster for one slot.
pub struct Call<R: Batched> {
    pub limit: Arc<R::Limit>,
    pub keys: Vec<Vec<u8>>,
    /// The requests of the first key in order, then those of the second, and so on.
    pub requests: Vec<R>,
    /// The number of requests of each key.
    pub counts: Vec<u32>,
    /// The latest deadline of all requests.
    pub deadline: Deadline,
}

/// A call that requests still join.
struct Joining<R: Batched> {
    limit: Arc<R::Limit>,
    slot: u16,
    apart: bool,
    keys: IndexSet<Vec<u8>, RandomState>,
    counts: Vec<u32>,
    /// Each with the position of its key.
    requests: Vec<(usize, R)>,
    deadline: Deadline,
}

impl<R: Batched> Joining<R> {
    fn for_the_first(first: &Waiting<R>, most: usize) -> Self {
        Self {
            limit: Arc::clone(&first.limit),
            slot: first.slot,
            apart: first.apart,
            keys: IndexSet::with_capacity_and_hasher(most.min(R::KEYS), RandomState::default()),
            counts: Vec::with_capacity(most.min(R::KEYS)),
            requests: Vec::with_capacity(most.min(R::REQUESTS)),
            deadline: first.deadline,
        }
    }

    fn has_room_for(&self, other: &Waiting<R>) -> bool {
        Arc::ptr_eq(&self.limit, &other.limit)
            && self.slot == other.slot
            && self.apart == other.apart
            && self.requests.len() < R::REQUESTS
            && (self.keys.len() < R::KEYS || self.keys.contains(&other.key))
    }

    fn push(&mut self, other: Waiting<R>) {
        self.deadline = self.deadline.max(other.deadline);
        let (place, is_new) = self.keys.insert_full(other.key);
        if is_new {
            self.counts.push(0);
        }
        self.counts[place] += 1;
        self.requests.push((place, other.request));
    }

    fn finish(mut self) -> Call<R> {
        // A stable sort: the requests of a key stay in order.
        self.requests.sort_by_key(|(place, _)| *place);
        Call {
            limit: self.limit,
            keys: self.keys.into_iter().collect(),
            requests: self
                .requests
                .into_iter()
                .map(|(_, request)| request)
                .collect(),
            counts: self.counts,
            deadline: self.deadline,
        }
    }
}

/// Groups requests into calls. Requests that no caller waits for any more are dropped, so they are
/// not charged.
pub fn group<R: Batched>(requests: Vec<Waiting<R>>) -> Vec<Call<R>> {
    let mut calls: Vec<Joining<R>> = Vec::new();
    let (mut last, most) = (0, requests.len());
    for request in requests
        .into_iter()
        .filter(|waiting| waiting.request.is_wanted())
    {
        let with_the_last = (request.follows && last < calls.len()).then_some(last);
        // Search from the end for a call that still has room.
        let found = || calls.iter().rposition(|call| call.has_room_for(&request));
        last = with_the_last.or_else(found).unwrap_or_else(|| {
            calls.push(Joining::for_the_first(&request, most));
            calls.len() - 1
        });
        calls[last].push(request);
    }
    calls.into_iter().map(Joining::finish).collect()
}
