//! The pages of programs that link `tidegate::flow`: their applications, and the resources and
//! rules of one.

use tidegate_service::flow::{AppSummary, InstanceSummary, Limits, ResourceSummary};

use super::{
    Missing,
    layout::{Frame, layout},
    shown,
};
use crate::{
    control::{
        ControlPlane,
        chart::{self, Pair},
    },
    edges::http::permit::Viewer,
};
use maud::{Markup, html};
use tidegate_flow::rules::Target;

/// The page of an application, or of all.
pub(super) fn page(
    control: &ControlPlane,
    name: Option<String>,
    viewer: Viewer,
) -> Result<Frame, Missing> {
    let Some(name) = name else {
        let head = html! { h1 { "Flow" } };
        return Ok(layout(
            "Flow",
            "/flow",
            Some("/live?app="),
            head,
            changing(control, "")?,
        ));
    };
    let body = changing(control, &name)?;
    let summary = summary(control, &name)?;
    let pushed = control.flow.pushed.get(&name);
    let version = pushed
        .as_ref()
        .map(|rules| &*rules.version)
        .unwrap_or_default();
    let rules = in_force(control, &summary);
    let own = summary.own();
    let left_out: Vec<&String> = own.iter().flat_map(|(own, _)| &own.left_out).collect();
    let question = format!(
        "Push these rules to all instances of {}?",
        shown::text(&name)
    );
    let done = format!("Pushed the rules to {}", shown::text(&name));
    let head = html! {
        h1 { (shown::text(&name)) }
        @if viewer.may_operate {
            details {
                summary { "Rules" }
                @if pushed.is_none() && own.len() > 1 {
                    p class="bad" { "The instances have different rules. These are those of " (own[0].1) " of them." }
                }
                @if pushed.is_none() && !left_out.is_empty() {
                    p class="bad" { "A push ends rules that the text cannot have:" }
                    ul { @for why in left_out { li { (shown::text(why)) } } }
                }
                form method="post" action="/v1/flow/rules" data-question=(question) data-done=(done) {
                    input type="hidden" name="app" value=(name);
                    input type="hidden" name="version" value=(version);
                    label for="rules" {
                        @if pushed.is_some() || !own.is_empty() { "The rules in force. A push replaces them by this text: change only what is to change." }
                        @else { "Rules of all kinds in YAML. They replace those that the instances have, which no instance has reported." }
                    }
                    textarea id="rules" name="rules" rows="14" spellcheck="false" { "\n" (rules) }
                    div class="buttons" { button type="submit" { "Push" } }
                }
            }
        } @else if !rules.is_empty() {
            details { summary { "Rules" } pre tabindex="0" { code { (rules) } } }
        }
    };
    let live = format!("/live?app={}", shown::encoded(&name));
    Ok(layout(&name, "/flow", Some(&live), head, body))
}

/// The part that changes each second: of one application, or of all where the name is empty.
pub(super) fn changing(control: &ControlPlane, name: &str) -> Result<Markup, Missing> {
    if name.is_empty() {
        Ok(all(&control.flow.summary(None, control.app.service.now())))
    } else {
        Ok(one(control, &summary(control, name)?))
    }
}

/// The application of this name.
pub(super) fn summary(control: &ControlPlane, name: &str) -> Result<AppSummary, Missing> {
    let missing = || {
        Missing(format!(
            "no instance of the application `{name}` reports, and it has no rules"
        ))
    };
    control
        .flow
        .summary(Some(name), control.app.service.now())
        .pop()
        .ok_or_else(missing)
}

/// The rules that were pushed, or else those that most instances have; empty if they are unknown.
pub(super) fn in_force(control: &ControlPlane, summary: &AppSummary) -> String {
    let pushed = control
        .flow
        .pushed
        .get(&summary.app)
        .map(|rules| rules.text);
    let own = || summary.own().first().map(|(own, _)| own.text.to_string());
    pushed.or_else(own).unwrap_or_default()
}

/// The rules of an application by their resources, each with its kind and its limit.
pub(super) fn limits(control: &ControlPlane, summary: &AppSummary) -> Limits {
    control
        .flow
        .limits
        .of(&summary.app, &in_force(control, summary))
}

fn all(apps: &[AppSummary]) -> Markup {
    html! {
        @if apps.is_empty() {
            p { "No program reports. One that links tidegate does with the feature " code { "report" } " and:" }
            pre tabindex="0" { code { "Report::to(url_of_this_page, \"shop\").start(&gate, |_| {})?" } }
        } @else {
            table class="limits" role="table" {
                caption class="hidden" { "Applications" }
                thead role="rowgroup" { tr role="row" {
                    @for head in ["Application", "Passed/s", "Blocked/s", "In flight", "Last minute", "Open breakers", "Instances"] {
                        th role="columnheader" scope="col" { (head) }
                    }
                } }
                tbody role="rowgroup" { @for summary in apps { (row_of_app(summary)) } }
            }
        }
    }
}

