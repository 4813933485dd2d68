//! `GET /v1/history`: the decisions of a limit in each second, and the latencies of responses.

use axum::{
    body::Body,
    http::{Response, Uri},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{
    answer,
    app::App,
    problem::{Problem, Refused},
    query,
};
use crate::{
    decide::service::{Refusal, resolve},
    observe::history::{OUTCOMES, Size, Step, latency_bounds},
};

/// The requested part of the history.
struct Asked {
    step: Step,
    most: usize,
}

#[derive(Debug, Serialize)]
struct SizeBody {
    bytes: u64,
    max_bytes: u64,
    limits_left_out: usize,
}

impl From<Size> for SizeBody {
    fn from(size: Size) -> Self {
        Self { bytes: size.bytes, max_bytes: size.max_bytes, limits_left_out: size.left_out }
    }
}

/// `permitted` says whether the client's rights cover a limit.
pub(super) fn answer(
    app: &App,
    uri: &Uri,
    permitted: &impl Fn(&str) -> Result<(), Problem>,
) -> Result<Response<Body>, Refused> {
    let [limit, step, n] = query::fields(uri, ["limit", "step", "n"])?;
    let step = match query::number(step.as_deref(), "step", 1, 1..=10)? {
        1 => Step::Second,
        10 => Step::TenSeconds,
        _ => return Err(Problem::bad_field("#", "`step` must be 1 or 10 (seconds)").into()),
    };
    let asked = Asked { step, most: query::number(n.as_deref(), "n", usize::MAX, 1..=usize::MAX)? };
    match limit {
        Some(limit) => {
            permitted(&limit)?;
            of_limit(app, &limit, &asked)
        }
        None => of_answers(app, &asked),
    }
}

fn of_limit(app: &App, limit: &str, asked: &Asked) -> Result<Response<Body>, Refused> {
    let refused = |refusal| Problem::from_refusal(refusal, "#");
    let limits = app.service.limits();
    let spec = resolve(&limits, limit.as_bytes(), Some(&[])).map_err(refused)?.limit.spec();
    let history = app.service.history();
    let told = history.of(&spec.name, asked.step, asked.most);
    let told = told.ok_or_else(|| refused(Refusal::NoHistory { limit: spec.name.clone() }))?;
    let column = |at: usize| Value::from(told.points.iter().map(|point| point[at]).collect::<Vec<_>>());
    let mut body = Map::new();
    body.insert("limit_name".to_owned(), json!(spec.name));
    body.insert("step_seconds".to_owned(), json!(told.step));
    body.insert("end".to_owned(), json!(told.end));
    body.extend(OUTCOMES.iter().enumerate().map(|(at, name)| ((*name).to_owned(), column(at))));
    if let Some(sample) = history.latency_of(&spec.name, asked.step, asked.most) {
        body.insert("latency_seconds".to_owned(), json!(latency_bounds().collect::<Vec<_>>()));
        let sample: Vec<_> = sample.points.iter().map(|point| point.to_vec()).collect();
        body.insert("latency_sample".to_owned(), json!(sample));
    }
    body.insert("memory".to_owned(), json!(SizeBody::from(history.size())));
    Ok(answer::json(&body))
}

fn of_answers(app: &App, asked: &Asked) -> Result<Response<Body>, Refused> {
    let history = app.service.history();
    let told = history
        .latency(asked.step, asked.most)
        .ok_or_else(|| Problem::from_refusal(Refusal::NoHistory { limit: String::new() }, "#"))?;
    Ok(answer::json(&json!({
        "step_seconds": told.step,
        "end": told.end,
        "latency_seconds": latency_bounds().collect::<Vec<_>>(),
        "answers": told.points.iter().map(|point| point.to_vec()).collect::<Vec<_>>(),
        "memory": SizeBody::from(history.size()),
    })))
}
