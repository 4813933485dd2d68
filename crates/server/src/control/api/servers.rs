//! `GET /v1/servers`: the servers that share the store, as their heartbeats show them.

use axum::http::StatusCode;
use serde_json::json;

use crate::edges::http::{
    answer,
    permit::Caller,
    problem::{Answered, Problem},
};

pub(super) async fn answer(caller: &Caller<'_>) -> Answered {
    let Some(shared) = caller.app.service.store() else {
        let detail = "this server shares its limits with no other; start it with --store";
        return Err(Problem::new(StatusCode::CONFLICT, "No store", detail));
    };
    let servers = shared.servers().await.map_err(|error| {
        let detail = format!("the list of servers is in the store: {error}");
        Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "No answer from the store",
            detail,
        )
    })?;
    let servers = servers.iter().map(|server| {
        json!({
            "name": server.name,
            "version": server.version,
            "seen_ms_ago": u64::try_from(server.ago.as_millis()).unwrap_or(u64::MAX),
            "this": server.is_this,
        })
    });
    let servers: Vec<_> = servers.collect();
    Ok(answer::json(
        &json!({"store": shared.store().address().to_string(), "servers": servers}),
    ))
}
