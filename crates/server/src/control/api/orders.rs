//! What operators have ordered about keys (`GET /v1/blocks`, `GET /v1/overrides`), and why a key is
//! admitted or denied (`GET /v1/explain`).

use axum::http::Uri;
use serde_json::{Value, json};
use tidegate_core::{DenialReason, Nanos, Priority};
use tidegate_redis::OrderKind;
use tidegate_service::{
    decide::{
        limits::{Limit, RuntimeOverride, TenantStanding},
        refusal::MOST_OVERRIDES,
        service::{Act, Ask, Refusal, reset_after, resolve},
    },
    observe::trace::Event,
    rules::LimitSpec,
    shown,
};

use crate::edges::http::{App, Endpoint, answer, permit::Caller, problem::Answered, query};

/// How many requests of a key are shown.
const RECENT: usize = 20;

/// The orders about the limits that the client's rights cover, or about one of them.
pub(super) fn answer(caller: &Caller<'_>, endpoint: Endpoint, uri: &Uri) -> Answered {
    let app = caller.app;
    let [wanted] = query::fields(uri, ["limit"])?;
    let limits = app.service.limits();
    if let Some(limit) = wanted.as_deref() {
        caller.permit(limit)?;
        resolve(&limits, limit.as_bytes(), Some(&[]))?;
    }
    let seen = limits.limits().iter().filter(|limit| {
        let name = &*limit.spec().name;
        wanted.as_deref().is_none_or(|wanted| wanted == name) && caller.permit(name).is_ok()
    });
    let (all, name): (Vec<Value>, _) = match endpoint {
        Endpoint::Blocks => (
            seen.flat_map(|limit| blocks(app, limit)).collect(),
            "blocks",
        ),
        _ => (
            seen.flat_map(|limit| overrides(app, limit)).collect(),
            "overrides",
        ),
    };
    Ok(answer::json(&json!({ name: all })))
}

/// The blocked keys of a limit. In memory a block is known by the key's hash alone, so the keys
/// come from what operators did since this server started.
pub(in crate::control) fn blocks(app: &App, limit: &Limit) -> Vec<Value> {
    let keys: Vec<String> = if let Some(store) = limit.store() {
        let (_, orders) = store.orders.list(OrderKind::Block, MOST_OVERRIDES);
        orders
            .into_iter()
            .map(|order| String::from_utf8_lossy(&order.key).into_owned())
            .collect()
    } else {
        app.service.audit.keys_of("block", &limit.spec().name)
    };
    let mut shown: Vec<Value> = keys
        .iter()
        .filter_map(|key| ordered_block(app, limit, key))
        .collect();
    let by_rule = limit.rule_blocks(app.service.now());
    let others = by_rule.iter().filter(|key| !keys.contains(key));
    shown.extend(others.filter_map(|key| block_by_rule(app, limit, key)));
    shown
}

/// The block of a key, by an operator or by the rule.
fn block(app: &App, limit: &Limit, key: &str) -> Option<Value> {
    ordered_block(app, limit, key).or_else(|| block_by_rule(app, limit, key))
}

/// The block of a key by the rule's `block_for`. Its author is the rule.
fn block_by_rule(app: &App, limit: &Limit, key: &str) -> Option<Value> {
    let (now, since) = (app.service.now(), limit.rule_block_since(key.as_bytes()));
    let until = limit.rule_block(key.as_bytes(), now)?;
    Some(json!({
        "limit_name": limit.spec().name,
        "key": key,
        "until_ms": until.get().div_ceil(1_000_000),
        "since_ms": since.map(|since| since.get() / 1_000_000),
        "client": "the rule",
        "note": null,
    }))
}

/// The block of a key by an operator.
fn ordered_block(app: &App, limit: &Limit, key: &str) -> Option<Value> {
    let now = app.service.now();
    let denied = limit.block_of(key.as_bytes(), now)?;
    let until = denied
        .retry_after()
        .map(|left| now.saturating_add(left.into()));
    // A key on the deny list has no block to end.
    (denied.reason() == Some(DenialReason::Blocked)).then(|| order(app, "block", limit, key, until))
}

