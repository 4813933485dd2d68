//! Requests of many callers, joined into few calls.
//!
//! The first caller sends its own request: one caller alone pays for no queue and no task. For the next a task is started,
//! and whoever comes while that waits for an answer waits in the lane's queue; when the answer is there (or enough have
//! gathered), the task sends all of them, one call for each limit: a thousand share a round trip. Nobody waits for the first
//! caller, whose program may have stopped looking after its own request.

use std::{
    collections::HashMap,
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rapidhash::fast::RandomState;
use tidegate_core::{Decision, Nanos};
use tokio::sync::oneshot;

use crate::{
    Plan, StoreError,
    call::{self, Batch, Before},
    exchange::{self, Exchange},
    store::Inner,
};

/// Calls of tasks under way in one lane.
const IN_FLIGHT: usize = 4;
/// So many waiting are worth a further call before the one under way has returned.
const EARLY: usize = 32;
/// Keys in one call: it keeps the server from others for about a third of a millisecond.
const KEYS: usize = 128;
/// Requests in one call, many for one key.
const REQUESTS: usize = 512;

/// What a request is answered with: the decision, and the time as the state sees it.
pub type Answer = Result<(Decision, Nanos), StoreError>;

/// What waits in a lane.
enum Job {
    Decide(Question),
    /// A lease's, for a limit of which nodes hold pieces.
    Exchange(Exchange),
}

/// A request on its way.
struct Question {
    plan: Arc<Plan>,
    key: Vec<u8>,
    slot: u16,
    cost: u32,
    /// Goes in one call with the question before it, and behind it: it is about the same key, by the same caller.
    follows: bool,
    deadline: Duration,
    answer: oneshot::Sender<Answer>,
}

/// A queue before the store, or before a part of a cluster.
#[derive(Default)]
pub struct Lane(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// Empty where no task has a call under way.
    jobs: Vec<Job>,
    /// Of tasks.
    in_flight: usize,
    /// Whether a caller's own is under way.
    own: bool,
}

impl Queue {
    /// The jobs for a further call, if there should be one.
    fn begin(&mut self) -> Option<Vec<Job>> {
        let now = self.in_flight == 0 || (self.in_flight < IN_FLIGHT && self.jobs.len() >= EARLY);
        now.then(|| {
            self.in_flight += 1;
            mem::take(&mut self.jobs)
        })
    }

    /// The jobs for the next call of a task whose call has ended: where enough have gathered, or no other call will end.
    fn next(&mut self) -> Option<Vec<Job>> {
        let turn = self.jobs.len() >= EARLY || (self.in_flight == 1 && !self.jobs.is_empty());
        if !turn {
            self.in_flight -= 1;
        }
        turn.then(|| mem::take(&mut self.jobs))
    }
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Decides on one request, at the latest after the deadline.
pub async fn decide(
    store: &Arc<Inner>,
    at: usize,
    plan: &Arc<Plan>,
    key: Vec<u8>,
    cost: u32,
    deadline: Duration,
) -> Answer {
    let mut waiting = None;
    let first = enter(store, at, plan, key, &[cost], deadline, |answered| waiting = Some(answered));
    let Some(key) = first else {
        let answered = async { waiting?.await.ok() };
        return match tokio::time::timeout(deadline, answered).await {
            Ok(answer) => answer.unwrap_or(GONE),
            Err(_) => Err(timed_out(store, at)),
        };
    };
    let mut answer = Err(StoreError::BadReply);
    send_own(store, at, plan, key, &[cost], deadline, |_, given| answer = given).await;
    answer
}

/// Decides on several requests for one key, in this order and in one call, at the latest after the deadline.
pub async fn decide_in_turn(
    store: &Arc<Inner>,
    at: usize,
    plan: &Arc<Plan>,
    key: Vec<u8>,
    costs: &[u32],
    deadline: Duration,
) -> Vec<Answer> {
    let mut waiting = Vec::new();
    let first = enter(store, at, plan, key, costs, deadline, |answered| waiting.push(answered));
    let mut answers = Vec::with_capacity(costs.len());
    if let Some(key) = first {
        send_own(store, at, plan, key, costs, deadline, |_, given| answers.push(given)).await;
        return answers;
    }
    let all = async {
        for answered in waiting {
            answers.push(answered.await.unwrap_or(GONE));
        }
    };
    if tokio::time::timeout(deadline, all).await.is_err() {
        let error = timed_out(store, at);
        answers.resize(costs.len(), Err(error));
    }
    answers
}

/// The task that had the request has gone: the runtime is shutting down.
const GONE: Answer = Err(StoreError::Down);

/// The call may have a longer deadline, and tell only later that the store does not answer.
fn timed_out(store: &Inner, at: usize) -> StoreError {
    store.failed(at, &StoreError::TimedOut);
    StoreError::TimedOut
}

/// Sends the requests of a caller who is alone.
async fn send_own(
    store: &Arc<Inner>,
    at: usize,
    plan: &Plan,
    key: Vec<u8>,
    costs: &[u32],
    deadline: Duration,
    mut give: impl FnMut(usize, Answer),
) {
    let _own = Own { store, at };
    let batch = Batch { keys: vec![key], costs: costs.to_vec(), counts: vec![costs.len() as u32] };
    let error = match send(store, at, plan, &batch, deadline).await {
        Ok((now, mut found)) => match found.pop() {
            Some(before) => return each_answer(plan, before, now, costs, give),
            None => StoreError::BadReply,
        },
        Err(error) => error,
    };
    (0..costs.len()).for_each(|at| give(at, Err(error.clone())));
}

/// Puts requests for one key into the queue, with what will bring their answers. Or returns the key: nothing is under way,
/// and the caller sends its own requests.
fn enter(
    store: &Arc<Inner>,
    at: usize,
    plan: &Arc<Plan>,
    mut key: Vec<u8>,
    costs: &[u32],
    deadline: Duration,
    mut wait: impl FnMut(oneshot::Receiver<Answer>),
) -> Option<Vec<u8>> {
    let slot = store.slot(&key);
    let mut queue = store.lanes[at].lock();
    if queue.in_flight == 0 && !queue.own {
        queue.own = true;
        return Some(key);
    }
    for (nth, &cost) in costs.iter().enumerate() {
        let (answer, answered) = oneshot::channel();
        wait(answered);
        let is_last = nth + 1 == costs.len();
        let key = if is_last { mem::take(&mut key) } else { key.clone() };
        let (plan, follows) = (Arc::clone(plan), nth > 0);
        queue.jobs.push(Job::Decide(Question { plan, key, slot, cost, follows, deadline, answer }));
    }
    begin(store, at, queue);
    None
}

/// Sends a lease's request, at once or with those that gather meanwhile.
pub fn post(store: &Arc<Inner>, at: usize, exchange: Exchange) {
    let mut queue = store.lanes[at].lock();
    queue.jobs.push(Job::Exchange(exchange));
    begin(store, at, queue);
}

fn begin(store: &Arc<Inner>, at: usize, mut queue: MutexGuard<'_, Queue>) {
    let begun = queue.begin();
    drop(queue);
    if let Some(jobs) = begun {
        spawn(store, at, jobs);
    }
}

/// A caller's own call under way.
struct Own<'a> {
    store: &'a Arc<Inner>,
    at: usize,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        self.store.lanes[self.at].lock().own = false;
    }
}

