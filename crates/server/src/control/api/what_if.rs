//! `POST /v1/what-if`: what other rules would have decided on the trace.

use std::collections::HashMap;

use axum::http::Request;
use hyper::body::Incoming;
use serde_json::json;
use tidegate_chart::Mark;
use tidegate_service::{
    observe::what_if::{WhatIf, part_of, what_if},
    rules::{self, LimitSpec},
};
use tokio::task::spawn_blocking;

use super::{rules_file::parsing, trace::taken};
use crate::{
    control::{ControlPlane, chart},
    edges::http::{
        answer,
        body::rules_body,
        permit::Caller,
        problem::{Answered, Problem},
        query,
    },
};

/// How many keys of each limit are listed.
const KEYS: usize = 20;

/// The note of a candidate over a store.
const SHARED: &str = "the trace has the requests to this server alone: if keys ask other servers, too, the candidate would have \
                      denied more";

/// The body is rules as a file has them. All limits of them that concern the client are replayed.
pub(super) async fn answer(
    control: &ControlPlane,
    caller: &Caller<'_>,
    request: Request<Incoming>,
) -> Answered {
    let Caller { app, rights } = caller.clone();
    let with_charts = {
        let [charts] = query::fields(request.uri(), ["charts"])?;
        match charts.as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(Problem::at("#", "`charts` must be true or false")),
        }
    };
    let (text, _permit) = rules_body(&control.rules_readers, request).await?;
    let keeping = app.service.keeping();
    let rules = parsing(control, move || rules::parse_for(&text, keeping)).await?;
    let rules = rules.map_err(|problems| Problem::bad_rules(&problems))?;
    let (recording, permit) = taken(control, caller, None, None).await?;
    let trace = app.service.trace().cloned();
    let is_shared = app.service.store().is_some();
    let of_limit = |limit: &LimitSpec| control.marks_of(Some(&limit.name), None);
    let all: HashMap<String, Vec<Mark>> = if with_charts {
        rules
            .limits
            .iter()
            .map(|limit| (limit.name.clone(), of_limit(limit)))
            .collect()
    } else {
        HashMap::new()
    };
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
        // For the dashboard alone: they are long.
        let charts: Vec<String> = if with_charts {
            let times = (recording.from, part_of(&recording));
            let chart = |limit: &WhatIf| {
                let marks = all.get(&limit.limit).map(Vec::as_slice).unwrap_or_default();
                chart::compared(&limit.over_time, times, marks).into_string()
            };
            replayed.iter().map(chart).collect()
        } else {
            Vec::new()
        };
        json!({
            "charts": charts,
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
