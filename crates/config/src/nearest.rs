//! Suggests known words for an unknown one.

/// Returns the candidate of which `word` is probably a misspelling, if there is one.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = lower(word);
    candidates
        .into_iter()
        .map(|candidate| (strsim::osa_distance(&word, &lower(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= 2.min(candidate.chars().count().div_ceil(3)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns up to `most` candidates that are most similar to `word`, the most similar first. Only
/// the first thousand candidates are compared.
pub fn likest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    most: usize,
) -> Vec<&'a str> {
    let word = lower(word);
    let candidates = candidates.into_iter().take(1_000);
    let mut all: Vec<_> = candidates
        .map(|candidate| (strsim::osa_distance(&word, &lower(candidate)), candidate))
        .collect();
    all.sort_by_key(|(distance, _)| *distance);
    all.into_iter()
        .take(most)
        .map(|(_, candidate)| candidate)
        .collect()
}

/// Returns the first 64 characters of a word in lower case.
fn lower(word: &str) -> String {
    word.chars()
        .take(64)
        .map(|c| c.to_ascii_lowercase())
        .collect()
}
