//! Estimates that are corrected after the work: reserve, extend, settle and cancel.

use std::time::Duration;

use serde_json::json;
use tidegate_listen::connections::Responses;
use tidegate_service::decide::{
    reservations::{Id, ReservationError},
    service::{Refusal, check_id},
};

use super::{
    answer,
    ask::{self, Ask, Costs, Reserve, Reserved},
    permit::Caller,
    problem::{Answered, Problem},
    table::Endpoint,
    wait::after_a_look,
};

/// How long a reservation lives if the request does not say it.
const USUAL_TTL: Duration = Duration::from_mins(1);

pub(super) async fn run(
    caller: &Caller<'_>,
    endpoint: Endpoint,
    body: &[u8],
    responses: &Responses,
) -> Answered {
    let app = caller.app;
    let service = &app.service;
    match endpoint {
        Endpoint::Reserve => {
            let body: Reserve<'_> = ask::read(body)?;
            let ttl = body.ttl.unwrap_or(USUAL_TTL);
            let request = body.id.clone();
            let request = request.as_deref().map(str::as_bytes);
            if let Some(id) = request {
                check_id(id).map_err(|refusal| Problem::at("#/id", refusal.to_string()))?;
            }
            let wait = body.in_line()?;
            if wait.is_some() && request.is_some() {
                return Err(Problem::from_refusal(Refusal::WaitOnce, "#"));
            }
            let asks = body.asks()?;
            caller.permit_each(&asks)?;
            let asked: Vec<_> = asks.iter().map(Ask::question).collect();
            let reserved = if let Some(wait) = wait {
                let _in_line = responses.wait();
                let waiting = service.reserve_waiting(&asked, ttl.into(), wait);
                let reserved = after_a_look(waiting).await;
                reserved.map(|(decided, id)| (decided.into_joint(), id))
            } else {
                let now = service.now();
                service.reserve(request, &asked, ttl.into(), now).await
            };
            let (joint, id) = reserved.map_err(Problem::from_part)?;
            let id = id.map(|id| (id.to_string(), ttl));
            let response =
                answer::reserved(&joint, id.as_ref().map(|(id, ttl)| (id.as_str(), *ttl)));
            Ok(app.for_vendor(&joint.answers, response))
        }
        Endpoint::Extend => {
            let Costs { id, costs } = ask::read(body)?;
            let id = owned(caller, &id).await?;
            let joint = service.extend(id, &costs, service.now()).await?;
            Ok(app.for_vendor(&joint.answers, answer::all(&joint, None)))
        }
        Endpoint::Settle => {
            let Costs { id, costs } = ask::read(body)?;
            let id = owned(caller, &id).await?;
            let first = service
                .settle(id, Some(&costs), service.now())
                .await
                .map_err(Refusal::Reservation)?;
            Ok(answer::json(&json!({"settled": first})))
        }
        _ => {
            let Reserved { id } = ask::read(body)?;
            let id = owned(caller, &id).await?;
            let first = service
                .settle(id, None, service.now())
                .await
                .map_err(Refusal::Reservation)?;
            Ok(answer::json(&json!({"cancelled": first})))
        }
    }
}

/// The reservation with this id, if the client may use all of its limits.
async fn owned(caller: &Caller<'_>, id: &str) -> Result<Id, Problem> {
    let refuse = |why: ReservationError| Problem::from_refusal(Refusal::Reservation(why), "#/id");
    let id: Id = id.parse().map_err(refuse)?;
    let parts = caller.app.service.reserved(id).await.map_err(refuse)?;
    parts
        .iter()
        .try_for_each(|part| caller.permit(&part.limit))?;
    Ok(id)
}
