#!/usr/bin/env bash
# imara-diff 0.2.0: a unified diff with three lines of context, whose first change is in line 5, 6 or 7, names a wrong first line. It shows the text from line 1 on,
# but the header says that it begins three lines before the change. GNU patch 2.7 applies such a diff only with fuzz. A change in line 4 or
# before, and one in line 8 or after, gets the right header. (Its printer also leaves out the note that a text has no newline at its end.)
#
# Seen on 2026-11-30, imara-diff 0.2.0, Rust 1.95; a text of twenty lines, in which the line of that number changes:
#   line 4: @@ -1,7 +1,7 @@ shows from line 1
#   line 5: @@ -2,8 +2,8 @@ shows from line 1
#   line 6: @@ -3,9 +3,9 @@ shows from line 1
#   line 7: @@ -4,10 +4,10 @@ shows from line 1
#   line 8: @@ -5,7 +5,7 @@ shows from line 5
#
# Fails if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cargo init -q --vcs none --name probe
cargo add -q imara-diff@=0.2.0
cat >src/main.rs <<'RUST'
use imara_diff::{Algorithm, BasicLineDiffPrinter, Diff, InternedInput, UnifiedDiffConfig};

fn main() {
    let text = |changed: usize| -> String {
        (1..=20).map(|line| if line == changed { "changed\n".to_owned() } else { format!("{line}\n") }).collect()
    };
    let before = text(0);
    for changed in 4..=8 {
        let after = text(changed);
        let input = InternedInput::new(before.as_str(), after.as_str());
        let mut diff = Diff::compute(Algorithm::Histogram, &input);
        diff.postprocess_lines(&input);
        let printer = BasicLineDiffPrinter(&input.interner);
        let shown = diff.unified_diff(&printer, UnifiedDiffConfig::default(), &input).to_string();
        let mut lines = shown.lines();
        let (header, first) = (lines.next().unwrap(), lines.next().unwrap());
        println!("line {changed}: {header} shows from line{first}");
    }
}
RUST
cargo run -q | tee seen
diff seen - <<'SEEN'
line 4: @@ -1,7 +1,7 @@ shows from line 1
line 5: @@ -2,8 +2,8 @@ shows from line 1
line 6: @@ -3,9 +3,9 @@ shows from line 1
line 7: @@ -4,10 +4,10 @@ shows from line 1
line 8: @@ -5,7 +5,7 @@ shows from line 5
SEEN
