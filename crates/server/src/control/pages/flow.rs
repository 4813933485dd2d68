//! The pages of programs that link `tidegate::flow`: their applications, and the resources and rules of one.

use axum::http::Uri;
use maud::{Markup, html};

use super::{
    Missing,
    chart::{Pair, Size, chart},
    layout::layout,
    shown,
};
use crate::{
    control::flow::{AppSummary, InstanceSummary, ResourceSummary},
    edges::http::{App, Viewer, query_fields},
};

/// Seconds in the charts.
const RECENT: usize = 60;

pub(super) fn page(app: &App, uri: &Uri, viewer: Viewer) -> Result<Markup, Missing> {
    let [name] = query_fields(uri, ["app"]).map_err(|error| Missing(error.to_string()))?;
    let Some(name) = name else {
        return Ok(layout(
            "Flow",
            "/flow",
            Some("/live?app="),
            &html! { h1 { "Flow" } },
            &changing(app, "")?,
        ));
    };
    let body = changing(app, &name)?;
    let rules = app.flow.pushed.get(&name).map(|rules| rules.text).unwrap_or_default();
    let question = format!("Push these rules to all instances of {}?", shown::text(&name));
    let done = format!("Pushed the rules to {}", shown::text(&name));
    let head = html! {
        h1 { (shown::text(&name)) }
        @if viewer.may_operate {
            details {
                summary { "Rules" }
                form method="post" action="/v1/flow/rules" data-question=(question) data-done=(done) {
                    input type="hidden" name="app" value=(name);
                    label for="rules" { "Rules of all kinds in YAML. They replace those that the instances have." }
                    textarea id="rules" name="rules" rows="14" spellcheck="false" { "\n" (rules) }
                    div class="buttons" { button type="submit" { "Push" } }
                }
            }
        } @else if !rules.is_empty() {
            details { summary { "Rules" } pre tabindex="0" { code { (rules) } } }
        }
    };
    let live = format!("/live?app={}", shown::encoded(&name));
    Ok(layout(&name, "/flow", Some(&live), &head, &body))
}

/// The part that changes each second: of one application, or of all where the name is empty.
pub(super) fn changing(app: &App, name: &str) -> Result<Markup, Missing> {
    let apps = app.flow.summary((!name.is_empty()).then_some(name), app.service.now());
    if name.is_empty() {
        return Ok(all(&apps));
    }
    let missing = || Missing(format!("no instance of the application `{name}` reports, and it has no rules"));
    apps.first().map(|summary| one(app, summary)).ok_or_else(missing)
}