/// A task's call under way.
struct Place<'a> {
    store: &'a Arc<Inner>,
    at: usize,
}

impl Place<'_> {
    fn next(&self) -> Option<Vec<Job>> {
        self.store.lanes[self.at].lock().next()
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(jobs) = self.next() {
            spawn(self.store, self.at, jobs);
        }
    }
}

/// Sends jobs, and then those that have come meanwhile, in a place that is taken already.
fn spawn(store: &Arc<Inner>, at: usize, mut jobs: Vec<Job>) {
    let task_store = Arc::clone(store);
    store.runtime.spawn(async move {
        loop {
            // Dropped in mid-call (the runtime ends), it gives its place up.
            let place = Place { store: &task_store, at };
            run(&task_store, at, jobs).await;
            // Those who were just answered may ask again at once: in the next call together.
            tokio::task::yield_now().await;
            let next = place.next();
            mem::forget(place);
            match next {
                Some(more) => jobs = more,
                None => return,
            }
        }
    });
}

/// Jobs of one limit (and in a cluster of one slot).
struct Group {
    plan: Arc<Plan>,
    slot: u16,
    keys: HashMap<Vec<u8>, usize, RandomState>,
    jobs: Vec<Vec<(u32, oneshot::Sender<Answer>)>>,
    requests: usize,
    deadline: Duration,
}

async fn run(store: &Arc<Inner>, at: usize, jobs: Vec<Job>) {
    let (mut questions, mut exchanges) = (Vec::with_capacity(jobs.len()), Vec::new());
    for job in jobs {
        match job {
            // Nobody waits for those any more; what was not asked is not charged.
            Job::Decide(question) if question.answer.is_closed() => {}
            Job::Decide(question) => questions.push(question),
            Job::Exchange(exchange) => exchanges.push(exchange),
        }
    }
    let exchanged = (!exchanges.is_empty() && !questions.is_empty()).then(|| {
        let (store, exchanges) = (Arc::clone(store), mem::take(&mut exchanges));
        store.runtime.clone().spawn(async move { exchange::run(&store, at, exchanges).await })
    });
    exchange::run(store, at, exchanges).await;
    decide_all(store, at, questions).await;
    if let Some(exchanged) = exchanged {
        // It ends early only with the runtime.
        let _ = exchanged.await;
    }
}

