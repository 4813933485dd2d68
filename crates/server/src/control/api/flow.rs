//! `/v1/flow`: programs report what their resources do and get rules, operators see the reports and
//! push the rules.

use std::{collections::BTreeMap, sync::Arc};

use axum::http::{Request, StatusCode, Uri};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_service::{
    flow::{AppSummary, ProgramReport, PushError, ReportError, ResourceSummary},
    observe::audit::Action,
};

use super::rules_file::parsing;
use crate::{
    control::ControlPlane,
    edges::http::{
        answer, ask,
        body::body,
        permit::{Caller, shown},
        problem::{Answered, Problem},
        query,
    },
};

/// The rules of an application.
#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "an object such as {\"app\": \"shop\", \"rules\": \"flow: []\"}"
)]
struct Push {
    app: String,
    /// In YAML.
    rules: String,
    /// The version that they were made from; empty if there was none.
    version: Option<String>,
}

/// Refuses an application that the client's rights do not cover.
fn permit(caller: &Caller<'_>, app: &str) -> Result<(), Problem> {
    if caller.concerns(app) {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "{} may not use the application `{}`",
        caller.name(),
        shown(app)
    )))
}

/// Takes a report, and answers with rules that the program does not have yet.
pub(super) async fn report(
    control: &ControlPlane,
    caller: &Caller<'_>,
    request: Request<Incoming>,
) -> Answered {
    let report = ask::read::<ProgramReport>(&body(request).await?)?;
    permit(caller, &report.app)?;
    let flow = &control.flow;
    let rules = flow.pushed.newer(&report.app, report.version.as_deref());
    let wants_own = flow
        .reports
        .take(report, control.app.service.now())
        .map_err(|error| match error {
            ReportError::Name(_) => Problem::at("#", error.to_string()),
            ReportError::TooMany { .. } => Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "Too many instances",
                error.to_string(),
            ),
        })?;
    Ok(answer::json(
        &json!({"rules": rules, "wants_own": wants_own}),
    ))
}

/// Gives an application rules.
pub(super) async fn push(
    control: &ControlPlane,
    caller: &Caller<'_>,
    request: Request<Incoming>,
) -> Answered {
    let service = &control.app.service;
    let push = ask::read::<Push>(&body(request).await?)?;
    permit(caller, &push.app)?;
    let (flow, name) = (Arc::clone(&control.flow), push.app.clone());
    // Not on a thread that serves: it writes a file.
    let pushed = parsing(control, move || {
        flow.pushed
            .push(&push.app, &push.rules, push.version.as_deref())
    })
    .await?;
    match pushed {
        Ok(version) => {
            service.audit.record(
                service.now(),
                Action::new(caller.name(), "push").with(&name),
            );
            Ok(answer::json(&json!({"pushed": true, "version": version})))
        }
        Err(error) => Err(match error {
            PushError::Name => Problem::at("#/app", error.to_string()),
            PushError::Changed(_) => {
                Problem::new(StatusCode::CONFLICT, "Rules changed", error.to_string())
            }
            PushError::Rules(why) => {
                let detail = format!("the previous rules stay active: {why}");
                Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "Rules rejected", detail)
            }
            _ => {
                tracing::error!(app = name, %error, "flow rules cannot be pushed");
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "Not pushed",
                    error.to_string(),
                )
            }
        }),
    }
}

/// The reported applications, instances and resources.
pub(super) fn answer(control: &ControlPlane, caller: &Caller<'_>, uri: &Uri) -> Answered {
    let (flow, now) = (&control.flow, control.app.service.now());
    let [name] = query::texts(uri, ["app"]).map_err(|why| Problem::at("#", why.to_string()))?;
    let mut apps = flow.summary(name.as_deref(), now);
    apps.retain(|summary| caller.concerns(&summary.app));
    let apps: Vec<Value> = apps
        .iter()
        .map(|summary| of_app(control, summary))
        .collect();
    Ok(answer::json(&json!({"apps": apps})))
}

fn of_app(control: &ControlPlane, summary: &AppSummary) -> Value {
    let instances = summary.instances.iter().map(|instance| {
        json!({
            "instance": instance.name,
            "reported_ms_ago": instance.ago.as_millis() as u64,
            "gone": instance.is_gone,
            "version": instance.version,
            "rejected": instance.rejected,
            "left_out": instance.left_out,
            "rules": instance.own.as_ref().map(|own| &*own.text),
        })
    });
    json!({
        "app": summary.app,
        "instances": instances.collect::<Vec<_>>(),
        "resources": summary.resources.iter().map(|(name, resource)| of_resource(name, resource)).collect::<Vec<_>>(),
        "rules": control.flow.pushed.get(&summary.app),
    })
}

fn of_resource(name: &str, resource: &ResourceSummary) -> Value {
    let [pass, block, exceptions] = resource.rates();
    let of = |at: usize| {
        resource
            .minute
            .iter()
            .map(|second| second[at])
            .collect::<Vec<_>>()
    };
    let hour = |at: usize| {
        resource
            .hour
            .iter()
            .map(|minute| minute[at])
            .collect::<Vec<_>>()
    };
    let breakers = resource.breakers.iter().map(
        |((rule, state), instances)| json!({"rule": rule, "state": state, "instances": instances}),
    );
    let adaptive = resource
        .adaptive
        .iter()
        .map(|(rule, limit)| json!({"rule": rule, "limit": limit}));
    json!({
        "resource": name,
        "pass_per_second": pass,
        "block_per_second": block,
        "exceptions_per_second": exceptions,
        "mean_rt_ms": resource.mean_rt().as_secs_f64() * 1e3,
        "in_flight": resource.in_flight,
        "breakers": breakers.collect::<Vec<_>>(),
        "adaptive": adaptive.collect::<Vec<_>>(),
        "minute": {"pass": of(0), "block": of(1), "exceptions": of(2)},
        "hour": {"pass": hour(0), "block": hour(1)},
        "blocked": resource.blocked,
        "origins": of_parts(&resource.origins),
        "contexts": of_parts(&resource.contexts),
    })
}

fn of_parts(parts: &BTreeMap<String, [u64; 3]>) -> Value {
    let part = |(name, [pass, block, in_flight]): (&String, &[u64; 3])| json!({"name": name, "pass_per_second": pass, "block_per_second": block, "in_flight": in_flight});
    parts.iter().map(part).collect()
}
