//! The page of one resource of an application: an hour of it, its limits, and its traffic by
//! instance, origin and entry point.

use maud::{Markup, html};

use super::{
    Missing,
    flow::{limits, pairs, reasons, summary},
    layout::{Frame, layout},
    shown,
};
use crate::control::{
    ControlPlane,
    chart::{self, Pair},
};

const SECONDS: usize = 60;
const MINUTES: usize = 60;
/// The rows of a table.
const MOST: usize = 50;

pub(super) fn page(control: &ControlPlane, name: &str, resource: &str) -> Result<Frame, Missing> {
    let of_app = format!("/flow?app={}", shown::encoded(name));
    let head = html! {
        p { a href=(of_app) { (shown::text(name)) } }
        h1 { (shown::text(resource)) }
    };
    let live = format!(
        "/live?app={}&resource={}",
        shown::encoded(name),
        shown::encoded(resource)
    );
    Ok(layout(
        resource,
        "/flow",
        Some(&live),
        head,
        changing(control, name, resource)?,
    ))
}

/// The part that changes each second.
pub(super) fn changing(
    control: &ControlPlane,
    name: &str,
    resource: &str,
) -> Result<Markup, Missing> {
    let summary = summary(control, name)?;
    let missing = || {
        Missing(format!(
            "no instance of `{name}` reports the resource `{resource}`"
        ))
    };
    let now = control.app.service.now().get();
    let reported = summary.resources.get(resource).ok_or_else(missing)?;
    let limits = limits(control, &summary);
    let limits = limits
        .iter()
        .filter(|(of, _)| of.covers(resource))
        .map(|(_, limit)| limit);
    let mut instances = reported.instances.clone();
    instances.sort_by_key(|(_, counts)| std::cmp::Reverse(counts[1]));
    let parts = |parts: &std::collections::BTreeMap<String, [u64; 3]>| {
        let mut parts: Vec<_> = parts
            .iter()
            .map(|(name, counts)| (name.clone(), *counts))
            .collect();
        parts.sort_by_key(|(_, [pass, block, _])| std::cmp::Reverse((*block, *pass)));
        parts
    };
    Ok(html! {
        ul class="facts" {
            @for limit in limits { li { (shown::text(limit)) } }
            @for ((rule, state), count) in &reported.breakers {
                li class=[(state != "closed").then_some("bad")] { "breaker " (shown::text(rule)) ": " (state) ", " (count) " instances" }
            }
            @for (rule, limit) in &reported.adaptive { li { (shown::text(rule)) ": " (shown::grouped(*limit)) " in flight" } }
            li { (shown::grouped(reported.in_flight)) " in flight" }
        }
        @if let Some(reasons) = reasons(reported) { p { "Blocked since the start: " (reasons) "." } }
        (figure("hour", &reported.hour, (MINUTES, 60), now))
        (figure("minute", &pairs(reported), (SECONDS, 1), now))
        (table("Instances", "Instance", &instances))
        (table("Origins", "Origin", &parts(&reported.origins)))
        (table("Entry points", "Entry point", &parts(&reported.contexts)))
    })
}

/// A chart with its sums.
fn figure(span: &str, points: &[Pair], steps: (usize, u64), now: u64) -> Markup {
    let [passed, blocked] = chart::sum(points).map(shown::grouped);
    let words = format!("The last {span} (UTC): {passed} passed and {blocked} blocked");
    chart::reported(points, steps, now, &words)
}

fn table(title: &str, head: &str, rows: &[(String, [u64; 3])]) -> Markup {
    html! {
        @if !rows.is_empty() {
            table {
                caption { (title) }
                thead { tr {
                    th scope="col" { (head) }
                    @for head in ["Passed/s", "Blocked/s", "In flight"] { th scope="col" { (head) } }
                } }
                tbody { @for (name, counts) in rows.iter().take(MOST) { tr {
                    th scope="row" { (shown::text(name)) }
                    @for count in counts { td { (shown::grouped(*count)) } }
                } } }
            }
            @if rows.len() > MOST { p { (rows.len() - MOST) " more are not shown." } }
        }
    }
}
