//! `POST /v1/what-if`: what other rules would have decided on the trace.

use axum::http::Request;
use hyper::body::Incoming;
use serde_json::json;
use tidegate_service::{observe::what_if::what_if, rules};
use tokio::task::spawn_blocking;

use super::{rules_file::parsing, trace::taken};
use crate::{
    control::ControlPlane,
    edges::http::{
        answer,
        body::rules_body,
        permit::Caller,
        problem::{Answered, Problem},
    },
};

/// How many keys of each limit are listed.
const KEYS: usize = 20;

/// What a trace lacks over a store.
const SHARED: &str = "the trace has the requests to this server alone: if keys ask other servers, too, the candidate would have \
                      denied more";

/// The body is rules as a file has them. All limits of them that concern the client are replayed.
pub(super) async fn answer(
    control: &ControlPlane,
    caller: &Caller<'_>,
    request: Request<Incoming>,
) -> Answered {
    let Caller { app, rights } = caller.clone();
    let (text, _permit) = rules_body(&control.rules_thread.readers, request).await?;
    let keeping = app.service.keeping();
    let rules = parsing(control, move || rules::parse_for(&text, keeping)).await?;
    let rules = rules.map_err(|problems| Problem::bad_rules(&problems))?;
    let (recording, permit) = taken(control, caller, None, None).await?;
    let trace = app.service.trace().cloned();
    let is_shared = app.service.store().is_some();
    let replayed = spawn_blocking(move || {
        let concern = |name: &str| {
            rights
                .as_ref()
                .is_none_or(|rights| rights.concern(name.as_bytes()))
        };
        let limits: Vec<_> = rules
            .limits
            .into_iter()
            .filter(|limit| concern(&limit.name))
            .collect();
        // A key that is not chosen is not in the trace: that is known of it.
        let hash = |key: &str| Some(trace.as_ref()?.chosen(key.as_bytes()).unwrap_or(u64::MAX));
        let mut replayed = what_if(&recording, &limits, &hash, KEYS);
        if is_shared {
            for limit in &mut replayed {
                limit.notes.push(SHARED.to_owned());
            }
        }
        drop(permit);
        json!({
            "share": recording.share.fraction(),
            "from": recording.from / 1_000_000_000,
            "until": recording.until / 1_000_000_000,
            "limits": replayed,
        })
    });
    let replayed = replayed
        .await
        .map_err(|_| Problem::at("#", "the replay failed; the server's log says why"))?;
    Ok(answer::json(&replayed))
}