/// The keys of a limit with a quota that an operator gave them.
pub(in crate::control) fn overrides(app: &App, limit: &Limit) -> Vec<Value> {
    let (_, all) = limit.runtime_overrides(MOST_OVERRIDES);
    all.iter()
        .map(|(key, own)| own_quota(app, limit, key, own))
        .collect()
}

/// The quota that an operator gave a key.
fn own_quota(app: &App, limit: &Limit, key: &str, own: &RuntimeOverride) -> Value {
    let until = (own.until < Nanos::MAX).then_some(own.until);
    let mut shown = order(app, "override", limit, key, until);
    shown["quota"] = json!(own.quota());
    shown
}

/// An order in force. Who gave it, since when and why is null if another server took it, or this
/// one before its last start.
fn order(app: &App, kind: &'static str, limit: &Limit, key: &str, until: Option<Nanos>) -> Value {
    let limit = &limit.spec().name;
    let given = app.service.audit.order(kind, limit, key);
    json!({
        "limit_name": limit,
        "key": key,
        "until_ms": until.map(|until| until.get().div_ceil(1_000_000)),
        "since_ms": given.as_ref().map(|given| given.time_ms),
        "client": given.as_ref().map(|given| &given.client),
        "note": given.as_ref().and_then(|given| given.note.as_deref()),
    })
}

/// The decision on a key now, with the rule behind it.
pub(super) async fn explain(caller: &Caller<'_>, uri: &Uri) -> Answered {
    let [limit, key] = query::fields(uri, ["limit", "key"])?;
    let name = query::needed(limit.as_ref(), "limit")?;
    caller.permit(name)?;
    Ok(answer::json(
        &explanation(caller.app, name, key.as_deref()).await?,
    ))
}

/// The same as JSON. `facts` has it in the words that `tidegate explain` and the page of the key
/// show.
pub(in crate::control) async fn explanation(
    app: &App,
    name: &str,
    key: Option<&str>,
) -> Result<Value, Refusal> {
    let service = &app.service;
    let ask = Ask {
        limit: name.as_bytes(),
        key: key.map(str::as_bytes),
        cost: 1,
    };
    let answered = service.decide(ask, Act::Peek, service.now()).await?;
    let (limit, decision, key) = (&answered.limit, answered.decision, key.unwrap_or_default());
    let (spec, ms) = (limit.spec(), |span: std::time::Duration| {
        span.as_nanos().div_ceil(1_000_000) as u64
    });
    let own = limit.runtime_override(key);
    let source = match (&own, spec.overrides.contains_key(key)) {
        (Some(_), _) => "operator",
        (None, true) => "overrides",
        (None, false) => "limit",
    };
    let rule = own.as_ref().map_or_else(
        || limit.policy_of(key.as_bytes()).to_string(),
        |own| own.policy.to_string(),
    );
    let trace = service.trace();
    let recent = trace.and_then(|trace| trace.last(name, &answered.key, RECENT));
    let seen = trace.and_then(|trace| trace.summary(name, &answered.key));
    let event = |event: &Event| {
        let reason = event.reason.map(DenialReason::name);
        json!({"time_ms": event.time / 1_000_000, "cost": event.cost, "verdict": event.verdict, "reason": reason})
    };
    let since_epoch = |nanos: Option<u64>| nanos.map(|nanos| nanos / 1_000_000);
    let mut explained = json!({
        "limit_name": name,
        "key": key,
        "allowed": answered.is_allowed(),
        "reason": decision.reason().map(DenialReason::name),
        "limit": decision.limit(),
        "remaining": decision.remaining(),
        "retry_after_ms": decision.retry_after().map(ms),
        "reset_after_ms": reset_after(&decision).map(ms),
        "shadow": spec.shadow,
        "rule": rule,
        "rule_from": source,
        "block": block(app, limit, key),
        "override": own.map(|own| own_quota(app, limit, key, &own)),
        "tenant": limit.tenant_standing(&answered.key, service.now()).map(|of| tenant(&of)),
        "waiting": limit.waiting(&answered.key).await,
        "places": limit.places(&answered.key, service.now()),
        "block_helps": service.block_helps(limit, decision.reason()),
        "mend": decision.reason().map(|reason| mend(reason, limit.spec(), key)),
        // Null if the server keeps no trace of this key.
        "recent": recent.map(|events| events.iter().map(event).collect::<Vec<_>>()),
        "requests": seen.map(|seen| json!({
            "count": seen.requests,
            "since_ms": since_epoch(seen.first),
            "denied": seen.denied,
            "first_denied_ms": since_epoch(seen.first_denied),
            "last_denied_ms": since_epoch(seen.last_denied),
            "denied_per_second": seen.denial_rate(),
        })),
    });
    let facts: Vec<Value> = facts(&explained, service.now())
        .into_iter()
        .map(|(name, text)| json!({"name": name, "text": text}))
        .collect();
    explained["facts"] = facts.into();
    Ok(explained)
}

