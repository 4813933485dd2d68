//! Formats numbers and text for pages.

pub(super) use tidegate_service::shown::{counted, grouped, rate, span, text, when};

/// A percentage of a whole; a dash if the whole is zero.
pub(super) fn share(part: f64, whole: f64) -> String {
    if whole > 0.0 {
        format!("{:.0} %", part / whole * 100.0)
    } else {
        "–".to_owned()
    }
}

/// A value in a URL's query.
pub(super) fn encoded(value: &str) -> String {
    percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC).to_string()
}
