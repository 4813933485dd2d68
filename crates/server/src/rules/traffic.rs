//! `match` and `by`: which requests of a log a limit applies to.

use tidegate_config::{Complaints, Fields, Kind, Node, Problem};

use super::TrafficSpec;

pub(super) fn read(
    fields: &Fields<'_>,
    called: &str,
    global: bool,
    complaints: &mut Complaints,
) -> TrafficSpec {
    if let Some(by) = fields.get("by").filter(|_| global) {
        let what = format!("{called} is global: it has no keys, so `by` has no meaning");
        complaints.add(Problem::at(by.line, what).mend("remove it, or remove `global`"));
    }
    TrafficSpec { conditions: read_match(fields, complaints), by: read_by(fields, complaints) }
}

fn read_match(fields: &Fields<'_>, complaints: &mut Complaints) -> Vec<(String, String)> {
    let Some(node) = fields.get("match").filter(|node| !node.is_null()) else { return Vec::new() };
    let example = "write fields with patterns, as in `match: {path: /login, method: POST}`";
    let Kind::Mapping(entries) = &node.kind else {
        complaints.add(Problem::at(node.line, format!("`match` is {}", node.describe())).mend(example));
        return Vec::new();
    };
    let mut conditions = Vec::new();
    for (field, pattern) in entries {
        match (field.text(), pattern.text()) {
            (Some(field), Some(pattern)) if !field.is_empty() => {
                conditions.push((field.to_owned(), pattern.to_owned()));
            }
            _ => {
                let what = format!("`match` has {} for {}", pattern.describe(), field.describe());
                complaints.add(Problem::at(pattern.line, what).mend(example));
            }
        }
    }
    conditions
}

/// One field, or a list of fields.
fn read_by(fields: &Fields<'_>, complaints: &mut Complaints) -> Vec<String> {
    let Some(node) = fields.get("by").filter(|node| !node.is_null()) else { return Vec::new() };
    let field = |node: &Node| node.text().filter(|name| !name.is_empty()).map(str::to_owned);
    let by: Option<Vec<String>> = match &node.kind {
        Kind::Sequence(items) => items.iter().map(field).collect(),
        _ => field(node).map(|name| name.split(',').map(|name| name.trim().to_owned()).collect()),
    };
    by.filter(|by| !by.is_empty()).unwrap_or_else(|| {
        complaints.add(
            Problem::at(node.line, format!("`by` is {}", node.describe()))
                .mend("write a field or a list of them, as in `by: ip` or `by: [ip, path]`"),
        );
        Vec::new()
    })
}
