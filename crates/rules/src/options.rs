//! The options of the algorithms, wherever a file has them: those in core's registry.

use tidegate_config::{Fields, Kind, Node, Problem};
use tidegate_core::{AlgorithmSpec, Wants};

use crate::PolicySpec;

/// These fields and the options of all algorithms.
pub fn with(fields: &[&'static str]) -> Vec<&'static str> {
    let own =
        AlgorithmSpec::all().flat_map(|algorithm| algorithm.known().iter().map(|known| known.name));
    let common = AlgorithmSpec::common().iter().map(|known| known.name);
    let mut all = fields.to_vec();
    for name in own.chain(common) {
        // Several algorithms have a burst.
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// The algorithm in a mapping, by its name or an alias.
pub fn algorithm(fields: &Fields<'_>) -> Option<AlgorithmSpec> {
    if let Some(aliased) = fields
        .get("algorithm")
        .and_then(|node| AlgorithmSpec::named(node.text()?).ok())
    {
        return Some(aliased);
    }
    let words: Vec<(&str, AlgorithmSpec)> = AlgorithmSpec::all()
        .map(|algorithm| (algorithm.name(), algorithm))
        .collect();
    fields.word("algorithm", &words)
}

/// Reports options that belong to another algorithm, except those that mean something else in this
/// file.
pub fn refuse_others(fields: &Fields<'_>, called: &str, algorithm: AlgorithmSpec, except: &[&str]) {
    let mut reported = Vec::new();
    let others = AlgorithmSpec::all().flat_map(|other| other.known());
    for option in others.map(|known| known.name) {
        let has = |owner: &AlgorithmSpec| owner.known().iter().any(|known| known.name == option);
        if has(&algorithm) || reported.contains(&option) || except.contains(&option) {
            continue;
        }
        let Some(node) = fields.get(option) else {
            continue;
        };
        reported.push(option);
        let owners: Vec<_> = AlgorithmSpec::all()
            .filter(has)
            .map(|owner| owner.name())
            .collect();
        let what = format!(
            "{called}: `{option}` is an option of {}, not of {}",
            owners.join(" and "),
            algorithm.name()
        );
        fields
            .complaints()
            .at(node.line, what, "remove it, or change the algorithm");
    }
    for common in AlgorithmSpec::common() {
        let is_set = fields
            .get(common.name)
            .is_some_and(|node| node.text() != Some("false"));
        if is_set && !algorithm.limits_rate() {
            let what = if common.wants == Wants::Flag {
                format!("{called}: a denied permit can never be given back")
            } else {
                format!("{called}: denials of permits do not block a key")
            };
            let mend = format!("remove `{}`", common.name);
            fields
                .complaints()
                .at(fields.line_of(common.name), what, mend);
        }
    }
}

/// Reads the options of `spec`'s algorithm. Missing options stay as they are.
pub fn read(fields: &Fields<'_>, spec: &mut PolicySpec) {
    let algorithm = &mut spec.algorithm;
    let (own, limits_rate) = (algorithm.known(), algorithm.limits_rate());
    let common = AlgorithmSpec::common().iter().filter(|_| limits_rate);
    for known in own.iter().chain(common) {
        // `fields` reports problems in the file's terms. Valid text is then also valid for the
        // algorithm.
        let is_right = match known.wants {
            Wants::Flag | Wants::Switch => fields.flag(known.name).is_some(),
            Wants::Count { least, most } => fields.units(known.name, least..=most).is_some(),
            Wants::Span => fields.duration(known.name).is_some(),
            Wants::Zone | Wants::Spans => true,
            Wants::OneOf(words) => {
                let words: Vec<(&str, ())> = words.iter().map(|&word| (word, ())).collect();
                fields.word(known.name, &words).is_some()
            }
            _ => false,
        };
        if let Some(node) = fields.get(known.name).filter(|_| is_right) {
            match spans(node).as_deref().or(node.text()) {
                Some(text) => set(fields, algorithm, known.name, text),
                None if node.is_null() => {}
                None => fields.refuse(known.name, node, format!("it must be {}", known.wants)),
            }
        }
    }
}

/// A list of durations as one text.
fn spans(node: &Node) -> Option<String> {
    let Kind::Sequence(items) = &node.kind else {
        return None;
    };
    let texts: Option<Vec<&str>> = items.iter().map(Node::text).collect();
    Some(texts?.join(","))
}

fn set(fields: &Fields<'_>, algorithm: &mut AlgorithmSpec, option: &str, text: &str) {
    if let Err(error) = algorithm.set(option, Some(text)) {
        fields
            .complaints()
            .add(Problem::at(fields.line_of(option), error.to_string()));
    }
}
