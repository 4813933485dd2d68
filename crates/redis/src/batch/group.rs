//! Grouping of requests into calls.

use std::{collections::HashMap, sync::Arc};

use rapidhash::fast::RandomState;

use super::Request;
use crate::Deadline;

/// Requests for one limit, and in a cluster for one slot.
pub struct Call<R: Request> {
    pub limit: Arc<R::Limit>,
    slot: u16,
    apart: bool,
    pub keys: Vec<Vec<u8>>,
    /// The requests of each key, in order.
    pub requests: Vec<Vec<R>>,
    /// The latest deadline of all requests.
    pub deadline: Deadline,
    places: HashMap<Vec<u8>, usize, RandomState>,
    count: usize,
}

impl<R: Request> Call<R> {
    fn for_the_first(request: &R) -> Self {
        Self {
            limit: Arc::clone(request.limit()),
            slot: request.slot(),
            apart: request.apart(),
            keys: Vec::new(),
            requests: Vec::new(),
            deadline: request.deadline(),
            places: HashMap::default(),
            count: 0,
        }
    }

    fn has_room_for(&self, request: &R) -> bool {
        Arc::ptr_eq(&self.limit, request.limit())
            && self.slot == request.slot()
            && self.apart == request.apart()
            && self.count < R::REQUESTS
            && (self.requests.len() < R::KEYS || self.places.contains_key(request.key()))
    }

    fn push(&mut self, mut request: R) {
        self.count += 1;
        self.deadline = self.deadline.max(request.deadline());
        let next = self.requests.len();
        let place = *self.places.entry(request.take_key()).or_insert(next);
        if place == next {
            self.requests.push(Vec::with_capacity(1));
        }
        self.requests[place].push(request);
    }

    fn finish(mut self) -> Self {
        self.keys = vec![Vec::new(); self.requests.len()];
        for (key, place) in self.places.drain() {
            self.keys[place] = key;
        }
        self
    }
}

/// Groups requests into calls. Requests that no caller waits for any more are dropped, so they are not charged.
pub fn group<R: Request>(requests: Vec<R>) -> Vec<Call<R>> {
    let mut calls: Vec<Call<R>> = Vec::new();
    let mut last = 0;
    for request in requests.into_iter().filter(R::is_wanted) {
        let with_the_last = (request.follows() && last < calls.len()).then_some(last);
        // Search from the end for a call that still has room.
        let found = || calls.iter().rposition(|call| call.has_room_for(&request));
        last = with_the_last.or_else(found).unwrap_or_else(|| {
            calls.push(Call::for_the_first(&request));
            calls.len() - 1
        });
        calls[last].push(request);
    }
    calls.into_iter().map(Call::finish).collect()
}
