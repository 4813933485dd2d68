//! Requests that wait in line.

use std::{
    future::poll_fn,
    pin::pin,
    task::{Poll, ready},
};

use tidegate_listen::connections::Responses;
use tidegate_service::decide::service::WaitFor;

use super::{
    answer,
    app::App,
    ask::{Ask, Asks},
    problem::{Answered, Problem},
};

/// Takes from limits, once they admit. If the client goes away, the connection ends and drops this
/// future.
pub(super) async fn acquire(
    app: &App,
    asks: Asks<'_>,
    wait: WaitFor,
    responses: &Responses,
) -> Answered {
    let _in_line = responses.wait();
    match asks {
        Asks::Any(_) => Err(Problem::at(
            "#/wait",
            "a request waits for one limit, or for `all` of several; not for `any`",
        )),
        Asks::One(ask) => {
            let question = [ask.question()];
            let wait = app.service.acquire_all_waiting(&question, wait);
            let joint = after_a_look(wait).await.map_err(|(_, refusal)| refusal)?;
            Ok(app.one(&joint.into_bound(), None))
        }
        Asks::All(all) => {
            let asks: Vec<_> = all.iter().map(Ask::question).collect();
            let wait = app.service.acquire_all_waiting(&asks, wait);
            let joint = after_a_look(wait).await.map_err(Problem::from_part)?;
            Ok(app.for_vendor(&joint.answers, answer::all(&joint, None)))
        }
    }
}

/// Before it goes on after a wait, the connection looks whether its client has gone: a grant that
/// comes together with the client's end returns to the line.
pub(super) async fn after_a_look<F: Future>(wait: F) -> F::Output {
    let mut wait = pin!(wait);
    let (mut waits, mut has_looked) = (false, false);
    poll_fn(|cx| {
        if waits && !has_looked {
            has_looked = true;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        (waits, has_looked) = (true, false);
        Poll::Ready(ready!(wait.as_mut().poll(cx)))
    })
    .await
}
