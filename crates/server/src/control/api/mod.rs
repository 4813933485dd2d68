//! The paths of operators and their tools: metrics, rules, and the operators' changes at run time.
//!
//! `top` serves the heavy keys, `history` the decisions over time, `overview` the state of all
//! limits, `orders` what operators ordered about keys, `trace` the requests of traced keys,
//! `what_if` what other rules would have decided on them, `rules_file` the rules file, `flow` the
//! programs that report, and `servers` the servers of the store.

mod difference;
mod flow;
mod history;
mod orders;
mod overview;
mod rules_file;
mod servers;
mod top;
mod trace;
mod what_if;

pub(super) use orders::{blocks, explanation, overrides};

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    body::Body,
    http::{Request, StatusCode, header::ACCEPT},
};
use futures_util::future::BoxFuture;
use hyper::body::Incoming;
use serde_json::{Map, Value, json};
use tidegate_core::Nanos;
use tidegate_redis::OrderKind;
use tidegate_service::{
    decide::{
        limits::Limit,
        refusal::MOST_OVERRIDES,
        service::{Operation, Operator, resolve},
    },
    observe::{audit::Action, metrics::covered},
    rules::{LimitSpec, SharesSpec, reload::Reloaded},
};
use tokio::sync::oneshot;

use super::{ControlPlane, scrapes::Pieces};
use crate::edges::http::{
    ControlPaths, Endpoint,
    answer::{self, text},
    ask,
    body::body,
    permit::Caller,
    problem::{Answered, Problem},
};

/// How long a request to reload the rules waits for the result, because a file system may hang.
const RELOAD_TIME: Duration = Duration::from_secs(30);

impl ControlPaths for ControlPlane {
    fn answer<'c>(
        &'c self,
        caller: &'c Caller<'c>,
        endpoint: Endpoint,
        request: Request<Incoming>,
    ) -> BoxFuture<'c, Answered> {
        Box::pin(answer(self, caller, endpoint, request))
    }
}

