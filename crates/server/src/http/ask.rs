//! What a request's body asks. A refusal says which field is wrong, and what it should be.

use std::{fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, Unexpected, Visitor},
};
use serde_path_to_error::{Path, Segment};
use tidegate_core::parse_duration;

use super::problem::{Problem, Refused};

/// The most limits in one `all`.
pub const MAX_ALL: usize = 32;

/// One limit that is asked, by its name.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}")]
pub(super) struct Ask {
    pub limit: String,
    pub key: Option<String>,
    #[serde(default = "one_unit", deserialize_with = "cost")]
    pub cost: u32,
}

/// One limit, or several of which all must admit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    One(Ask),
    All(Vec<Ask>),
}

/// Either form of [`Asks`], as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}")]
struct AsksBody {
    limit: Option<String>,
    key: Option<String>,
    #[serde(default, deserialize_with = "some_cost")]
    cost: Option<u32>,
    all: Option<Vec<Ask>>,
}

/// A key to block.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}")]
pub(super) struct Block {
    pub limit: String,
    pub key: Option<String>,
    /// For how long; `None` until it is unblocked.
    #[serde(default, rename = "for", deserialize_with = "span")]
    pub span: Option<Duration>,
}

/// A limit, and perhaps one of its keys.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, expecting = "an object such as {\"limit\": \"per-user\", \"key\": \"alice\"}")]
pub(super) struct Named {
    pub limit: String,
    pub key: Option<String>,
}

/// Reads `{"limit", "key", "cost"}`, or `{"all": [...]}` of them.
pub(super) fn asks(body: &[u8]) -> Result<Asks, Refused> {
    let AsksBody { limit, key, cost, all } = read(body)?;
    let Some(all) = all else {
        let limit = limit.ok_or_else(|| field("#", "missing field `limit`: the name of the limit to ask"))?;
        return Ok(Asks::One(Ask { limit, key, cost: cost.unwrap_or_else(one_unit) }));
    };
    if limit.is_some() || key.is_some() || cost.is_some() {
        return Err(field("#", "`limit`, `key` and `cost` belong into the objects of `all`, not beside it"));
    }
    if all.is_empty() {
        return Err(field("#/all", "`all` must be a list of at least one {\"limit\", \"key\", \"cost\"}"));
    }
    if all.len() > MAX_ALL {
        let detail = format!("`all` has {} limits; at most {MAX_ALL} go together", all.len());
        return Err(field("#/all", detail));
    }
    Ok(Asks::All(all))
}

/// Reads the one form that a path takes.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refused> {
    if body.trim_ascii().is_empty() {
        let detail = "the body is empty; send JSON such as {\"limit\":\"per-user\",\"key\":\"alice\"}";
        return Err(Problem::bad_json(detail).into());
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let place = pointer(error.path());
        let error = error.into_inner();
        if error.is_data() { field(place, error.to_string()) } else { not_json(&error) }
    })?;
    json.end().map_err(|error| not_json(&error))?;
    Ok(read)
}

fn not_json(error: &serde_json::Error) -> Refused {
    Problem::bad_json(format!("the body is not JSON: {error}")).into()
}

/// A path as a JSON pointer.
fn pointer(path: &Path) -> String {
    let mut text = String::from("#");
    for segment in path {
        text.push('/');
        match segment {
            Segment::Seq { index } => text.push_str(&index.to_string()),
            Segment::Map { key } => {
                let shown: String = key.chars().take(64).collect();
                text.push_str(&shown.replace('~', "~0").replace('/', "~1"));
            }
            _ => text.push('?'),
        }
    }
    text
}

const fn one_unit() -> u32 {
    1
}

fn cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    struct Cost;

    impl Visitor<'_> for Cost {
        type Value = u32;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from 0 to {}", u32::MAX)
        }

        fn visit_u64<E: Error>(self, number: u64) -> Result<u32, E> {
            u32::try_from(number).map_err(|_| E::invalid_value(Unexpected::Unsigned(number), &self))
        }
    }

    deserializer.deserialize_u64(Cost)
}

