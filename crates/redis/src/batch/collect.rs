//! The answers that a caller waits for.

use std::{
    mem,
    sync::{Arc, Mutex},
};

use tidegate_core::{Decision, Nanos};
use tokio::sync::oneshot;

use crate::{Deadline, StoreError, sync::lock};

/// The result of a request: the decision, and the time that the state uses.
pub type BatchAnswer = Result<(Decision, Nanos), StoreError>;

/// The answers to a caller's requests, which may belong to several calls.
pub struct Collector {
    answers: Arc<Mutex<Answers>>,
    complete: oneshot::Receiver<()>,
}

/// The place of one answer. Dropping it without an answer means that there will be none.
pub struct Place {
    answers: Arc<Mutex<Answers>>,
    at: usize,
}

struct Answers {
    given: Vec<Option<BatchAnswer>>,
    /// The number of places that still exist.
    missing: usize,
    /// `None` once all places are gone.
    complete: Option<oneshot::Sender<()>>,
}

impl Collector {
    /// A collector of `count` answers, and their places.
    pub fn new(count: usize) -> (Self, impl Iterator<Item = Place>) {
        let (sender, complete) = oneshot::channel();
        let given = (0..count).map(|_| None).collect();
        let complete_when_gone = (count > 0).then_some(sender);
        let answers = Arc::new(Mutex::new(Answers {
            given,
            missing: count,
            complete: complete_when_gone,
        }));
        let places = Arc::clone(&answers);
        let places = (0..count).map(move |at| Place {
            answers: Arc::clone(&places),
            at,
        });
        (Self { answers, complete }, places)
    }

    /// Waits until each place has its answer or is gone, or until the deadline. Returns the answers
    /// there are, and whether the deadline has not passed.
    pub async fn wait(self, deadline: Deadline) -> (Vec<Option<BatchAnswer>>, bool) {
        let in_time = deadline.bound(self.complete).await.is_ok();
        (mem::take(&mut lock(&self.answers).given), in_time)
    }
}

impl Place {
    pub fn give(self, answer: BatchAnswer) {
        // The caller may have given up and taken what was there.
        if let Some(place) = lock(&self.answers).given.get_mut(self.at) {
            *place = Some(answer);
        }
    }

    /// Whether the caller still waits.
    pub fn is_wanted(&self) -> bool {
        lock(&self.answers)
            .complete
            .as_ref()
            .is_some_and(|complete| !complete.is_closed())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut answers = lock(&self.answers);
        answers.missing -= 1;
        if answers.missing == 0
            && let Some(complete) = answers.complete.take()
        {
            drop(answers);
            // The caller may have given up.
            let _ = complete.send(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate_core::Standing;

    use super::*;

    fn far() -> Deadline {
        Deadline::after(Duration::from_hours(1))
    }

    fn decided(remaining: u64) -> (Decision, Nanos) {
        (
            Decision::allow(Standing {
                limit: 9,
                room: remaining,
                unit: 1,
                reset_after: 0,
            }),
            Nanos::ZERO,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn answers_are_in_their_places_whatever_order_they_come_in() {
        let (collector, places) = Collector::new(3);
        let mut places: Vec<Place> = places.collect();
        places.pop().expect("three").give(Ok(decided(2)));
        assert!(places[0].is_wanted());
        places.swap_remove(0).give(Ok(decided(0)));
        drop(places);
        let (answers, in_time) = collector.wait(far()).await;
        let remaining =
            |answer: &Option<BatchAnswer>| Some(answer.as_ref()?.as_ref().ok()?.0.remaining());
        assert_eq!(
            answers.iter().map(remaining).collect::<Vec<_>>(),
            [Some(0), None, Some(2)]
        );
        assert!(in_time, "nothing more can come");
        let without_places = Collector::new(0).0.wait(far()).await;
        assert!(without_places.0.is_empty() && without_places.1);
    }

    #[tokio::test(start_paused = true)]
    async fn at_the_deadline_the_caller_has_the_answers_that_came() {
        let (collector, places) = Collector::new(2);
        let mut places: Vec<Place> = places.collect();
        places.remove(0).give(Ok(decided(0)));
        let (answers, in_time) = collector
            .wait(Deadline::after(Duration::from_millis(50)))
            .await;
        assert!(answers[0].is_some() && answers[1].is_none() && !in_time);
        assert!(!places[0].is_wanted());
        places.remove(0).give(Ok(decided(1)));
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_wants_no_answers() {
        let (collector, mut places) = Collector::new(1);
        let place = places.next().expect("one");
        assert!(place.is_wanted());
        drop(collector);
        assert!(!place.is_wanted());
        place.give(Ok(decided(0)));
    }
}
