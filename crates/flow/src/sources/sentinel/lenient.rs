//! Values as Sentinel's JSON reader takes them: a number or a flag may be a text, and a whole
//! number may have a fraction of 0.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// The value of a field. `null` and an empty text count as absent.
#[derive(Clone, Copy, Default)]
pub(super) struct Lenient<T>(Option<T>);

/// A type that is also read from a text.
pub(super) trait OfText: Sized {
    /// The description of a valid value, for the message.
    const WANTED: &'static str;

    fn of_text(text: &str) -> Option<Self>;
}

impl OfText for i64 {
    const WANTED: &'static str = "a whole number";

    fn of_text(text: &str) -> Option<Self> {
        text.parse().ok().or_else(|| whole(text.parse().ok()?))
    }
}

impl OfText for f64 {
    const WANTED: &'static str = "a number";

    fn of_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl OfText for bool {
    const WANTED: &'static str = "true or false";

    fn of_text(text: &str) -> Option<Self> {
        match text {
            "true" | "TRUE" | "1" => Some(true),
            "false" | "FALSE" | "0" => Some(false),
            _ => None,
        }
    }
}

/// The number without its fraction, if that is 0.
fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2⁵³
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

impl<T> Deref for Lenient<T> {
    type Target = Option<T>;

    fn deref(&self) -> &Option<T> {
        &self.0
    }
}

impl<'de, T: OfText> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Option::<Value>::deserialize(deserializer)?;
        let text = match &value {
            None | Some(Value::Null) => return Ok(Self(None)),
            Some(Value::String(text)) if text.trim().is_empty() => return Ok(Self(None)),
            Some(Value::String(text)) => text.trim().to_owned(),
            Some(value) => value.to_string(),
        };
        let wrong = || {
            D::Error::custom(format!(
                "{} is not {}",
                value.unwrap_or_default(),
                T::WANTED
            ))
        };
        T::of_text(&text)
            .map(|value| Self(Some(value)))
            .ok_or_else(wrong)
    }
}

/// The name of a resource or an origin. A number or a flag is its text.
#[derive(Clone, Debug, Default)]
pub(super) struct Name(pub(super) String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            value @ (Value::Number(_) | Value::Bool(_)) => Ok(Self(value.to_string())),
            value => Err(D::Error::custom(format!("{value} is not a text"))),
        }
    }
}
