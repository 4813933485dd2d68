//! What a request's body asks, read by hand so that a refusal says which field is wrong and what it should be.

use serde_json::{Map, Value};
use tidegate_core::parse_duration;

use super::problem::{Problem, Refused};
use crate::rules::nearest;

/// The most limits in one `all`.
pub const MAX_ALL: usize = 32;

/// One limit that is asked, by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ask {
    pub limit: String,
    pub key: Option<String>,
    pub cost: u32,
}

/// One limit, or several of which all must admit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    One(Ask),
    All(Vec<Ask>),
}

/// A key to block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub limit: String,
    pub key: Option<String>,
    /// For how long; `None` until it is unblocked.
    pub span: Option<std::time::Duration>,
}

const ASK: [&str; 3] = ["limit", "key", "cost"];

/// Reads `{"limit", "key", "cost"}`, or `{"all": [...]}` of them.
pub(super) fn asks(body: &[u8]) -> Result<Asks, Refused> {
    let object = object(body)?;
    let Some(all) = object.get("all") else { return ask(&object, "#").map(Asks::One) };
    known(&object, &["all"], "#")?;
    let items = match all {
        Value::Array(items) if !items.is_empty() => items,
        _ => {
            return Err(field(
                "#/all",
                "`all` must be a list of at least one {\"limit\", \"key\", \"cost\"}",
            ));
        }
    };
    if items.len() > MAX_ALL {
        return Err(field(
            "#/all",
            format!("`all` has {} limits; at most {MAX_ALL} go together", items.len()),
        ));
    }
    let read = |(at, item): (usize, &Value)| {
        let place = format!("#/all/{at}");
        match item {
            Value::Object(object) => ask(object, &place),
            _ => Err(field(place, "each of `all` must be an object {\"limit\", \"key\", \"cost\"}")),
        }
    };
    items.iter().enumerate().map(read).collect::<Result<_, _>>().map(Asks::All)
}

/// Reads `{"limit", "key", "cost"}`.
pub(super) fn one(body: &[u8]) -> Result<Ask, Refused> {
    ask(&object(body)?, "#")
}

/// Reads `{"limit", "key", "for"}`.
pub(super) fn block(body: &[u8]) -> Result<Block, Refused> {
    let object = object(body)?;
    known(&object, &["limit", "key", "for"], "#")?;
    let span = match object.get("for") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => match parse_duration(text) {
            Ok(span) if !span.is_zero() => Some(span),
            Ok(_) => return Err(field("#/for", "`for` is no time at all; leave it out to block for good")),
            Err(e) => return Err(field("#/for", format!("`for`: {e}"))),
        },
        Some(_) => return Err(field("#/for", "`for` must be a duration in quotes, such as \"10m\"")),
    };
    Ok(Block { limit: limit(&object, "#")?, key: key(&object, "#")?, span })
}

/// Reads `{"limit", "key"}`.
pub(super) fn unblock(body: &[u8]) -> Result<Block, Refused> {
    let object = object(body)?;
    known(&object, &["limit", "key"], "#")?;
    Ok(Block { limit: limit(&object, "#")?, key: key(&object, "#")?, span: None })
}

fn ask(object: &Map<String, Value>, place: &str) -> Result<Ask, Refused> {
    known(object, &ASK, place)?;
    Ok(Ask { limit: limit(object, place)?, key: key(object, place)?, cost: cost(object, place)? })
}

fn object(body: &[u8]) -> Result<Map<String, Value>, Refused> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err(field(
            "#",
            "the body must be a JSON object, such as {\"limit\":\"per-user\",\"key\":\"alice\"}",
        )),
        Err(_) if body.trim_ascii().is_empty() => Err(Refused::from(Problem::bad_json(
            "the body is empty; send JSON such as {\"limit\":\"per-user\",\"key\":\"alice\"}",
        ))),
        Err(e) => Err(Refused::from(Problem::bad_json(format!("the body is not JSON: {e}")))),
    }
}

fn known(object: &Map<String, Value>, names: &[&str], place: &str) -> Result<(), Refused> {
    let Some(odd) = object.keys().find(|name| !names.contains(&name.as_str())) else { return Ok(()) };
    let shown: String = odd.chars().take(64).collect();
    let mend = match nearest(&shown, names.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("known here: {}", names.join(", ")),
    };
    Err(field(place, format!("unknown field `{shown}`; {mend}")))
}

fn limit(object: &Map<String, Value>, place: &str) -> Result<String, Refused> {
    match object.get("limit") {
        Some(Value::String(name)) => Ok(name.clone()),
        None => Err(field(place, "`limit` is missing: the name of the limit to ask")),
        Some(_) => {
            Err(field(format!("{place}/limit"), "`limit` must be a string: the name of the limit to ask"))
        }
    }
}

fn key(object: &Map<String, Value>, place: &str) -> Result<Option<String>, Refused> {
    match object.get("key") {
        Some(Value::String(key)) => Ok(Some(key.clone())),
        None | Some(Value::Null) => Ok(None),
        Some(_) => Err(field(format!("{place}/key"), "`key` must be a string (put numbers in quotes)")),
    }
}

fn cost(object: &Map<String, Value>, place: &str) -> Result<u32, Refused> {
    let Some(value) = object.get("cost") else { return Ok(1) };
    let cost = value.as_u64().and_then(|cost| u32::try_from(cost).ok());
    cost.ok_or_else(|| {
        let got: String = value.to_string().chars().take(40).collect();
        field(
            format!("{place}/cost"),
            format!("`cost` is {got}; it must be a whole number from 0 to {}", u32::MAX),
        )
    })
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
        let all = asks(br#"{"all":[{"limit":"a"},{"limit":"a","key":"k","cost":0}]}"#).unwrap();
        assert_eq!(all, Asks::All(vec![ask(None, 1), ask(Some("k"), 0)]));
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (body, told) in [
            (r#"{"limit":"a""#, "the body is not JSON: EOF"),
            ("", "the body is empty"),
            ("[1]", "must be a JSON object"),
            (r#"{"key":"k"}"#, "`limit` is missing"),
            (r#"{"limit":5}"#, "#/limit"),
            (r#"{"limit":"a","key":5}"#, "#/key"),
            (r#"{"limit":"a","cost":-1}"#, "`cost` is -1; it must be a whole number from 0"),
            (r#"{"limit":"a","cost":1.5}"#, "`cost` is 1.5"),
            (r#"{"limit":"a","cost":4294967296}"#, "`cost` is 4294967296"),
            (r#"{"limit":"a","cost":"3"}"#, "#/cost"),
            (r#"{"limit":"a","costs":3}"#, "did you mean `cost`?"),
            (r#"{"all":[]}"#, "at least one"),
            (r#"{"all":[{"limit":"a"},{"limit":"b","cost":-1}]}"#, "#/all/1/cost"),
            (r#"{"all":[3]}"#, "#/all/0"),
            (r#"{"all":[{"limit":"a"}],"limit":"b"}"#, "unknown field `limit`"),
        ] {
            assert!(detail(body).contains(told), "{body}: {}", detail(body));
        }
        let many = format!("{{\"all\":[{}]}}", vec![r#"{"limit":"a"}"#; MAX_ALL + 1].join(","));
        assert!(detail(&many).contains("at most 32"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body: Vec<u8>) {
            let _ = asks(&body);
            let _ = block(&body);
        }
    }
}
