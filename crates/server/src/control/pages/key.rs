//! A key in a page: its link, and the buttons that act on it.

use maud::{Markup, html};

use super::{
    layout::{Action, post},
    shown,
};

/// A key as it is shown, with a link to its page; and as a request can name it, if it is displayed
/// unchanged.
pub(super) fn linked<'k>(name: &str, key: &'k [u8]) -> (Markup, Option<&'k str>) {
    let shown = shown::text(&String::from_utf8_lossy(key));
    let named = str::from_utf8(key).ok().filter(|text| *text == shown);
    let link = html! {
        @if named.is_some() {
            a href={ "/limit?name=" (shown::encoded(name)) "&key=" (shown::encoded(&shown)) } { (shown) }
        } @else { (shown) }
    };
    (link, named)
}

/// Blocks a key for a time.
pub(super) fn block(name: &str, key: &str) -> Markup {
    let span = html! {
        select name="for" aria-label="For how long" {
            option value="10m" { "10 min" }
            option value="1h" selected { "1 h" }
            option value="1d" { "1 day" }
            option value="" { "ever" }
        }
    };
    let fields = [("limit", name), ("key", key)];
    action(
        "/v1/block",
        "Block",
        ["Block", "Blocked"],
        (name, key),
        &fields,
        Some(&span),
    )
}

/// A button for a key: `verb` begins its question, `past` the text that says that it is done.
pub(super) fn action(
    path: &str,
    button: &str,
    [verb, past]: [&str; 2],
    (name, key): (&str, &str),
    fields: &[(&str, &str)],
    inputs: Option<&Markup>,
) -> Markup {
    let of = format!("{} in {}", shown::text(key), shown::text(name));
    let (question, done) = (format!("{verb} {of}?"), format!("{past} {of}"));
    post(
        path,
        Action {
            button,
            question: &question,
            done: &done,
        },
        fields,
        inputs,
    )
}