async fn answer(
    control: &ControlPlane,
    caller: &Caller<'_>,
    endpoint: Endpoint,
    request: Request<Incoming>,
) -> Answered {
    match endpoint {
        Endpoint::Top => top::answer(caller, request.uri()),
        Endpoint::Denied => top::denied(caller, request.uri()).await,
        Endpoint::History => history::answer(caller, request.uri()),
        Endpoint::Flow => flow::answer(control, caller, request.uri()),
        Endpoint::FlowReport => flow::report(control, caller, request).await,
        Endpoint::FlowRules => flow::push(control, caller, request).await,
        Endpoint::Servers => servers::answer(caller).await,
        Endpoint::Limits => overview::answer(control, caller, request.uri()),
        Endpoint::Trace => trace::answer(control, caller, request.uri()).await,
        Endpoint::RulesFile | Endpoint::RulesCheck | Endpoint::RulesSave => {
            rules_file::answer(control, caller, endpoint, request).await
        }
        Endpoint::WhatIf => what_if::answer(control, caller, request).await,
        Endpoint::Metrics => {
            let stopping = || {
                Problem::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "Stopping",
                    "the server is stopping",
                )
            };
            let rendering = control.scrapes.render(&control.metrics).await;
            let rendering = rendering.ok_or_else(stopping)?;
            let accept = request
                .headers()
                .get(ACCEPT)
                .and_then(|types| types.to_str().ok());
            let (metrics, kind) = rendering.in_format(accept);
            let metrics = if caller.concerns_all() {
                Arc::clone(metrics)
            } else {
                let (metrics, rights) = (Arc::clone(metrics), caller.rights.clone());
                let covered = move || {
                    let concerns = |limit: &str| {
                        rights
                            .as_ref()
                            .is_none_or(|rights| rights.concern(limit.as_bytes()))
                    };
                    covered(&metrics, concerns)
                };
                let covered = control.scrapes.select(covered).await;
                covered.ok_or_else(stopping)?
            };
            Ok(text(Body::new(Pieces::new(metrics)), kind))
        }
        Endpoint::Block => {
            let ask::Block {
                limit,
                key,
                span,
                note,
            } = ask::read(&body(request).await?)?;
            caller.permit(&limit)?;
            let named = ask::Named { limit, key, note };
            operate(caller, &named, &Operation::Block(span)).await?;
            Ok(answer::json(&if is_deny_listed(caller, &named) {
                // The end of the block does not admit the key.
                json!({"blocked": true, "deny_listed": true})
            } else {
                json!({"blocked": true})
            }))
        }
        Endpoint::Unblock => {
            let named = ask::read::<ask::Named>(&body(request).await?)?;
            caller.permit(&named.limit)?;
            let was_blocked = operate(caller, &named, &Operation::Unblock).await?;
            Ok(answer::json(&json!({"unblocked": was_blocked})))
        }
        Endpoint::Override => {
            let asked = ask::read::<ask::Override>(&body(request).await?)?;
            caller.permit(&asked.limit)?;
            let quota = asked.quota()?.map(str::to_owned);
            let ask::Override {
                limit,
                key,
                span,
                note,
                ..
            } = asked;
            let named = ask::Named { limit, key, note };
            if let Some(quota) = quota {
                operate(caller, &named, &Operation::Override(quota, span)).await?;
                return Ok(answer::json(&json!({"overridden": true})));
            }
            let ended = operate(caller, &named, &Operation::EndOverride).await?;
            Ok(answer::json(&json!({"ended": ended})))
        }
        Endpoint::Reset => {
            let named = ask::read::<ask::Named>(&body(request).await?)?;
            caller.permit(&named.limit)?;
            let (its, asked, who) = (
                Arc::clone(&caller.app.service),
                named.clone(),
                caller.name().to_owned(),
            );
            // A limit may hold many keys, so the reset must not block a serving thread.
            let done = rules_file::on_a_thread(move || {
                let key = asked.key.as_deref().map(str::as_bytes);
                let by = Operator {
                    client: &who,
                    note: asked.note.as_deref(),
                };
                its.operate_in_memory(asked.limit.as_bytes(), key, &Operation::Reset, &by)
            });
            if let Some(done) = done.await? {
                done?;
            } else {
                operate(caller, &named, &Operation::Reset).await?;
            }
            Ok(answer::json(&json!({"reset": true})))
        }
        Endpoint::Rules => Ok(answer::json(&rules(control, caller))),
        Endpoint::Blocks | Endpoint::Overrides => orders::answer(caller, endpoint, request.uri()),
        Endpoint::Explain => orders::explain(caller, request.uri()).await,
        Endpoint::Audit => {
            let actions = caller.app.service.audit.recent();
            let seen = actions.iter().filter(|action| match &action.limit {
                None => caller.concerns_all(),
                Some(limit) => caller.concerns(limit),
            });
            Ok(answer::json(
                &json!({"actions": seen.map(|action| &**action).collect::<Vec<_>>()}),
            ))
        }
        Endpoint::Mark => {
            let ask::Mark { note, limit } =
                ask::read::<ask::Mark>(&body(request).await?)?.checked()?;
            let service = &caller.app.service;
            if let Some(limit) = &limit {
                caller.permit(limit)?;
                resolve(&service.limits(), limit.as_bytes(), Some(&[]))?;
            } else {
                caller.permit_all("mark the charts of all limits; name one")?;
            }
            let action = Action {
                limit,
                note: Some(note),
                ..Action::new(caller.name(), "mark")
            };
            service.audit.record(service.now(), action);
            Ok(answer::json(&json!({"marked": true})))
        }
        Endpoint::Reload => {
            caller.permit_all("change all limits, which a reload does")?;
            reload(control, Action::new(caller.name(), "reload")).await
        }
        // The table of routes leads nothing else here.
        _ => Err(Problem::new(
            StatusCode::NOT_FOUND,
            "No such path",
            "not on the control plane",
        )),
    }
}

