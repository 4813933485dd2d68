//! `/v1/rules/file`, `/v1/rules/check` and `/v1/rules/save`: the rules file as it is, what another
//! text would change, and that text in its place.

use std::sync::Arc;

use axum::http::{Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use tidegate_service::{
    observe::audit::Action,
    rules::{
        RulesError,
        file::{SaveError, Text},
    },
};
use tokio::task::spawn_blocking;

use super::{difference::difference, reload};
use crate::{
    control::ControlPlane,
    edges::http::{
        Endpoint, answer,
        body::rules_body,
        permit::Caller,
        problem::{Answered, Problem, mistake},
        query,
    },
};

pub(super) async fn answer(
    control: &ControlPlane,
    caller: &Caller<'_>,
    endpoint: Endpoint,
    request: Request<Incoming>,
) -> Answered {
    caller.permit_all("see all limits, which the rules file has")?;
    match endpoint {
        Endpoint::RulesCheck => {
            let (text, _permit) = rules_body(&control.rules_readers, request).await?;
            check(control, text).await
        }
        Endpoint::RulesSave => {
            let [version] = query::fields(request.uri(), ["version"])?;
            let version = query::needed(version.as_ref(), "version")?.to_owned();
            let who = caller.name().to_owned();
            let (text, _permit) = rules_body(&control.rules_readers, request).await?;
            save(control, text, version, who).await
        }
        _ => file(control).await,
    }
}

async fn file(control: &ControlPlane) -> Answered {
    let file = Arc::clone(&control.rules_file);
    let Text { text, version } = on_a_thread(move || file.read())
        .await?
        .map_err(|error| unreadable(&error))?;
    let file = &control.rules_file;
    Ok(answer::json(&json!({
        "path": file.path().map(|path| path.display().to_string()),
        "text": text,
        "version": version,
        "writable": file.is_writable(),
        "rejected": control.events.rejected(),
    })))
}

/// The mistakes in a text, and its differences from the file.
async fn check(control: &ControlPlane, text: String) -> Answered {
    let (file, keeping) = (
        Arc::clone(&control.rules_file),
        control.app.service.keeping(),
    );
    let checked = parsing(control, move || {
        let before = file.read()?;
        let checked = file.check(&text, keeping)?;
        Ok((checked, difference(&before.text, &text), before.version))
    });
    let (checked, diff, version) = checked
        .await?
        .map_err(|error: RulesError| unreadable(&error))?;
    let (limits, mistakes) = match checked {
        Ok(limits) => (Some(limits), Vec::new()),
        Err(mistakes) => (None, mistakes.iter().map(mistake).collect()),
    };
    Ok(answer::json(
        &json!({"limits": limits, "mistakes": mistakes, "diff": diff, "version": version}),
    ))
}

/// Writes the text into the file, and loads it.
async fn save(control: &ControlPlane, text: String, version: String, who: String) -> Answered {
    let (file, keeping, now) = (
        Arc::clone(&control.rules_file),
        control.app.service.keeping(),
        control.app.service.now(),
    );
    let name = who.clone();
    let saved = parsing(control, move || {
        file.save(&text, &version, keeping, (&name, now))
    })
    .await?;
    let previous = saved.map_err(|error| {
        let status = match &error {
            SaveError::NotWritable => StatusCode::FORBIDDEN,
            SaveError::BuiltIn | SaveError::Changed => StatusCode::CONFLICT,
            SaveError::Mistakes(mistakes) => return Problem::bad_rules(mistakes),
            SaveError::Rejected(_) | SaveError::Io(..) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Problem::new(status, "Rules not saved", error.to_string())
    })?;
    let previous = previous.display().to_string();
    // Reload now instead of at the next poll, so that the response has the result.
    // The value is where the old rules are now.
    reload(control, Action::new(&who, "save").with(&previous)).await?;
    let file = Arc::clone(&control.rules_file);
    let version = on_a_thread(move || file.read())
        .await?
        .map_err(|error| unreadable(&error))?
        .version;
    Ok(answer::json(
        &json!({"saved": true, "previous": previous, "version": version}),
    ))
}

/// Does what needs a tree of rules.
pub(super) async fn parsing<T: Send + 'static>(
    control: &ControlPlane,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    control.rules_thread.run(work).await.ok_or_else(failed)
}

/// Does what may take long, or hangs with the file system, not on a thread that serves.
pub(super) async fn on_a_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    spawn_blocking(work).await.map_err(|_| failed())
}

fn failed() -> Problem {
    let detail = "the server failed at it; its log says why";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "Failed", detail)
}

fn unreadable(error: &RulesError) -> Problem {
    Problem::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "Rules not readable",
        error.to_string(),
    )
}
