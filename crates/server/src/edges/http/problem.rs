//! Error responses in the form of RFC 9457: `application/problem+json`.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tidegate_listen::access::Stranger;
use tidegate_service::{
    decide::{reservations::ReservationError, service::Refusal},
    rules::Problem as Mistake,
};

use super::answer::{ended, text};

/// The response to a request, or why it is refused.
pub(crate) type Answered = Result<Response<Body>, Problem>;

/// The error of a request, and the remedy. It is boxed, because handlers rarely return one.
#[derive(Clone, Debug)]
pub(crate) struct Problem(Box<Parts>);

#[derive(Clone, Debug, Serialize)]
struct Parts {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    #[serde(serialize_with = "as_number")]
    status: StatusCode,
    detail: String,
    /// The place in the body, as a JSON pointer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pointer: Option<String>,
    /// The limits with the most similar names, if the request names an unknown one.
    #[serde(rename = "nearest_limits", skip_serializing_if = "Option::is_none")]
    nearest: Option<Vec<String>>,
    /// The mistakes in rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mistakes: Vec<Value>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
fn as_number<S: Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    pub fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        let (kind, detail) = ("about:blank", detail.into());
        let (pointer, nearest, mistakes) = (None, None, Vec::new());
        Self(Box::new(Parts {
            kind,
            title,
            status,
            detail,
            pointer,
            nearest,
            mistakes,
        }))
    }

    pub fn bad_json(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Not JSON", detail)
    }

    pub fn at(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "Invalid request", detail);
        problem.0.pointer = Some(pointer.into());
        problem
    }

    /// The same problem at this place of the body.
    pub fn under(mut self, place: &str) -> Self {
        self.0.pointer = self
            .0
            .pointer
            .map(|pointer| pointer.replacen('#', place, 1));
        self
    }

    /// A refusal by the service of one of the questions of a body, by its number.
    pub fn from_part((at, refusal): (usize, Refusal)) -> Self {
        Self::from_refusal(refusal, &format!("#/all/{at}"))
    }

    /// The same of a body in which one limit is to admit.
    pub fn from_any((at, refusal): (usize, Refusal)) -> Self {
        Self::from_refusal(refusal, &format!("#/any/{at}"))
    }

    /// A refusal by the service, for this place in the body.
    pub fn from_refusal(refusal: Refusal, place: &str) -> Self {
        let detail = refusal.to_string();
        let (status, title, field) = match &refusal {
            Refusal::UnknownLimit { .. } => (StatusCode::NOT_FOUND, "Unknown limit", "limit"),
            Refusal::KeyMissing { .. } => (StatusCode::BAD_REQUEST, "Key missing", "key"),
            Refusal::KeyTooLong { .. } => (StatusCode::BAD_REQUEST, "Key too long", "key"),
            Refusal::KeyNotText => (StatusCode::BAD_REQUEST, "Key not text", "key"),
            Refusal::TooManyKeys
            | Refusal::TooManyBlocked { .. }
            | Refusal::TooManyOverridden { .. } => (StatusCode::CONFLICT, "Limit full", ""),
            Refusal::TenantsShare { .. } => (StatusCode::CONFLICT, "Tenants share it", ""),
            Refusal::SharedTwice { .. } => (StatusCode::BAD_REQUEST, "Limit named twice", ""),
            Refusal::WaitShared { .. } => (StatusCode::CONFLICT, "Tenants share it", "wait"),
            Refusal::NoQuota { .. } | Refusal::NotShareable { .. } => {
                (StatusCode::BAD_REQUEST, "No quota", "quota")
            }
            Refusal::NoMemory { .. } => (StatusCode::SERVICE_UNAVAILABLE, "No memory", ""),
            Refusal::Reservation(why) => match why {
                ReservationError::Unknown => (StatusCode::NOT_FOUND, "No such reservation", ""),
                ReservationError::NotAnId
                | ReservationError::Costs { .. }
                | ReservationError::TooLarge
                | ReservationError::Twice
                | ReservationError::TooManyParts => {
                    (StatusCode::BAD_REQUEST, "Not a reservation", "")
                }
                ReservationError::Ended => (StatusCode::CONFLICT, "Reservation ended", ""),
                ReservationError::Mixed => (StatusCode::CONFLICT, "Kept in the store", ""),
                ReservationError::NoAnswer { .. } => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "No reply from the store",
                    "",
                ),
                ReservationError::TooMany { .. } | ReservationError::NoId => (
                    StatusCode::SERVICE_UNAVAILABLE,
                    "No reservation possible",
                    "",
                ),
            },
            Refusal::Apart => (StatusCode::CONFLICT, "Kept in the store", ""),
            Refusal::Wait | Refusal::WaitOnce => {
                (StatusCode::BAD_REQUEST, "Invalid request", "wait")
            }
            Refusal::PriorityAlone => (StatusCode::BAD_REQUEST, "Invalid request", "priority"),
            Refusal::WaitInStore { .. } | Refusal::WaitMixed { .. } => {
                (StatusCode::CONFLICT, "Kept in the store", "wait")
            }
            Refusal::TooManyWaiting { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "Too many waiting", "")
            }
            Refusal::WaitEnded { .. } => (StatusCode::CONFLICT, "Rules changed", ""),
            Refusal::WaitStopped => (StatusCode::SERVICE_UNAVAILABLE, "Stopping", ""),
            Refusal::Id { .. } => (StatusCode::BAD_REQUEST, "Invalid request", "id"),
            Refusal::Scattered => (StatusCode::CONFLICT, "Keys on different nodes", ""),
            Refusal::NoAnswer { .. } | Refusal::NotCharged { .. } | Refusal::NotChanged { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "No reply from the store",
                "",
            ),
            Refusal::Held { .. } => (StatusCode::CONFLICT, "No charge possible", "limit"),
            Refusal::GlobalHasNoKeys { .. } => (StatusCode::BAD_REQUEST, "Global limit", "limit"),
            Refusal::NoTrace => (StatusCode::CONFLICT, "No trace", ""),
            Refusal::NoHistory { .. } => (StatusCode::CONFLICT, "No history", ""),
            Refusal::NoHeavyKeys { .. } => (StatusCode::CONFLICT, "No heavy keys", "limit"),
            Refusal::InStore { .. } => (StatusCode::CONFLICT, "Kept in the store", "key"),
            Refusal::DeniedByRules { .. } => (StatusCode::CONFLICT, "Denied by the rules", "key"),
        };
        let mut problem = Self::new(status, title, detail);
        // All questions of a body have the same wait.
        let place = if field == "wait" { "#" } else { place };
        problem.0.pointer = (!field.is_empty()).then(|| format!("{place}/{field}"));
        if let Refusal::UnknownLimit { nearest, .. } = refusal {
            problem.0.nearest = Some(nearest);
        }
        problem
    }

    /// The client has not authenticated.
    pub fn stranger(why: Stranger) -> Self {
        let detail = match why {
            Stranger::Unknown => {
                "send a token (`Authorization: Bearer TOKEN`, or Basic with the client's name and the token), or a client certificate"
            }
            Stranger::Wrong => {
                "the server does not know this token or certificate; see its --access file"
            }
        };
        Self::new(StatusCode::UNAUTHORIZED, "Not authenticated", detail)
    }

    /// The client's address has given too many wrong credentials.
    pub fn guesses(wait: Duration) -> Self {
        let detail = format!(
            "too many wrong tokens from this address: the next answer to a wrong one is in {} s; a right one is accepted at once",
            wait.as_secs() + 1
        );
        Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            "Too many wrong credentials",
            detail,
        )
    }

    /// Rules that cannot be used, with their lines.
    pub fn bad_rules(mistakes: &[Mistake]) -> Self {
        let words: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        let mut problem = Self::new(
            StatusCode::UNPROCESSABLE_ENTITY,
            "Rules rejected",
            words.join("; "),
        );
        problem.0.mistakes = mistakes.iter().map(mistake).collect();
        problem
    }

    /// The client lacks permission.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Not permitted", detail)
    }

    pub fn detail(&self) -> &str {
        &self.0.detail
    }

    pub fn into_response(self) -> Response<Body> {
        // Texts and numbers always serialize.
        let body = serde_json::to_vec(&self.0).unwrap_or_default();
        let mut response = text(ended(body), "application/problem+json");
        *response.status_mut() = self.0.status;
        if self.0.status == StatusCode::UNAUTHORIZED {
            // Browsers ask their user for a name and a password: the client's name and its token.
            let how = HeaderValue::from_static("Basic realm=\"tidegate\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
        }
        response
    }
}

/// A mistake in rules, with its line.
pub(crate) fn mistake(mistake: &Mistake) -> Value {
    json!({"line": mistake.line(), "what": mistake.what(), "mend": mistake.mending()})
}

/// For a request with only one limit, which no list contains.
impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::from_refusal(refusal, "#")
    }
}
