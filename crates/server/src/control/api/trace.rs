//! `GET /v1/trace`: what chosen keys have asked, as lines of JSON.

use std::{borrow::Cow, convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    http::{StatusCode, Uri},
};
use futures_util::stream;
use tidegate_core::Nanos;
use tidegate_service::{
    decide::service::{Refusal, resolve},
    observe::trace::Recording,
    rules::THROTTLE,
};
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};

use crate::{
    control::ControlPlane,
    edges::http::{
        answer::text,
        permit::Caller,
        problem::{Answered, Problem},
        query,
    },
};

/// The trace as lines, with a part of the memory for one reader at a time.
pub(super) async fn answer(control: &ControlPlane, caller: &Caller<'_>, uri: &Uri) -> Answered {
    let [limit, seconds, names] = query::fields(uri, ["limit", "seconds", "names"])?;
    let has_names = match names.as_deref() {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(Problem::at("#", "`names` must be true or false")),
    };
    let seconds = query::number(seconds.as_deref(), "seconds", 0, 1..=1_000_000_000)?;
    if let Some(limit) = limit.as_deref().filter(|limit| *limit != THROTTLE) {
        let limits = caller.app.service.limits();
        resolve(&limits, limit.as_bytes(), Some(&[]))?;
    }
    let limit = limit.map(Cow::into_owned);
    let span = (seconds > 0).then(|| Nanos::from_secs(seconds as u64));
    let (mut recording, permit) = taken(control, caller, limit, span).await?;
    if !has_names {
        recording.names.clear();
    }
    let pieces = recording.pieces().map(move |piece| {
        // The permit is held until the last piece is sent: only one client at a time takes this
        // memory.
        let _ = &permit;
        Ok::<_, Infallible>(piece)
    });
    Ok(text(
        Body::from_stream(stream::iter(pieces)),
        "application/x-ndjson",
    ))
}

/// A copy of the trace, of the limits that concern the client (or of one of them), and the place of
/// the only one who may have it.
pub(super) async fn taken(
    control: &ControlPlane,
    caller: &Caller<'_>,
    limit: Option<String>,
    span: Option<Nanos>,
) -> Result<(Recording, OwnedSemaphorePermit), Problem> {
    let Caller { app, rights } = caller.clone();
    let Ok(permit) = Arc::clone(&control.trace_readers).try_acquire_owned() else {
        let detail =
            "another client reads the trace, which doubles its memory: try again in a moment";
        return Err(Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Trace being read",
            detail,
        ));
    };
    let service = Arc::clone(&app.service);
    let taken = spawn_blocking(move || {
        let concern = |name: &str| {
            rights
                .as_ref()
                .is_none_or(|rights| rights.concern(name.as_bytes()))
                && limit.as_ref().is_none_or(|limit| limit == name)
        };
        service.recording(concern, span)
    });
    match taken.await {
        Ok(Ok(recording)) => Ok((recording, permit)),
        Ok(Err(refusal)) => Err(refusal.into()),
        // The panic has been reported already.
        Err(_) => Err(Refusal::NoTrace.into()),
    }
}
