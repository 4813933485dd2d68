//! `GET /v1/history`: the decisions of a limit in each second, and the latencies of responses.

use axum::http::Uri;
use serde_json::{Value, json};
use tidegate_service::{
    decide::service::{Refusal, resolve},
    observe::history::{OUTCOMES, Size, Step, latency_bounds},
};

use crate::edges::http::{
    App, answer,
    permit::Caller,
    problem::{Answered, Problem},
    query,
};

fn memory(size: Size) -> Value {
    json!({"bytes": size.bytes, "max_bytes": size.max_bytes, "limits_left_out": size.left_out})
}

pub(super) fn answer(caller: &Caller<'_>, uri: &Uri) -> Answered {
    let [limit, step, n] = query::fields(uri, ["limit", "step", "n"])?;
    let step = match query::number(step.as_deref(), "step", 1, 1..=10)? {
        1 => Step::Second,
        10 => Step::TenSeconds,
        _ => return Err(Problem::at("#", "`step` must be 1 or 10 (seconds)")),
    };
    let most = query::number(n.as_deref(), "n", usize::MAX, 1..=usize::MAX)?;
    match limit {
        Some(limit) => {
            caller.permit(&limit)?;
            of_limit(caller.app, &limit, step, most)
        }
        None => of_answers(caller.app, step, most),
    }
}

fn of_limit(app: &App, limit: &str, step: Step, most: usize) -> Answered {
    let limits = app.service.limits();
    let spec = resolve(&limits, limit.as_bytes(), Some(&[]))?.limit.spec();
    let history = app.service.history();
    let seconds = history.of(&spec.name, step, most);
    let seconds = seconds.ok_or_else(|| Refusal::NoHistory {
        limit: spec.name.clone(),
    })?;
    let mut body = json!({
        "limit_name": spec.name,
        "step_seconds": seconds.step,
        "end": seconds.end,
        "memory": memory(history.size()),
    });
    for (at, name) in OUTCOMES.iter().enumerate() {
        body[name] = seconds.points.iter().map(|point| point[at]).collect();
    }
    if let Some(sample) = history.latency_of(&spec.name, step, most) {
        body["latency_seconds"] = latency_bounds().collect();
        body["latency_sample"] = sample.points.iter().map(|point| point.to_vec()).collect();
    }
    Ok(answer::json(&body))
}

fn of_answers(app: &App, step: Step, most: usize) -> Answered {
    let history = app.service.history();
    let latencies = history
        .latency(step, most)
        .ok_or_else(|| Refusal::NoHistory {
            limit: String::new(),
        })?;
    Ok(answer::json(&json!({
        "step_seconds": latencies.step,
        "end": latencies.end,
        "latency_seconds": latency_bounds().collect::<Vec<_>>(),
        "answers": latencies.points.iter().map(|point| point.to_vec()).collect::<Vec<_>>(),
        "memory": memory(history.size()),
    })))
}
