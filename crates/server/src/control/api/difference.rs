//! How two texts differ, as a unified diff.

use std::{fmt::Write as _, ops::Range};

use imara_diff::{Algorithm, Diff, Hunk, InternedInput, Token};

/// How many lines around a change are shown.
const AROUND: u32 = 3;
/// The longest text that is compared by lines, in bytes.
const MAX_BYTES: usize = 512 * 1024;

/// The unified diff of two texts with three lines around each change; empty if they are equal.
///
/// The header of a part names its first line in each text and how many lines follow, as `diff -u`
/// does.
pub(super) fn difference(before: &str, after: &str) -> String {
    if before == after {
        return String::new();
    }
    if before.len().max(after.len()) > MAX_BYTES {
        return format!(
            "@@ the texts differ; only texts of up to {MAX_BYTES} bytes are compared by lines @@\n"
        );
    }
    let input = InternedInput::new(before, after);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    let hunks: Vec<Hunk> = diff.hunks().collect();
    let mut shown = String::new();
    for part in hunks.chunk_by(|one, next| next.before.start - one.before.end <= 2 * AROUND) {
        write_part(&mut shown, part, &input);
    }
    shown
}

/// Writes changes with what lies between and around them.
fn write_part(shown: &mut String, part: &[Hunk], input: &InternedInput<&str>) {
    let ([first, ..], [.., last]) = (part, part) else {
        return;
    };
    let lead = first.before.start.min(first.after.start).min(AROUND);
    let left = input.before.len() as u32 - last.before.end;
    let trail = left.min(AROUND);
    let lines = |first: &Range<u32>, last: &Range<u32>| {
        let (start, end) = (first.start - lead, last.end + trail);
        // Lines count from 1. A range without lines is named by the line before it.
        (start + u32::from(end > start), end - start)
    };
    let (old, new) = (
        lines(&first.before, &last.before),
        lines(&first.after, &last.after),
    );
    let _ = writeln!(shown, "@@ -{},{} +{},{} @@", old.0, old.1, new.0, new.1);
    let mut write_lines = |mark: char, lines: &[Token]| {
        for &line in lines {
            let line = input.interner[line];
            let _ = write!(shown, "{mark}{line}");
            if !line.ends_with('\n') {
                shown.push_str("\n\\ No newline at end of file\n");
            }
        }
    };
    let mut at = first.before.start - lead;
    for Hunk { before, after } in part {
        write_lines(' ', lines_of(&input.before, at..before.start));
        write_lines('-', lines_of(&input.before, before.clone()));
        write_lines('+', lines_of(&input.after, after.clone()));
        at = before.end;
    }
    write_lines(' ', lines_of(&input.before, at..at + trail));
}

fn lines_of(text: &[Token], range: Range<u32>) -> &[Token] {
    &text[range.start as usize..range.end as usize]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Applies a diff strictly: each part lies where its header says, and has as many lines.
    fn apply(before: &str, diff: &str) -> String {
        let old: Vec<&str> = before.split_inclusive('\n').collect();
        let (mut new, mut at, mut lines) = (Vec::<String>::new(), 0, diff.lines().peekable());
        while let Some(header) = lines.next() {
            let number = |mark: char| -> (usize, usize) {
                let text = header.split(' ').find_map(|word| word.strip_prefix(mark));
                let (start, count) = text.unwrap().split_once(',').unwrap();
                let (start, count): (usize, usize) =
                    (start.parse().unwrap(), count.parse().unwrap());
                (start - usize::from(count > 0), count)
            };
            let ((start, gone), (new_start, come)) = (number('-'), number('+'));
            new.extend(old[at..start].iter().map(|line| (*line).to_owned()));
            assert_eq!(new.len(), new_start, "{header}");
            at = start;
            while let Some(line) = lines.next_if(|line| !line.starts_with("@@")) {
                let (mark, text) = line.split_at(1);
                let has_end = lines.next_if(|line| line.starts_with('\\')).is_none();
                let text = format!("{text}{}", if has_end { "\n" } else { "" });
                if mark != "+" {
                    assert_eq!(old[at], text);
                    at += 1;
                }
                if mark != "-" {
                    new.push(text);
                }
            }
            assert_eq!(
                (at - start, new.len() - new_start),
                (gone, come),
                "{header}"
            );
        }
        new.extend(old[at..].iter().map(|line| (*line).to_owned()));
        new.concat()
    }

    fn text() -> impl Strategy<Value = String> {
        let lines = prop::collection::vec("[ab@ -]{0,2}", 0..40);
        (lines, any::<bool>()).prop_map(|(lines, has_end)| {
            let text = lines.join("\n");
            if has_end && !text.is_empty() {
                text + "\n"
            } else {
                text
            }
        })
    }

    proptest! {
        #[test]
        fn a_diff_makes_the_new_text_of_the_old_one(before in text(), after in text()) {
            let diff = difference(&before, &after);
            prop_assert_eq!(apply(&before, &diff), after.clone());
            prop_assert_eq!(diff.is_empty(), before == after);
        }
    }

    #[test]
    fn a_part_has_three_lines_around_a_change() {
        let lines: Vec<String> = (1..=20).map(|line| line.to_string()).collect();
        let before = lines.join("\n") + "\n";
        let after = before.replace("\n6\n", "\nsix\n").replace("\n19\n", "\n");
        assert_eq!(
            difference(&before, &after),
            "@@ -3,7 +3,7 @@\n 3\n 4\n 5\n-6\n+six\n 7\n 8\n 9\n@@ -16,5 +16,4 @@\n 16\n 17\n 18\n-19\n 20\n"
        );
        assert_eq!(
            difference("", "a"),
            "@@ -0,0 +1,1 @@\n+a\n\\ No newline at end of file\n"
        );
    }

    #[test]
    fn texts_without_a_common_line_are_compared_at_once() {
        let text = |word: &str| -> String {
            let lines: Vec<_> = (0..40_000)
                .map(|line| format!("{word}{}", line % 997))
                .collect();
            lines.join("\n") + "\n"
        };
        let (before, after) = (text("a"), text("b"));
        assert!(before.len() < MAX_BYTES);
        assert_eq!(apply(&before, &difference(&before, &after)), after);
        let doubled = before.repeat(3);
        assert!(difference(&before, &doubled).contains("only texts of up to"));
    }
}
