//! `match` and `by`: which requests of a log a limit applies to.

use tidegate_config::{Fields, Kind, Node};

use crate::TrafficSpec;

pub(super) fn read(fields: &Fields<'_>, called: &str, global: bool) -> TrafficSpec {
    if let Some(by) = fields.get("by").filter(|_| global) {
        let what = format!("{called} is global: it has no keys, so `by` has no meaning");
        fields
            .complaints()
            .at(by.line, what, "remove it, or remove `global`");
    }
    TrafficSpec {
        conditions: read_match(fields),
        by: read_by(fields),
    }
}

fn read_match(fields: &Fields<'_>) -> Vec<(String, String)> {
    let example = "write fields with patterns, as in `match: {path: /login, method: POST}`";
    let condition = |(field, pattern): &(Node, Node)| match (field.text(), pattern.text()) {
        (Some(field), Some(pattern)) if !field.is_empty() => {
            Some((field.to_owned(), pattern.to_owned()))
        }
        _ => {
            let what = format!(
                "`match` has {} for {}",
                pattern.describe(),
                field.describe()
            );
            fields.complaints().at(pattern.line, what, example);
            None
        }
    };
    fields
        .mapping_once("match", example)
        .iter()
        .filter_map(condition)
        .collect()
}

/// One field, or a list of fields.
fn read_by(fields: &Fields<'_>) -> Vec<String> {
    let Some(node) = fields.get("by").filter(|node| !node.is_null()) else {
        return Vec::new();
    };
    let field = |node: &Node| {
        node.text()
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
    };
    let by: Option<Vec<String>> = match &node.kind {
        Kind::Sequence(items) => items.iter().map(field).collect(),
        _ => field(node).map(|name| name.split(',').map(|name| name.trim().to_owned()).collect()),
    };
    by.filter(|by| !by.is_empty()).unwrap_or_else(|| {
        fields.refuse(
            "by",
            node,
            "write a field or a list of them, as in `by: ip` or `by: [ip, path]`",
        );
        Vec::new()
    })
}
