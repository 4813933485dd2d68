//! Error responses in the form of RFC 9457: `application/problem+json`.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
};
use serde_json::{Value, json};

use crate::{
    decide::{reservations::ReservationError, service::Refusal},
    listen::access::Stranger,
    rules::Problem as Mistake,
};

/// The error of a request, and the remedy.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    title: &'static str,
    detail: String,
    /// The place in the body, as a JSON pointer.
    pointer: Option<String>,
    /// The limits with the most similar names, if the request names an unknown one.
    nearest: Option<Vec<String>>,
    /// The mistakes in rules.
    mistakes: Vec<Value>,
}

impl Problem {
    pub fn new(status: StatusCode, title: &'static str, detail: impl Into<String>) -> Self {
        Self { status, title, detail: detail.into(), pointer: None, nearest: None, mistakes: Vec::new() }
    }

    pub fn bad_json(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "Not JSON", detail)
    }

    pub fn bad_field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        let pointer = Some(pointer.into());
        Self { pointer, ..Self::new(StatusCode::BAD_REQUEST, "Invalid request", detail) }
    }

    /// The same problem at this place of the body.
    pub fn under(mut self, place: &str) -> Self {
        self.pointer = self.pointer.map(|pointer| pointer.replacen('#', place, 1));
        self
    }

    /// A refusal by the service, for this place in the body.
    pub fn from_refusal(refusal: Refusal, place: &str) -> Self {
        let detail = refusal.to_string();
        let (status, title, field) = match &refusal {
            Refusal::UnknownLimit { .. } => (StatusCode::NOT_FOUND, "Unknown limit", "limit"),
            Refusal::KeyMissing { .. } => (StatusCode::BAD_REQUEST, "Key missing", "key"),
            Refusal::KeyTooLong { .. } => (StatusCode::BAD_REQUEST, "Key too long", "key"),
            Refusal::KeyNotText => (StatusCode::BAD_REQUEST, "Key not text", "key"),
            Refusal::TooManyKeys | Refusal::TooManyBlocked { .. } | Refusal::TooManyOverridden { .. } => {
                (StatusCode::CONFLICT, "Limit full", "")
            }
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
                | ReservationError::TooManyParts => (StatusCode::BAD_REQUEST, "Not a reservation", ""),
                ReservationError::Ended => (StatusCode::CONFLICT, "Reservation ended", ""),
                ReservationError::Mixed => (StatusCode::CONFLICT, "Kept in the store", ""),
                ReservationError::NoAnswer { .. } => {
                    (StatusCode::SERVICE_UNAVAILABLE, "No reply from the store", "")
                }
                ReservationError::TooMany { .. } | ReservationError::NoId => {
                    (StatusCode::SERVICE_UNAVAILABLE, "No reservation possible", "")
                }
            },
            Refusal::Scattered => (StatusCode::CONFLICT, "Keys on different nodes", ""),
            Refusal::NoAnswer { .. } | Refusal::NotCharged { .. } | Refusal::NotChanged { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "No reply from the store", "")
            }
            Refusal::Held { .. } => (StatusCode::CONFLICT, "No charge possible", "limit"),
            Refusal::GlobalHasNoKeys { .. } => (StatusCode::BAD_REQUEST, "Global limit", "limit"),
            Refusal::NoTrace => (StatusCode::CONFLICT, "No trace", ""),
            Refusal::NoHistory { .. } => (StatusCode::CONFLICT, "No history", ""),
            Refusal::NoHeavyKeys { .. } => (StatusCode::CONFLICT, "No heavy keys", "limit"),
            Refusal::InStore { .. } => (StatusCode::CONFLICT, "Kept in the store", "key"),
            Refusal::DeniedByRules { .. } => (StatusCode::CONFLICT, "Denied by the rules", "key"),
        };
        let pointer = (!field.is_empty()).then(|| format!("{place}/{field}"));
        let nearest = match refusal {
            Refusal::UnknownLimit { nearest, .. } => Some(nearest),
            _ => None,
        };
        Self { pointer, nearest, ..Self::new(status, title, detail) }
    }

    /// The client has not authenticated.
    pub fn stranger(why: Stranger) -> Self {
        let detail = match why {
            Stranger::Unknown => {
                "send a token (`Authorization: Bearer TOKEN`, or Basic with the client's name and the token), or a client certificate"
            }
            Stranger::Wrong => "the server does not know this token or certificate; see its --access file",
        };
        Self::new(StatusCode::UNAUTHORIZED, "Not authenticated", detail)
    }

    /// The client's address has given too many wrong credentials.
    pub fn guesses(wait: Duration) -> Self {
        let detail = format!(
            "too many wrong tokens from this address: the next answer to a wrong one is in {} s; a right one is accepted at once",
            wait.as_secs() + 1
        );
        Self::new(StatusCode::TOO_MANY_REQUESTS, "Too many wrong credentials", detail)
    }

    /// Rules that cannot be used, with their lines.
    pub fn bad_rules(mistakes: &[Mistake]) -> Self {
        let words: Vec<String> = mistakes.iter().map(ToString::to_string).collect();
        let mistakes = mistakes.iter().map(mistake).collect();
        Self { mistakes, ..Self::new(StatusCode::UNPROCESSABLE_ENTITY, "Rules rejected", words.join("; ")) }
    }

    /// The client lacks permission.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Not permitted", detail)
    }

    pub fn detail(&self) -> &str {
        &self.detail
    }

    pub fn to_json(&self) -> Value {
        let mut body = json!({
            "type": "about:blank",
            "title": self.title,
            "status": self.status.as_u16(),
            "detail": self.detail,
        });
        if let Some(pointer) = &self.pointer {
            body["pointer"] = json!(pointer);
        }
        if let Some(nearest) = &self.nearest {
            body["nearest_limits"] = json!(nearest);
        }
        if !self.mistakes.is_empty() {
            body["mistakes"] = json!(self.mistakes);
        }
        body
    }

    pub fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() = self.status;
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        if self.status == StatusCode::UNAUTHORIZED {
            // Browsers ask their user for a name and a password: the client's name and its token.
            let how = HeaderValue::from_static("Basic realm=\"tidegate\", charset=\"UTF-8\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
        }
        response
    }
}

/// A mistake in rules, with its line.
pub(super) fn mistake(mistake: &Mistake) -> Value {
    json!({"line": mistake.line(), "what": mistake.what(), "mend": mistake.mending()})
}

/// A boxed [`Problem`], because handlers rarely return one.
#[derive(Clone, Debug)]
pub(super) struct Refused(Box<Problem>);

impl Refused {
    pub fn problem(&self) -> &Problem {
        &self.0
    }

    pub fn into_response(self) -> Response<Body> {
        self.0.into_response()
    }
}

/// For a request with only one limit, which no list contains.
impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        Problem::from_refusal(refusal, "#").into()
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Self {
        Self(Box::new(problem))
    }
}
