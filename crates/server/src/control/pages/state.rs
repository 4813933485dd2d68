//! The state of the server as a whole, on every page: what is wrong, since when, what follows, and
//! what helps.

use maud::{Markup, html};

use super::shown;
use crate::control::ControlPlane;

/// The words for a topic that is well, and the conditions about it.
const TOPICS: [(&str, &[&str]); 5] = [
    ("rules in force", &["rules", "other-rules"]),
    ("clock steady", &["clock", "store-clock"]),
    (
        "no exhausted key forgotten",
        &["forgotten-keys", "eviction"],
    ),
    ("no orders lost", &["lost-orders"]),
    ("state written", &["state-file"]),
];

pub(super) fn strip(control: &ControlPlane) -> Markup {
    let conditions = control.conditions.now();
    let now = control.app.service.now();
    let is_well = |names: &[&str]| !conditions.iter().any(|found| names.contains(&found.name));
    let store = match control.app.service.store() {
        Some(_) if is_well(&["store"]) => Some("store up"),
        Some(_) => None,
        None => Some("no store"),
    };
    let certificate =
        (control.tls.is_some() && is_well(&["certificate"])).then_some("certificate valid");
    let topics = TOPICS
        .iter()
        .filter(|(_, names)| is_well(names))
        .map(|(well, _)| *well);
    let well: Vec<&str> = store.into_iter().chain(topics).chain(certificate).collect();
    html! {
        section id="strip" aria-label="State of the server" {
            @for condition in conditions.iter() {
                div class={ "condition " (if condition.is_wrong { "wrong" } else { "warns" }) } data-condition=(condition.name) {
                    strong { (if condition.is_wrong { "Wrong: " } else { "Warning: " }) (shown::text(&condition.state)) }
                    " " small { "since " (shown::when(condition.since_ms, now)) }
                    p { "Effect: " (shown::text(&condition.effect)) ". Remedy: " (shown::text(&condition.remedy)) "." }
                }
            }
            p class="well" { (well.join(" · ")) }
        }
    }
}
