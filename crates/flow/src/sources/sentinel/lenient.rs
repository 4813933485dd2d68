//! Values as Sentinel's JSON reader takes them: a number or a flag may be a text, and a whole number may have a fraction of 0.

use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;

/// A type that is also read from a text.
pub(super) trait Lenient: Sized {
    /// The description of a valid value, for the message.
    const WANTED: &'static str;

    fn of_text(text: &str) -> Option<Self>;
}

impl Lenient for i64 {
    const WANTED: &'static str = "a whole number";

    fn of_text(text: &str) -> Option<Self> {
        text.parse().ok().or_else(|| whole(text.parse().ok()?))
    }
}

impl Lenient for f64 {
    const WANTED: &'static str = "a number";

    fn of_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl Lenient for bool {
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

/// Reads a field. `null` and an empty text count as absent.
pub(super) fn lenient<'de, D: Deserializer<'de>, T: Lenient>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = Option::<Value>::deserialize(deserializer)?;
    let text = match &value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Value::String(text)) => text.trim().to_owned(),
        Some(value) => value.to_string(),
    };
    let wrong = || D::Error::custom(format!("{} is not {}", value.unwrap_or_default(), T::WANTED));
    T::of_text(&text).map(Some).ok_or_else(wrong)
}
