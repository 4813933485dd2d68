//! The crate's layers import only downward.

use std::{fs, path::Path};

/// The layers from top to bottom. Modules that are not listed (errors, counters and deadlines) belong to none of them.
const LAYERS: [&[&str]; 6] = [
    &["ad_hoc", "limit", "orders", "rules", "store"],
    &["batch"],
    &["lease"],
    &["health"],
    &["script"],
    &["connection"],
];

/// The types that the crate root exports, each with its layer.
const FRONT: [(&str, usize); 15] = [
    ("AdHoc", 0),
    ("LimitBuilder", 0),
    ("LimitError", 0),
    ("Mode", 0),
    ("OnError", 0),
    ("Part", 0),
    ("Permit", 0),
    ("SharedDecision", 0),
    ("SharedLimit", 0),
    ("Source", 0),
    ("Store", 0),
    ("Health", 3),
    ("Plan", 4),
    ("PlanError", 4),
    ("Address", 5),
];

fn layer_of(name: &str) -> Option<usize> {
    LAYERS
        .iter()
        .position(|layer| layer.contains(&name))
        .or_else(|| FRONT.iter().find(|(front, _)| *front == name).map(|(_, layer)| *layer))
}

/// The names after `crate::` in a file, without comments.
fn imports(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .fold(String::new(), |code, line| code + line + "\n");
    let name = |text: &str| text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut names = Vec::new();
    for behind in code.split("crate::").skip(1) {
        let Some(group) = behind.strip_prefix('{') else {
            names.push(name(behind));
            continue;
        };
        // The names at the group's own depth.
        let (mut depth, mut item) = (0, String::new());
        for c in group.chars() {
            match c {
                '}' if depth == 0 => break,
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => names.push(name(std::mem::take(&mut item).trim())),
                _ if depth == 0 => item.push(c),
                _ => {}
            }
        }
        names.push(name(item.trim()));
    }
    names.retain(|name| !name.is_empty());
    names
}

fn files(directory: &Path, found: &mut Vec<std::path::PathBuf>) {
    for entry in fs::read_dir(directory).expect("the sources are there") {
        let path = entry.expect("the directory can be read").path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn no_layer_imports_one_above_it() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    files(&source, &mut all);
    let mut looked_at = 0;
    for path in all {
        let within = path.strip_prefix(&source).expect("it is within");
        let first = within.components().next().expect("it has a name").as_os_str().to_string_lossy();
        let own = first.trim_end_matches(".rs").to_owned();
        if own == "lib" {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source is text");
        for name in imports(&text) {
            looked_at += 1;
            let Some(target) = layer_of(&name) else { continue };
            match layer_of(&own) {
                Some(layer) => assert!(target >= layer, "{}: crate::{name} is above it", within.display()),
                // Modules outside the layers may import only errors.
                None => {
                    panic!("{}: crate::{name} is a layer, and this is below all of them", within.display())
                }
            }
        }
    }
    assert!(looked_at > 50, "{looked_at} imports");
}