fn some_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    cost(deserializer).map(Some)
}

fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    match parse_duration(&text) {
        Ok(span) if !span.is_zero() => Ok(Some(span)),
        Ok(_) => Err(D::Error::custom("`for` must be above zero; leave it out to block until unblocked")),
        Err(error) => Err(D::Error::custom(error)),
    }
}

fn field(place: impl Into<String>, detail: impl Into<String>) -> Refused {
    Refused::from(Problem::bad_field(place, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detail(body: &str) -> String {
        asks(body.as_bytes()).unwrap_err().problem().to_json().to_string()
    }

    #[test]
    fn a_cost_not_given_is_one_and_a_key_may_be_absent() {
        let ask = |key: Option<&str>, cost| Ask { limit: "a".into(), key: key.map(Into::into), cost };
        assert_eq!(asks(br#"{"limit":"a","key":"k"}"#).unwrap(), Asks::One(ask(Some("k"), 1)));
        assert_eq!(asks(br#"{"limit":"a","key":null}"#).unwrap(), Asks::One(ask(None, 1)));
        let all = asks(br#"{"all":[{"limit":"a"},{"limit":"a","key":"k","cost":0}]}"#).unwrap();
        assert_eq!(all, Asks::All(vec![ask(None, 1), ask(Some("k"), 0)]));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (body, told) in [
            (r#"{"limit":"a""#, "the body is not JSON: EOF"),
            (r#"{"limit":"a"} x"#, "the body is not JSON: trailing"),
            ("", "the body is empty"),
            ("[1]", "expected"),
            (r#"{"key":"k"}"#, "missing field `limit`"),
            (r#"{"limit":5}"#, "#/limit"),
            (r#"{"limit":"a","key":5}"#, "#/key"),
            (r#"{"limit":"a","cost":-1}"#, "`-1`, expected a whole number from 0 to 4294967295"),
            (r#"{"limit":"a","cost":1.5}"#, "`1.5`, expected a whole number"),
            (r#"{"limit":"a","cost":4294967296}"#, "`4294967296`, expected a whole number"),
            (r#"{"limit":"a","cost":"3"}"#, "#/cost"),
            (r#"{"limit":"a","costs":3}"#, "unknown field `costs`, expected one of `limit`, `key`, `cost`"),
            (r#"{"all":[]}"#, "at least one"),
            (r#"{"all":[{"limit":"a"},{"limit":"b","cost":-1}]}"#, "#/all/1/cost"),
            (r#"{"all":[3]}"#, "#/all/0"),
            (r#"{"all":[{"key":"a"}]}"#, "#/all/0"),
            (r#"{"all":[{"limit":"a"}],"limit":"b"}"#, "belong into the objects of `all`"),
        ] {
            assert!(detail(body).contains(told), "{body}: {}", detail(body));
        }
        let many = format!("{{\"all\":[{}]}}", vec![r#"{"limit":"a"}"#; MAX_ALL + 1].join(","));
        assert!(detail(&many).contains("at most 32"));
    }

    #[test]
    fn a_field_given_twice_is_refused_in_every_form() {
        for body in [
            r#"{"limit":"a","cost":1,"cost":2}"#,
            r#"{"limit":"a","limit":"b"}"#,
            r#"{"all":[{"limit":"a","key":"k","key":"l"}]}"#,
            r#"{"all":[{"limit":"a"}],"all":[{"limit":"b"}]}"#,
        ] {
            assert!(detail(body).contains("duplicate field"), "{body}: {}", detail(body));
        }
        assert!(read::<Block>(br#"{"limit":"a","key":"k","for":"1s","for":"2s"}"#).is_err());
        assert!(read::<Named>(br#"{"limit":"a","limit":"a"}"#).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body: Vec<u8>) {
            let _ = asks(&body);
            let _ = read::<Block>(&body);
            let _ = read::<Named>(&body);
        }
    }
}
