//! A client's credentials: a token in the head of a request, or the certificate of the connection.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, header};
use tidegate_service::digest::digest_of;

use crate::access::{Door, Rights, Shown, Stranger};

/// The names in the client's certificate, for the requests of a connection.
#[derive(Clone, Debug)]
pub struct Certificate(pub Arc<[String]>);

/// The longest `Authorization` field that is parsed.
const MAX_FIELD: usize = 1024;

/// The rights of a request with these headers, on a connection whose certificate has these names. A
/// token takes precedence over a certificate.
pub fn http_rights(
    door: &Door,
    headers: &HeaderMap,
    names: Option<&[String]>,
) -> Result<Arc<Rights>, Stranger> {
    let mut fields = headers.get_all(header::AUTHORIZATION).iter();
    let field = match (fields.next(), fields.next()) {
        (Some(field), None) => field.as_bytes(),
        (Some(_), Some(_)) => return Err(Stranger::Wrong),
        (None, _) => return door.rights(names.map_or(Shown::Nothing, Shown::Certificate)),
    };
    if field.len() > MAX_FIELD {
        return Err(Stranger::Wrong);
    }
    let (scheme, rest) = split_at_blank(field);
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return door.rights(Shown::Token(None, &digest_of(rest)));
    }
    if scheme.eq_ignore_ascii_case(b"basic")
        && let Ok(pair) = BASE64_STANDARD.decode(rest)
        && let Some(at) = pair.iter().position(|byte| *byte == b':')
    {
        return door.rights(Shown::Token(Some(&pair[..at]), &digest_of(&pair[at + 1..])));
    }
    // If no credentials are required, wrong ones do not matter.
    door.rights(Shown::Nothing).map_err(|_| Stranger::Wrong)
}

fn split_at_blank(field: &[u8]) -> (&[u8], &[u8]) {
    match field.iter().position(|byte| *byte == b' ') {
        Some(at) => (&field[..at], field[at..].trim_ascii()),
        None => (field, &[]),
    }
}
