//! Parses the query of a GET: fields that a handler knows, each at most once.

use std::borrow::Cow;

use axum::http::Uri;
use percent_encoding::{PercentDecode, percent_decode_str};

use super::problem::Problem;

/// Why a query is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("the query has no field `{name}`: {}", known.join(", "))]
    UnknownField { name: String, known: Vec<String> },
    #[error("`{name}` is not UTF-8")]
    NotUtf8 { name: String },
    #[error("the query has `{name}` twice")]
    Twice { name: String },
}

/// The values of these fields, in this order, percent-decoded.
///
/// # Errors
/// When the query has another field, a field twice, or a value that is not UTF-8.
pub(crate) fn fields<'u, const N: usize>(
    uri: &'u Uri,
    names: [&str; N],
) -> Result<[Option<Cow<'u, str>>; N], Problem> {
    read(uri.query(), names).map_err(|error| bad(error.to_string()))
}

/// Like [`fields`], for pages.
///
/// # Errors
/// The same as [`fields`].
pub(crate) fn texts<const N: usize>(
    uri: &Uri,
    names: [&str; N],
) -> Result<[Option<String>; N], QueryError> {
    // A form writes a blank as `+` and encodes a plus sign.
    let plain = uri.query().map(|query| query.replace('+', "%20"));
    Ok(read(plain.as_deref(), names)?.map(|value| value.map(Cow::into_owned)))
}

fn read<'u, const N: usize>(
    query: Option<&'u str>,
    names: [&str; N],
) -> Result<[Option<Cow<'u, str>>; N], QueryError> {
    let mut texts = [const { None }; N];
    for ((text, value), name) in texts.iter_mut().zip(values(query, names)?).zip(names) {
        let decoded = value.map(PercentDecode::decode_utf8).transpose();
        *text = decoded.map_err(|_| QueryError::NotUtf8 {
            name: name.to_owned(),
        })?;
    }
    Ok(texts)
}

/// The values of these fields, which may be any bytes.
///
/// # Errors
/// When the query has another field, or a field twice.
pub(super) fn values<'u, const N: usize>(
    query: Option<&'u str>,
    names: [&str; N],
) -> Result<[Option<PercentDecode<'u>>; N], QueryError> {
    let mut values = [const { None }; N];
    for pair in query
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
    {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(at) = names.iter().position(|known| *known == name) else {
            let shown: String = name.chars().take(16).collect();
            return Err(QueryError::UnknownField {
                name: shown,
                known: names.map(str::to_owned).to_vec(),
            });
        };
        if values[at].replace(percent_decode_str(value)).is_some() {
            return Err(QueryError::Twice {
                name: name.to_owned(),
            });
        }
    }
    Ok(values)
}

/// A whole number within bounds, or the default without the field.
///
/// # Errors
/// When the value is anything else.
pub(crate) fn number(
    value: Option<&str>,
    name: &str,
    default: usize,
    range: std::ops::RangeInclusive<usize>,
) -> Result<usize, Problem> {
    let Some(text) = value else {
        return Ok(default);
    };
    text.parse()
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(|| {
            bad(format!(
                "`{name}` must be a whole number from {} to {}",
                range.start(),
                range.end()
            ))
        })
}

/// The value of a required field.
///
/// # Errors
/// When it is missing.
pub(crate) fn needed<'v>(value: Option<&'v Cow<'_, str>>, name: &str) -> Result<&'v str, Problem> {
    value
        .map(AsRef::as_ref)
        .ok_or_else(|| bad(format!("the query needs a field: {name}=...")))
}

fn bad(detail: String) -> Problem {
    Problem::at("#", detail)
}
