//! Lines that each hold one JSON object.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    by::By,
    line::LineError,
    timestamp::{parse_rfc3339, parse_unix},
};

/// Where the time is looked for when nobody says.
const TIME_FIELDS: [&str; 5] = ["time", "timestamp", "@timestamp", "ts", "date"];

/// Which field holds the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TimeField(Option<String>);

impl TimeField {
    /// The field of this name (or path, joined by dots), or for `None` the first there is of `time`, `timestamp`,
    /// `@timestamp`, `ts` and `date`.
    #[must_use]
    pub const fn new(name: Option<String>) -> Self {
        Self(name)
    }

    fn read(&self, line: &Map<String, Value>) -> Result<u64, LineError> {
        let (name, value) = match &self.0 {
            Some(name) => (name.as_str(), field(line, name)),
            None => TIME_FIELDS
                .into_iter()
                .find_map(|name| line.get(name).map(|value| (name, Some(value))))
                .unwrap_or((TIME_FIELDS[0], None)),
        };
        let value = value.ok_or_else(|| LineError::NoTime(name.to_owned()))?;
        let time = match value {
            Value::String(text) => parse_rfc3339(text.as_bytes()).or_else(|| parse_unix(text)),
            Value::Number(number) => parse_unix(&number.to_string()),
            _ => None,
        };
        time.ok_or_else(|| LineError::Time(name.to_owned()))
    }
}

/// Reads a line's time, and puts together its key.
///
/// # Errors
/// When the line is no JSON object, lacks a field, or its time is none.
pub(super) fn parse(line: &[u8], time: &TimeField, by: &By, key: &mut Vec<u8>) -> Result<u64, LineError> {
    let Ok(Value::Object(line)) = serde_json::from_slice(line) else { return Err(LineError::NotJson) };
    for part in by.fields() {
        let text = field(&line, part.name()).and_then(text);
        by.push(key, text.ok_or_else(|| LineError::NoField(part.name().to_owned()))?.as_bytes());
    }
    time.read(&line)
}

/// The field of this very name, or the one that the names between the dots lead to.
fn field<'a>(line: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    line.get(name).or_else(|| {
        let (first, rest) = name.split_once('.')?;
        field(line.get(first)?.as_object()?, rest)
    })
}

/// A value as a part of a key; null is none.
fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.into()),
        other => Some(other.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str, time: Option<&str>, by: &str) -> Result<(u64, String), LineError> {
        let by: By = by.parse().unwrap();
        let mut key = Vec::new();
        let time = parse(line.as_bytes(), &TimeField::new(time.map(str::to_owned)), &by, &mut key)?;
        Ok((time, by.label(&key)))
    }

    #[test]
    fn the_time_is_found_under_its_usual_names_or_the_one_given() {
        let second = 1_431_857_103_000_000_000;
        let found = Ok((second, "everything".to_owned()));
        assert_eq!(read(r#"{"time":"2015-05-17T10:05:03Z"}"#, None, "global"), found);
        assert_eq!(read(r#"{"@timestamp":1431857103}"#, None, "global"), found);
        assert_eq!(read(r#"{"ts":"1431857103"}"#, None, "global"), found);
        assert_eq!(read(r#"{"time":1,"at":{"unix":1431857103000}}"#, Some("at.unix"), "global"), found);
        assert_eq!(
            read(r#"{"time":1431857103.25}"#, None, "global"),
            Ok((second + 250_000_000, "everything".into()))
        );
    }

    #[test]
    fn a_key_is_any_field_also_a_nested_one_or_one_with_dots_in_its_name() {
        let line = r#"{"time":1,"user":{"id":7},"a.b":true,"ip":"::1"}"#;
        assert_eq!(read(line, None, "user.id").unwrap().1, "7");
        assert_eq!(read(line, None, "a.b,ip").unwrap().1, "true ::1");
    }

    #[test]
    fn a_line_without_what_is_asked_for_says_so() {
        assert_eq!(read(r#"{"time":1}"#, None, "ip"), Err(LineError::NoField("ip".into())));
        assert_eq!(read(r#"{"time":1,"ip":null}"#, None, "ip"), Err(LineError::NoField("ip".into())));
        assert_eq!(read(r#"{"when":1}"#, None, "global"), Err(LineError::NoTime("time".into())));
        assert_eq!(read(r#"{"time":"noon"}"#, None, "global"), Err(LineError::Time("time".into())));
        assert_eq!(read(r#"{"time":-5}"#, None, "global"), Err(LineError::Time("time".into())));
        assert_eq!(read("[1]", None, "global"), Err(LineError::NotJson));
        assert_eq!(read("{\"time\":1", None, "global"), Err(LineError::NotJson));
    }
}