fn all(apps: &[AppSummary]) -> Markup {
    html! {
        @if apps.is_empty() {
            p { "No program reports. One that links tidegate does with the feature " code { "report" } " and:" }
            pre tabindex="0" { code { "gate.report(Report::to(url_of_this_page, \"shop\"), |_| {})?" } }
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
    let rates = resources.clone().fold([0.0; 2], |[pass, block], told| {
        let [passed, blocked, _] = told.rates();
        [pass + passed, block + blocked]
    });
    let in_flight = resources.clone().fold(0_u64, |sum, told| sum.saturating_add(told.in_flight));
    let open: usize = resources.clone().map(ResourceSummary::open).sum();
    let mut minute: Vec<Pair> = Vec::new();
    for told in resources {
        minute.resize(minute.len().max(told.minute.len()), [0; 2]);
        for (sum, pair) in minute.iter_mut().zip(pairs(told)) {
            *sum = [sum[0].saturating_add(pair[0]), sum[1].saturating_add(pair[1])];
        }
    }
    let there = summary.instances.iter().filter(|instance| !instance.is_gone).count();
    html! {
        tr role="row" class=[(rates[1] > 0.0 || open > 0).then_some("hurts")] {
            th role="rowheader" scope="row" {
                a href={ "/flow?app=" (shown::encoded(&summary.app)) } { (shown::text(&summary.app)) }
                small { (summary.resources.len()) " resources" }
            }
            (numbers(rates, in_flight, &minute))
            td role="cell" data-head="Open breakers" { (open) }
            td role="cell" data-head="Instances" { (there) }
        }
    }
}

fn one(app: &App, summary: &AppSummary) -> Markup {
    let rules = app.flow.pushed.get(&summary.app);
    let mut rows: Vec<(&String, &ResourceSummary)> = summary.resources.iter().collect();
    // Resources with open breakers and the most blocks are first; others are in the order of their names.
    rows.sort_by(|(_, one), (_, other)| {
        (other.open(), other.rates()[1])
            .partial_cmp(&(one.open(), one.rates()[1]))
            .unwrap_or(std::cmp::Ordering::Equal)
    });
    let left_out: usize =
        summary.instances.iter().fold(0, |sum, instance| sum.saturating_add(instance.left_out));
    html! {
        @if left_out > 0 { p class="bad" { (left_out) " resources are not shown: a report has no room for more." } }
        table class="limits" role="table" {
            caption class="hidden" { "Resources" }
            thead role="rowgroup" { tr role="row" {
                @for head in ["Resource", "Passed/s", "Blocked/s", "In flight", "Last minute", "Errors/s", "Response"] {
                    th role="columnheader" scope="col" { (head) }
                }
            } }
            tbody role="rowgroup" { @for (name, told) in rows { (row_of_resource(name, told)) } }
        }
        h2 { "Instances" }
        ul { @for instance in &summary.instances { li { (of_instance(instance, rules.as_ref().map(|rules| &*rules.version))) } } }
    }
}

fn row_of_resource(name: &str, told: &ResourceSummary) -> Markup {
    let [pass, block, errors] = told.rates();
    let rt = told.mean_rt().as_secs_f64() * 1e3;
    html! {
        tr role="row" class=[(block > 0.0 || told.open() > 0).then_some("hurts")] {
            th role="rowheader" scope="row" {
                (shown::text(name))
                @for ((rule, state), instances) in &told.breakers {
                    small class=[(state != "closed").then_some("bad")] {
                        "breaker " (shown::text(rule)) ": " (state)
                        @if *instances > 1 { " at " (instances) " instances" }
                    }
                }
                @for (rule, limit) in &told.adaptive { small { (shown::text(rule)) ": " (limit) " in flight" } }
            }
            (numbers([pass, block], told.in_flight, &pairs(told)))
            td role="cell" data-head="Errors/s" { (shown::rate(errors)) }
            td role="cell" data-head="Response" { (format!("{rt:.1} ms")) }
        }
    }
}

/// The cells that applications and resources have alike.
fn numbers([pass, block]: [f64; 2], in_flight: u64, minute: &[Pair]) -> Markup {
    let sum = |of: usize| minute.iter().fold(0_u64, |sum, pair| sum.saturating_add(pair[of]));
    let words = format!("{} passed and {} blocked in the last minute", sum(0), sum(1));
    html! {
        td role="cell" data-head="Passed/s" { (shown::rate(pass)) }
        td role="cell" data-head="Blocked/s" { (shown::rate(block)) }
        td role="cell" data-head="In flight" { (in_flight) }
        td role="cell" class="chart" data-head="Last minute" {
            (chart(minute, RECENT, Size { width: 120, height: 28, steps: RECENT }, &words))
        }
    }
}

fn of_instance(instance: &InstanceSummary, version: Option<&str>) -> Markup {
    let has = match (version, instance.version.as_deref()) {
        _ if instance.is_gone => "does not report any more",
        (None, _) => "has its own rules",
        (Some(pushed), Some(has)) if pushed == has && instance.rejected.is_none() => "has the pushed rules",
        (Some(_), _) if instance.rejected.is_some() => "rejected the pushed rules",
        (Some(_), _) => "has not seen the pushed rules yet",
    };
    html! {
        (shown::text(&instance.name)) ": " (has)
        @if let Some(why) = &instance.rejected { " " span class="bad" { (shown::text(why)) } }
    }
}

/// Passed and blocked in each second.
fn pairs(told: &ResourceSummary) -> Vec<Pair> {
    told.minute.iter().map(|second| [second[0], second[1]]).collect()
}