/// The tenant of a key, with its share of the limit.
fn tenant(of: &TenantStanding) -> Value {
    json!({
        "name": String::from_utf8_lossy(&of.name),
        "terms": of.terms.to_string(),
        "share": of.share,
        "used": of.used,
        "borrowed": of.borrowed(),
    })
}

fn tenant_in_words(tenant: &Value) -> Option<String> {
    let (name, terms) = (tenant["name"].as_str()?, tenant["terms"].as_str()?);
    let percent = |name: &str| format!("{:.1} %", tenant[name].as_f64().unwrap_or(0.0) * 100.0);
    let borrowed = if tenant["borrowed"].as_f64() > Some(0.0) {
        format!(", {} of it borrowed", percent("borrowed"))
    } else {
        String::new()
    };
    Some(format!(
        "{name}, {terms}: its share is {} of the limit, and it uses {}{borrowed}",
        percent("share"),
        percent("used")
    ))
}

/// The facts about a key, in words.
fn facts(explained: &Value, now: Nanos) -> Vec<(&'static str, String)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let span = |name: &str| {
        let ms = explained[name].as_u64().filter(|ms| *ms > 0)?;
        Some(shown::span_ms(ms))
    };
    let is_denied = !explained["reason"].is_null();
    let reason = text(&explained["reason"]).map_or_else(String::new, |why| format!(" ({why})"));
    let verdict = if is_denied { "denied" } else { "admitted" };
    let shadow = match (is_denied, explained["shadow"] == true) {
        (true, true) => ", by a limit that only counts and lets it pass",
        (false, true) => ", by a limit that only counts",
        (_, false) => "",
    };
    let number = |name: &str| shown::grouped(explained[name].as_u64().unwrap_or_default());
    let from = match explained["rule_from"].as_str() {
        Some("operator") => "given by an operator",
        Some("overrides") => "an override in the rules",
        _ => "the limit's own",
    };
    let all = [
        (
            "verdict",
            Some(format!(
                "{verdict}{reason}{shadow}, remaining {} of {}",
                number("remaining"),
                number("limit")
            )),
        ),
        ("admitted in", span("retry_after_ms")),
        ("unused in", span("reset_after_ms")),
        (
            "rule",
            text(&explained["rule"]).map(|rule| format!("{rule}, {from}")),
        ),
        ("tenant", tenant_in_words(&explained["tenant"])),
        ("waiting", waiting_in_words(explained)),
        ("block", order_in_words(&explained["block"], now)),
        ("override", order_in_words(&explained["override"], now)),
        ("requests", requests_in_words(&explained["requests"], now)),
        ("denials", denials_in_words(&explained["requests"], now)),
        ("what helps", text(&explained["mend"])),
    ];
    all.into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