async fn decide_all(store: &Arc<Inner>, at: usize, questions: Vec<Question>) {
    let mut groups: Vec<Group> = Vec::new();
    let mut last = 0;
    for job in questions {
        let fits = |group: &Group| {
            Arc::ptr_eq(&group.plan, &job.plan)
                && group.slot == job.slot
                && group.requests < REQUESTS
                && (group.keys.len() < KEYS || group.keys.contains_key(&job.key))
        };
        // From the end: the group that still has room.
        let with_the_last = (job.follows && last < groups.len()).then_some(last);
        let found = with_the_last.or_else(|| groups.iter().rposition(fits)).unwrap_or_else(|| {
            let (keys, jobs) = (HashMap::default(), Vec::new());
            groups.push(Group {
                plan: Arc::clone(&job.plan),
                slot: job.slot,
                keys,
                jobs,
                requests: 0,
                deadline: job.deadline,
            });
            groups.len() - 1
        });
        last = found;
        let group = &mut groups[found];
        group.deadline = group.deadline.max(job.deadline);
        group.requests += 1;
        let next = group.jobs.len();
        let key = *group.keys.entry(job.key).or_insert(next);
        if key == next {
            group.jobs.push(Vec::with_capacity(1));
        }
        group.jobs[key].push((job.cost, job.answer));
    }
    side_by_side(store, groups, move |store, group| async move { answer(&store, at, group).await }).await;
}

/// Runs something for each of these: the last here, the others in tasks of their own. Returns when all have ended.
pub async fn side_by_side<G, F: Future<Output = ()> + Send + 'static>(
    store: &Arc<Inner>,
    mut all: Vec<G>,
    run: impl Fn(Arc<Inner>, G) -> F,
) {
    let Some(last) = all.pop() else { return };
    let spawn = |one| store.runtime.spawn(run(Arc::clone(store), one));
    let others: Vec<_> = all.into_iter().map(spawn).collect();
    run(Arc::clone(store), last).await;
    for other in others {
        // It ends early only with the runtime.
        let _ = other.await;
    }
}

async fn answer(store: &Arc<Inner>, at: usize, group: Group) {
    let Group { plan, keys, jobs, deadline, .. } = group;
    let mut batch = Batch { keys: vec![Vec::new(); keys.len()], ..Batch::default() };
    for (key, at) in keys {
        batch.keys[at] = key;
    }
    for costs in &jobs {
        batch.costs.extend(costs.iter().map(|(cost, _)| *cost));
        batch.counts.push(costs.len() as u32);
    }
    match send(store, at, &plan, &batch, deadline).await {
        Ok((now, found)) => {
            for (before, jobs) in found.into_iter().zip(jobs) {
                let (costs, answers): (Vec<u32>, Vec<_>) = jobs.into_iter().unzip();
                let mut answers = answers.into_iter();
                each_answer(&plan, before, now, &costs, |_, given| {
                    if let Some(answer) = answers.next() {
                        // Whoever asked may have given up.
                        let _ = answer.send(given);
                    }
                });
            }
        }
        Err(error) => {
            for (_, answer) in jobs.into_iter().flatten() {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

fn each_answer(plan: &Plan, before: Before, now: Nanos, costs: &[u32], mut give: impl FnMut(usize, Answer)) {
    let wrong = match before {
        Before::WrongType => StoreError::WrongType,
        Before::NotOurs => StoreError::NotOurs,
        Before::Value(value) => {
            let told = plan.decisions(value.as_deref(), now, costs, |at, decision, seen| {
                give(at, Ok((decision, seen)));
            });
            if told.is_some() {
                return;
            }
            StoreError::NotOurs
        }
    };
    for at in 0..costs.len() {
        give(at, Err(wrong.clone()));
    }
}

/// One call.
async fn send(
    store: &Arc<Inner>,
    at: usize,
    plan: &Plan,
    batch: &Batch,
    deadline: Duration,
) -> Result<(Nanos, Vec<Before>), StoreError> {
    let script = store.scripts.batch(plan.kind());
    let reply = store.call(at, script, &batch.keys, &batch.arguments(plan), deadline, true).await?;
    call::parse(reply, batch.keys.len())
}
