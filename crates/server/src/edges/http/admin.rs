//! The actions of the control plane: metrics, rules, and the operators' changes at run time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, Response, StatusCode},
};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use tidegate_core::Nanos;
use tokio::sync::oneshot;

use super::{
    answer,
    app::App,
    ask,
    body::{body, text},
    problem::{Problem, Refused},
    table::Endpoint,
};
use crate::{
    decide::{limits::Limit, service::Refusal},
    listen::access::Rights,
    rules::LimitSpec,
    serve::reload::Reloaded,
};

/// How long a request to reload the rules waits for the result, because a file system may hang.
const RELOAD_TIME: Duration = Duration::from_secs(30);

/// `permitted` says whether the client's rights cover a limit.
pub(super) async fn run(
    app: &App,
    endpoint: Endpoint,
    request: Request<Incoming>,
    rights: Option<&Rights>,
    permitted: &impl Fn(&str) -> Result<(), Problem>,
) -> Result<Response<Body>, Refused> {
    match endpoint {
        Endpoint::Metrics => {
            let metrics = match rights.filter(|rights| !rights.concern_all()) {
                Some(rights) => app.metrics.encode_covered(|limit| rights.concern(limit.as_bytes())),
                None => app.metrics.encode(),
            };
            Ok(text(metrics, "application/openmetrics-text; version=1.0.0; charset=utf-8"))
        }
        Endpoint::Block => {
            let block = ask::read::<ask::Block>(&body(request).await?)?;
            permitted(&block.limit)?;
            let key = block.key.as_deref().map(str::as_bytes);
            app.service.block(block.limit.as_bytes(), key, block.span).map_err(refused)?;
            Ok(answer::json(&json!({"blocked": true})))
        }
        Endpoint::Unblock => {
            let block = ask::read::<ask::Named>(&body(request).await?)?;
            permitted(&block.limit)?;
            let key = block.key.as_deref().map(str::as_bytes);
            let was_blocked = app.service.unblock(block.limit.as_bytes(), key).map_err(refused)?;
            Ok(answer::json(&json!({"unblocked": was_blocked})))
        }
        Endpoint::Override => {
            let asked = ask::read::<ask::Override>(&body(request).await?)?;
            permitted(&asked.limit)?;
            let (limit, key) = (asked.limit.as_bytes(), asked.key.as_deref().map(str::as_bytes));
            if let Some(quota) = asked.quota()? {
                app.service.override_key(limit, key, quota, asked.span).map_err(refused)?;
                return Ok(answer::json(&json!({"overridden": true})));
            }
            let ended = app.service.end_override(limit, key).map_err(refused)?;
            Ok(answer::json(&json!({"ended": ended})))
        }
        Endpoint::Reset => {
            let named = ask::read::<ask::Named>(&body(request).await?)?;
            permitted(&named.limit)?;
            let key = named.key.map(String::into_bytes);
            let its = Arc::clone(&app.service);
            // A limit may hold many keys, so the reset must not block a serving thread.
            let done = tokio::task::spawn_blocking(move || its.reset(named.limit.as_bytes(), key.as_deref()));
            // A panic has already logged itself.
            done.await.unwrap_or(Ok(())).map_err(refused)?;
            Ok(answer::json(&json!({"reset": true})))
        }
        Endpoint::Rules => Ok(answer::json(&rules(app, permitted))),
        Endpoint::Reload => match rights.filter(|rights| !rights.concern_all()) {
            Some(rights) => {
                let detail = format!("{} may not change all limits, which a reload does", rights.name);
                Err(Problem::forbidden(detail).into())
            }
            None => reload(app).await,
        },
        // The table of routes leads nothing else here.
        _ => Err(Problem::new(StatusCode::NOT_FOUND, "No such path", "not on the control plane").into()),
    }
}

fn refused(refusal: Refusal) -> Refused {
    Problem::from_refusal(refusal, "#").into()
}

/// Reloads the rules, and waits for the result.
pub(super) async fn reload(app: &App) -> Result<Response<Body>, Refused> {
    let (asked, answer) = oneshot::channel();
    let reloaded = async {
        app.reload.send(Some(asked)).await.ok()?;
        answer.await.ok()
    };
    match tokio::time::timeout(RELOAD_TIME, reloaded).await.ok().flatten() {
        Some(Reloaded::Loaded { limits }) => Ok(answer::json(&json!({"reloaded": true, "limits": limits}))),
        Some(Reloaded::Rejected { problems }) => {
            let detail = format!("the previous rules stay active: {}", problems.join("; "));
            Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "Rules rejected", detail).into())
        }
        Some(Reloaded::BuiltIn) => {
            let detail = "these are the built-in rules; start the server with --rules FILE";
            Err(Problem::new(StatusCode::CONFLICT, "Nothing to load", detail).into())
        }
        None => {
            let detail = "the server is stopping, or its file system does not respond; see its log";
            Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Not loaded", detail).into())
        }
    }
}

/// The rules in force that the client's rights cover, as a rules file has them.
fn rules(app: &App, permitted: &impl Fn(&str) -> Result<(), Problem>) -> Value {
    let limits = app.service.limits();
    let loaded_at = app.events.rules_loaded_at.load(Ordering::Relaxed) / 1_000_000_000;
    let seen = limits.limits().iter().filter(|limit| permitted(&limit.spec().name).is_ok());
    let limits: Vec<Value> = seen.map(|limit| rule(limit)).collect();
    json!({"loaded_at": loaded_at, "limits": limits})
}

fn rule(limit: &Limit) -> Value {
    let LimitSpec { name, policy, global, shadow, overrides, deny, sharing, .. } = limit.spec();
    let stats = limit.limiter().stats();
    let overrides: Map<String, Value> =
        overrides.iter().map(|(key, own)| (key.clone(), own.to_string().into())).collect();
    let runtime = limit.runtime_overrides().into_iter().map(|(key, own)| {
        // Seconds since 1970; null for no end.
        let until = (own.until < Nanos::MAX).then(|| own.until.get().div_ceil(1_000_000_000));
        (key, json!({"quota": own.policy.quota(), "until": until}))
    });
    let runtime: Map<String, Value> = runtime.collect();
    json!({
        "name": name,
        "limit": policy.quota(),
        "algorithm": policy.algorithm.name(),
        "options": policy.options(),
        "sharing": sharing.options(),
        "global": global,
        "shadow": shadow,
        "keys": stats.keys,
        "max_keys": stats.max_keys,
        "overrides": overrides,
        "runtime_overrides": runtime,
        "deny": deny,
    })
}