/// The line for a key, and the place of a caller that comes now.
fn waiting_in_words(explained: &Value) -> Option<String> {
    let waiting = explained["waiting"]
        .as_u64()
        .filter(|waiting| *waiting > 0)?;
    let line = format!("{} in line for it", shown::counted(waiting, "caller"));
    let place = |priority: Priority| explained["places"].get(usize::from(priority.level()));
    let places: Vec<String> = [Priority::HIGHEST, Priority::DEFAULT, Priority::LOWEST]
        .into_iter()
        .filter_map(|priority| {
            let place = shown::grouped(place(priority)?.as_u64()?);
            Some(format!("{place} with priority {priority}"))
        })
        .collect();
    if places.is_empty() {
        return Some(line);
    }
    Some(format!(
        "{line}; the place of another one: {}",
        places.join(", ")
    ))
}

/// A block or an override: since when, until when, by whom and why.
fn order_in_words(order: &Value, now: Nanos) -> Option<String> {
    let text = |name: &str| order[name].as_str();
    let time = |name: &str| order[name].as_u64().map(|ms| shown::when(ms, now));
    let mut words = Vec::new();
    words.extend(text("quota").map(str::to_owned));
    words.push(time("since_ms").map_or_else(
        || "given before the server's start or at another one".to_owned(),
        |since| format!("given {since}"),
    ));
    words.push(
        time("until_ms").map_or_else(|| "without end".to_owned(), |until| format!("ends {until}")),
    );
    words.extend(text("client").map(|client| format!("by {client}")));
    let note = text("note").map_or_else(String::new, |note| format!(": {note}"));
    order.is_object().then(|| words.join(", ") + &note)
}

fn requests_in_words(requests: &Value, now: Nanos) -> Option<String> {
    if requests.is_null() {
        return Some(
            "not counted: serve --trace-keys counts those of a share of all keys".to_owned(),
        );
    }
    let count = requests["count"].as_u64()?;
    let since = requests["since_ms"].as_u64().map(|ms| {
        let ago = shown::when(ms, now);
        format!(", the first {ago}")
    });
    Some(shown::counted(count, "request") + &since.unwrap_or_default())
}

fn denials_in_words(requests: &Value, now: Nanos) -> Option<String> {
    let time = |name: &str| requests[name].as_u64().map(|ms| shown::when(ms, now));
    let (first, last) = (time("first_denied_ms")?, time("last_denied_ms")?);
    let reasons: Vec<String> = requests["denied"]
        .as_object()?
        .iter()
        .map(|(reason, count)| {
            let count = shown::grouped(count.as_u64().unwrap_or_default());
            let why = if reason.is_empty() {
                String::new()
            } else {
                format!(" ({reason})")
            };
            format!("{count}{why}")
        })
        .collect();
    let rate = requests["denied_per_second"]
        .as_f64()
        .map(|rate| format!(", {} a second between", shown::rate(rate)));
    Some(format!(
        "{}: the first {first}, the last {last}{}",
        reasons.join(", "),
        rate.unwrap_or_default()
    ))
}

/// The remedy for a key that is denied for this reason.
fn mend(reason: DenialReason, spec: &LimitSpec, key: &str) -> String {
    let limit = &*spec.name;
    let command = |name: &str, rest: &str| shown::about_key(name, limit, key, rest);
    let larger = || {
        // A global limit has no keys with their own quota.
        if key.is_empty() {
            format!("a larger `limit` of `{limit}` in the rules")
        } else if spec.shares.is_some() {
            format!("a larger weight, guarantee or ceiling of the tenant in the rules of `{limit}`")
        } else {
            format!("a larger quota: {}", command("override", "QUOTA"))
        }
    };
    match reason {
        DenialReason::Quota => format!("time, `{}`, or {}", command("reset", ""), larger()),
        DenialReason::TooLarge => larger(),
        DenialReason::InFlight => "the release of a permit, or a larger limit".to_owned(),
        DenialReason::Blocked => format!("the end of the block: {}", command("unblock", "")),
        DenialReason::DenyListed => {
            format!("rules without this key in the `deny` list of `{limit}`")
        }
        DenialReason::TableFull => {
            format!("a larger max_keys of `{limit}`, or `when_full: forget`")
        }
        DenialReason::StoreDown => {
            format!("the return of the store, or `on_error: local` of `{limit}`")
        }
        _ => "another rule".to_owned(),
    }
}