/// Makes an operator's change about a key.
async fn operate(
    caller: &Caller<'_>,
    named: &ask::Named,
    operation: &Operation,
) -> Result<bool, Problem> {
    let ask::Named { limit, key, note } = named;
    let by = Operator {
        client: caller.name(),
        note: note.as_deref(),
    };
    let key = key.as_deref().map(str::as_bytes);
    Ok(caller
        .app
        .service
        .operate(limit.as_bytes(), key, operation, &by)
        .await?)
}

/// Whether the rules deny the key permanently.
fn is_deny_listed(caller: &Caller<'_>, ask::Named { limit, key, .. }: &ask::Named) -> bool {
    let limits = caller.app.service.limits();
    let limit = limits.limit(limit.as_bytes());
    limit.is_some_and(|limit| limit.is_denied(key.as_deref().unwrap_or_default().as_bytes()))
}

/// Reloads the rules, waits for the result, and records this action if they are in force.
async fn reload(control: &ControlPlane, action: Action) -> Answered {
    let (asked, answer) = oneshot::channel();
    let reloaded = async {
        control.reload.send(Some(asked)).await.ok()?;
        answer.await.ok()
    };
    match tokio::time::timeout(RELOAD_TIME, reloaded)
        .await
        .ok()
        .flatten()
    {
        Some(Reloaded::Loaded { limits }) => {
            let service = &control.app.service;
            service.audit.record(service.now(), action);
            Ok(answer::json(&json!({"reloaded": true, "limits": limits})))
        }
        Some(Reloaded::Rejected { problems }) => {
            let detail = format!("the previous rules stay active: {}", problems.join("; "));
            Err(Problem::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Rules rejected",
                detail,
            ))
        }
        Some(Reloaded::BuiltIn) => {
            let detail = "these are the built-in rules; start the server with --rules FILE";
            Err(Problem::new(
                StatusCode::CONFLICT,
                "Nothing to load",
                detail,
            ))
        }
        None => {
            let detail = "the server is stopping, or its file system does not respond; see its log";
            Err(Problem::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "Not loaded",
                detail,
            ))
        }
    }
}

/// The rules in force that the client's rights cover, as a rules file has them.
fn rules(control: &ControlPlane, caller: &Caller<'_>) -> Value {
    let limits = caller.app.service.limits();
    let loaded_at = control.events.rules_loaded_at.load(Ordering::Relaxed) / 1_000_000_000;
    let seen = limits
        .limits()
        .iter()
        .filter(|limit| caller.permit(&limit.spec().name).is_ok());
    let limits: Vec<Value> = seen.map(|limit| rule(limit)).collect();
    json!({"loaded_at": loaded_at, "limits": limits})
}

fn rule(limit: &Limit) -> Value {
    let LimitSpec {
        name,
        policy,
        global,
        shadow,
        overrides,
        deny,
        sharing,
        soft,
        shares,
        ..
    } = limit.spec();
    let stats = limit.stats();
    let overrides: Map<String, Value> = overrides
        .iter()
        .map(|(key, own)| (key.clone(), own.to_string().into()))
        .collect();
    // Seconds since 1970; null for no end.
    let seconds = |until: Nanos| (until < Nanos::MAX).then(|| until.get().div_ceil(1_000_000_000));
    let (runtime_count, runtime) = limit.runtime_overrides(MOST_OVERRIDES);
    let runtime = runtime.into_iter().map(|(key, own)| {
        (
            key,
            json!({"quota": own.quota(), "until": seconds(own.until)}),
        )
    });
    let runtime: Map<String, Value> = runtime.collect();
    // Blocks in memory are known by their hashes alone.
    let blocked = limit.store().map(|store| {
        let (count, given) = store.orders.list(OrderKind::Block, MOST_OVERRIDES);
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
        "further": limit.spec().further().join(", "),
        "shares": shares.as_ref().map(SharesSpec::json),
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
