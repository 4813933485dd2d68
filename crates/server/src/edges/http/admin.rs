//! The actions of the control plane: metrics, rules, and the operators' changes at run time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, Response, StatusCode, header::ACCEPT},
};
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use tidegate_core::Nanos;
use tidegate_redis::OrderKind;
use tokio::sync::oneshot;

use super::{
    answer,
    app::App,
    ask,
    body::{body, text},
    orders,
    problem::{Problem, Refused},
    table::Endpoint,
};
use crate::{
    decide::{
        limits::Limit,
        refusal::MOST_OVERRIDES,
        service::{Operation, Operator},
    },
    listen::access::Rights,
    observe::{audit::Action, metrics::Format},
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
    let client = rights.map_or("", |rights| &*rights.name);
    let by = |note| Operator { client, note };
    match endpoint {
        Endpoint::Metrics => {
            let metrics = match rights.filter(|rights| !rights.concern_all()) {
                Some(rights) => app.metrics.encode_covered(|limit| rights.concern(limit.as_bytes())),
                None => app.metrics.encode(),
            };
            let accept = request.headers().get(ACCEPT).and_then(|types| types.to_str().ok());
            let format = Format::asked(accept);
            Ok(text(format.of(metrics), format.content_type()))
        }
        Endpoint::Block => {
            let block = ask::read::<ask::Block>(&body(request).await?)?;
            permitted(&block.limit)?;
            let by = by(block.note.as_deref());
            operate(app, &block.limit, block.key.as_deref(), &Operation::Block(block.span), &by).await?;
            Ok(answer::json(&json!({"blocked": true})))
        }
        Endpoint::Unblock => {
            let block = ask::read::<ask::Named>(&body(request).await?)?;
            permitted(&block.limit)?;
            let by = by(block.note.as_deref());
            let was_blocked =
                operate(app, &block.limit, block.key.as_deref(), &Operation::Unblock, &by).await?;
            Ok(answer::json(&json!({"unblocked": was_blocked})))
        }
        Endpoint::Override => {
            let asked = ask::read::<ask::Override>(&body(request).await?)?;
            permitted(&asked.limit)?;
            let (key, by) = (asked.key.as_deref(), by(asked.note.as_deref()));
            if let Some(quota) = asked.quota()? {
                let operation = Operation::Override(quota.to_owned(), asked.span);
                operate(app, &asked.limit, key, &operation, &by).await?;
                return Ok(answer::json(&json!({"overridden": true})));
            }
            let ended = operate(app, &asked.limit, key, &Operation::EndOverride, &by).await?;
            Ok(answer::json(&json!({"ended": ended})))
        }
        Endpoint::Reset => {
            let named = ask::read::<ask::Named>(&body(request).await?)?;
            permitted(&named.limit)?;
            let (its, asked, who) = (Arc::clone(&app.service), named.clone(), client.to_owned());
            // A limit may hold many keys, so the reset must not block a serving thread.
            let done = tokio::task::spawn_blocking(move || {
                let key = asked.key.as_deref().map(str::as_bytes);
                let by = Operator { client: &who, note: asked.note.as_deref() };
                its.operate_in_memory(asked.limit.as_bytes(), key, &Operation::Reset, &by)
            });
            // A panic has already logged itself.
            if let Some(done) = done.await.unwrap_or(Some(Ok(true))) {
                done?;
            } else {
                let by = by(named.note.as_deref());
                operate(app, &named.limit, named.key.as_deref(), &Operation::Reset, &by).await?;
            }
            Ok(answer::json(&json!({"reset": true})))
        }
        Endpoint::Rules => Ok(answer::json(&rules(app, permitted))),
        Endpoint::Blocks | Endpoint::Overrides | Endpoint::Explain => {
            orders::answer(app, endpoint, request.uri(), permitted).await
        }
        Endpoint::Audit => {
            let actions = app.service.audit().recent();
            let seen =
                actions.iter().map(|action| &**action).filter(|action| match (&action.limit, rights) {
                    (_, None) => true,
                    (None, Some(rights)) => rights.concern_all(),
                    (Some(limit), Some(rights)) => rights.concern(limit.as_bytes()),
                });
            Ok(answer::json(&json!({"actions": seen.collect::<Vec<_>>()})))
        }
        Endpoint::Reload => match rights.filter(|rights| !rights.concern_all()) {
            Some(rights) => {
                let detail = format!("{} may not change all limits, which a reload does", rights.name);
                Err(Problem::forbidden(detail).into())
            }
            None => reload(app, Action::new(client, "reload")).await,
        },
        // The table of routes leads nothing else here.
        _ => Err(Problem::new(StatusCode::NOT_FOUND, "No such path", "not on the control plane").into()),
    }
}

/// Makes an operator's change about a key.
async fn operate(
    app: &App,
    limit: &str,
    key: Option<&str>,
    operation: &Operation,
    by: &Operator<'_>,
) -> Result<bool, Refused> {
    Ok(app.service.operate(limit.as_bytes(), key.map(str::as_bytes), operation, by).await?)
}

/// Reloads the rules, waits for the result, and records this action if they are in force.
pub(super) async fn reload(app: &App, action: Action) -> Result<Response<Body>, Refused> {
    let (asked, answer) = oneshot::channel();
    let reloaded = async {
        app.reload.send(Some(asked)).await.ok()?;
        answer.await.ok()
    };
    match tokio::time::timeout(RELOAD_TIME, reloaded).await.ok().flatten() {
        Some(Reloaded::Loaded { limits }) => {
            app.service.audit().record(app.service.now(), action);
            Ok(answer::json(&json!({"reloaded": true, "limits": limits})))
        }
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
    let LimitSpec { name, policy, global, shadow, overrides, deny, sharing, soft, .. } = limit.spec();
    let stats = limit.limiter().stats();
    let overrides: Map<String, Value> =
        overrides.iter().map(|(key, own)| (key.clone(), own.to_string().into())).collect();
    // Seconds since 1970; null for no end.
    let seconds = |until: Nanos| (until < Nanos::MAX).then(|| until.get().div_ceil(1_000_000_000));
    let (runtime_count, runtime) = limit.runtime_overrides(MOST_OVERRIDES);
    let runtime = runtime
        .into_iter()
        .map(|(key, own)| (key, json!({"quota": own.policy.quota(), "until": seconds(own.until)})));
    let runtime: Map<String, Value> = runtime.collect();
    // Blocks in memory are known by their hashes alone.
    let blocked = limit.store().map(|store| {
        let (count, given) = store.orders().list(OrderKind::Block, MOST_OVERRIDES);
        let keys = given.into_iter().map(|given| {
            let until = json!({"until": given.until.and_then(seconds)});
            (String::from_utf8_lossy(&given.key).into_owned(), until)
        });
        json!({"count": count, "keys": keys.collect::<Map<String, Value>>()})
    });
    json!({
        "name": name,
        "limit": policy.quota(),
        "algorithm": policy.algorithm.name(),
        "options": policy.options(),
        "sharing": sharing.options(),
        "global": global,
        "shadow": shadow,
        "soft": soft,
        "keys": stats.keys,
        "max_keys": stats.max_keys,
        "overrides": overrides,
        "runtime_overrides": runtime,
        "runtime_overrides_count": runtime_count,
        "blocked": blocked,
        "deny": deny,
    })
}
