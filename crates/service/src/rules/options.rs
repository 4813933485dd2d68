//! The options of the algorithms, wherever a file has them: those in core's registry.

use tidegate_config::{Fields, Node, Problem};
use tidegate_core::{AlgorithmSpec, Wants};

use super::PolicySpec;

const COUNT_DENIED: &str = "count_denied";

/// These fields and the options of all algorithms.
pub fn with(fields: &[&'static str]) -> Vec<&'static str> {
    let own =
        AlgorithmSpec::all().flat_map(|algorithm| algorithm.known().iter().map(|known| known.name));
    fields
        .iter()
        .copied()
        .chain(own)
        .chain([COUNT_DENIED])
        .collect()
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

/// Reports options that belong to another algorithm.
pub fn refuse_others(fields: &Fields<'_>, called: &str, algorithm: AlgorithmSpec) {
    for owner in AlgorithmSpec::all().filter(|owner| owner.name() != algorithm.name()) {
        let others = owner
            .known()
            .iter()
            .filter(|known| !algorithm.known().contains(known));
        for (option, node) in others.filter_map(|known| Some((known.name, fields.get(known.name)?)))
        {
            let what = format!(
                "{called}: `{option}` is an option of {}, not of {}",
                owner.name(),
                algorithm.name()
            );
            fields
                .complaints()
                .at(node.line, what, "remove it, or change the algorithm");
        }
    }
    let counts_denied = fields.get(COUNT_DENIED).and_then(Node::text) == Some("true");
    if counts_denied && !algorithm.limits_rate() {
        let what = format!("{called}: a denied permit can never be given back");
        fields
            .complaints()
            .at(fields.line_of(COUNT_DENIED), what, "remove `count_denied`");
    }
}

/// Reads the options of `spec`'s algorithm. Missing options stay as they are.
pub fn read(fields: &Fields<'_>, spec: &mut PolicySpec) {
    let algorithm = &mut spec.algorithm;
    for known in algorithm.known() {
        // `fields` reports problems in the file's terms. Valid text is then also valid for the
        // algorithm.
        let is_right = match known.wants {
            Wants::Flag | Wants::Switch => fields.flag(known.name).is_some(),
            Wants::Count { least } => fields.units(known.name, least).is_some(),
            Wants::Span => fields.duration(known.name).is_some(),
            Wants::Zone => true,
            Wants::OneOf(words) => {
                let words: Vec<(&str, ())> = words.iter().map(|&word| (word, ())).collect();
                fields.word(known.name, &words).is_some()
            }
            _ => false,
        };
        if let Some(text) = fields
            .get(known.name)
            .and_then(|node| node.text())
            .filter(|_| is_right)
        {
            set(fields, algorithm, known.name, text);
        }
    }
    if algorithm.limits_rate()
        && let Some(on) = fields.flag(COUNT_DENIED)
    {
        set(
            fields,
            algorithm,
            COUNT_DENIED,
            if on { "true" } else { "false" },
        );
    }
}

fn set(fields: &Fields<'_>, algorithm: &mut AlgorithmSpec, option: &str, text: &str) {
    if let Err(error) = algorithm.set(option, Some(text)) {
        fields
            .complaints()
            .add(Problem::at(fields.line_of(option), error.to_string()));
    }
}