fn row_of_app(summary: &AppSummary) -> Markup {
    let resources = summary.resources.values();
    let rates = resources.clone().fold([0.0; 2], |[pass, block], resource| {
        let [passed, blocked, _] = resource.rates();
        [pass + passed, block + blocked]
    });
    let in_flight = resources.clone().fold(0_u64, |sum, resource| {
        sum.saturating_add(resource.in_flight)
    });
    let open: usize = resources.clone().map(ResourceSummary::open).sum();
    let mut minute: Vec<Pair> = Vec::new();
    for resource in resources {
        minute.resize(minute.len().max(resource.minute.len()), [0; 2]);
        for (sum, pair) in minute.iter_mut().zip(pairs(resource)) {
            *sum = chart::sum(&[*sum, pair]);
        }
    }
    let there = summary
        .instances
        .iter()
        .filter(|instance| !instance.is_gone)
        .count();
    html! {
        tr role="row" class=[(rates[1] > 0.0 || open > 0).then_some("hurts")] {
            th role="rowheader" scope="row" {
                a href={ "/flow?app=" (shown::encoded(&summary.app)) } { (shown::text(&summary.app)) }
                small { (shown::counted(summary.resources.len() as u64, "resource")) }
            }
            (numbers(rates, in_flight, &minute))
            td role="cell" data-head="Open breakers" { (open) }
            td role="cell" data-head="Instances" { (there) }
        }
    }
}

fn one(control: &ControlPlane, summary: &AppSummary) -> Markup {
    let rules = control.flow.pushed.get(&summary.app);
    let mut rows: Vec<(&String, &ResourceSummary)> = summary.resources.iter().collect();
    // Resources with open breakers and the most blocks are first; others are in the order of their
    // names.
    rows.sort_by(|(_, one), (_, other)| {
        (other.open(), other.rates()[1])
            .partial_cmp(&(one.open(), one.rates()[1]))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let left_out: usize = summary
        .instances
        .iter()
        .fold(0, |sum, instance| sum.saturating_add(instance.left_out));
    let limits = limits(control, summary);
    html! {
        @if left_out > 0 { p class="bad" { (left_out) " resources are not shown: a report has no room for more." } }
        table class="limits" role="table" {
            caption class="hidden" { "Resources" }
            thead role="rowgroup" { tr role="row" {
                @for head in ["Resource", "Passed/s", "Blocked/s", "In flight", "Last minute", "Errors/s", "Response"] {
                    th role="columnheader" scope="col" { (head) }
                }
            } }
            tbody role="rowgroup" { @for (name, resource) in rows { (row_of_resource(&summary.app, name, resource, &limits)) } }
        }
        h2 { "Instances" }
        ul { @for instance in &summary.instances { li { (of_instance(instance, rules.as_ref().map(|rules| &*rules.version))) } } }
    }
}

fn row_of_resource(
    app: &str,
    name: &str,
    resource: &ResourceSummary,
    limits: &[(Target, String)],
) -> Markup {
    let [pass, block, errors] = resource.rates();
    let rt = resource.mean_rt().as_secs_f64() * 1e3;
    html! {
        tr role="row" class=[(block > 0.0 || resource.open() > 0).then_some("hurts")] {
            th role="rowheader" scope="row" {
                a href={ "/flow?app=" (shown::encoded(app)) "&resource=" (shown::encoded(name)) } { (shown::text(name)) }
                @for (_, limit) in limits.iter().filter(|(of, _)| matches!(of, Target::Name(of) if of == name)) {
                    small { (shown::text(limit)) }
                }
                @if let Some(reasons) = reasons(resource) { small { "blocked: " (reasons) } }
                @for ((rule, state), instances) in &resource.breakers {
                    small class=[(state != "closed").then_some("bad")] {
                        "breaker " (shown::text(rule)) ": " (state)
                        @if *instances > 1 { " at " (instances) " instances" }
                    }
                }
                @for (rule, limit) in &resource.adaptive { small { (shown::text(rule)) ": " (limit) " in flight" } }
            }
            (numbers([pass, block], resource.in_flight, &pairs(resource)))
            td role="cell" data-head="Errors/s" { (shown::rate(errors)) }
            td role="cell" data-head="Response" { (format!("{rt:.1} ms")) }
        }
    }
}

/// The units that were blocked since the start, by reason.
pub(super) fn reasons(resource: &ResourceSummary) -> Option<String> {
    let each = resource
        .blocked
        .iter()
        .map(|(why, sum)| format!("{} {}", shown::grouped(*sum), shown::text(why)));
    (!resource.blocked.is_empty()).then(|| each.collect::<Vec<_>>().join(", "))
}

/// The cells that applications and resources have alike.
fn numbers([pass, block]: [f64; 2], in_flight: u64, minute: &[Pair]) -> Markup {
    let [passed, blocked] = chart::sum(minute);
    let words = format!("{passed} passed and {blocked} blocked in the last minute");
    html! {
        td role="cell" data-head="Passed/s" { (shown::rate(pass)) }
        td role="cell" data-head="Blocked/s" { (shown::rate(block)) }
        td role="cell" data-head="In flight" { (in_flight) }
        td role="cell" class="chart" data-head="Last minute" { (chart::minute(minute, &words)) }
    }
}

fn of_instance(instance: &InstanceSummary, version: Option<&str>) -> Markup {
    let has = match (version, instance.version.as_deref()) {
        _ if instance.is_gone => "does not report any more",
        (None, _) => "has its own rules",
        (Some(pushed), Some(has)) if pushed == has && instance.rejected.is_none() => {
            "has the pushed rules"
        }
        (Some(_), _) if instance.rejected.is_some() => "rejected the pushed rules",
        (Some(_), _) => "has not seen the pushed rules yet",
    };
    html! {
        (shown::text(&instance.name)) ": " (has)
        @if let Some(why) = &instance.rejected { " " span class="bad" { (shown::text(why)) } }
    }
}

/// Passed and blocked in each second.
pub(super) fn pairs(resource: &ResourceSummary) -> Vec<Pair> {
    resource
        .minute
        .iter()
        .map(|second| [second[0], second[1]])
        .collect()
}
