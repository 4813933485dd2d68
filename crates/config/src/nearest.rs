//! Guessing what was meant.

/// The candidate that `word` was most likely meant to be: at most two letters (a third of a short word) away.
#[must_use]
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word: Vec<char> = word.chars().take(64).map(|c| c.to_ascii_lowercase()).collect();
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 2.min(candidate.chars().count().div_ceil(3)))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's edit distance, one row at a time; two neighbours that changed places are one edit.
fn distance(word: &[char], candidate: &str) -> usize {
    let candidate: Vec<char> = candidate.chars().map(|c| c.to_ascii_lowercase()).collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=candidate.len()).collect();
    for (i, a) in word.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, b) in candidate.iter().enumerate() {
            let mut best = (row[j] + usize::from(a != b)).min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && *a == candidate[j - 1] && word[i - 1] == *b {
                best = best.min(before[j - 1] + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    row[candidate.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_what_was_meant() {
        let options = ["burst", "slots", "max_wait", "first_hit", "closed"];
        assert_eq!(nearest("burts", options), Some("burst"));
        assert_eq!(nearest("first-hit", options), Some("first_hit"));
        assert_eq!(nearest("maxwait", options), Some("max_wait"));
        assert_eq!(nearest("Slot", options), Some("slots"));
        assert_eq!(nearest("colour", options), None);
        assert_eq!(nearest("", options), None);
    }
}
