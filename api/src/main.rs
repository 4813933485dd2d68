//! Compares the public API of the published libraries with the snapshots in `api/`, or writes them
//! with `--write`. A mistake in the documentation of any library of the workspace, such as a link
//! to nothing, is an error.

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use similar::TextDiff;

/// The compiler whose JSON `public-api` reads, as `rustc --version` begins.
const RUSTC: &str = "rustc 1.95.";

/// The libraries whose API a program can depend on.
const LIBRARIES: [&str; 10] = [
    "core",
    "config",
    "headers",
    "limiter",
    "flow",
    "flow-net",
    "redis",
    "redis-script",
    "tower",
    "tidegate",
];

/// Types that no program needs to name: the type parameters of layers, the YAML readers that the
/// server shares with flow, and what redis-script has for redis alone.
const UNNAMED: [&str; 8] = [
    "After",
    "Admitted",
    "Bodies",
    "Complaints",
    "Connection",
    "Entered",
    "Fields",
    "LineSeen",
];

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    if env::var_os(AS_RUSTDOC).is_some() {
        return rustdoc();
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "The public API differs from api/*.txt. Is the change meant? Then run this again with --write."
            );
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool, Failure> {
    let write = match env::args().nth(1).as_deref() {
        None => false,
        Some("--write") => true,
        Some(other) => {
            return Err(format!("unknown argument {other}: the only one is --write").into());
        }
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().ok_or("api/ has no parent directory")?;
    document(root)?;
    let version = String::from_utf8(Command::new("rustc").arg("--version").output()?.stdout)?;
    if !version.starts_with(RUSTC) {
        println!(
            "NOT compared: {} is here, and the snapshots need {RUSTC}x",
            version.trim()
        );
        return Ok(true);
    }
    let mut same = true;
    let mut lists = Vec::new();
    for library in LIBRARIES {
        let package = if library == "tidegate" {
            library.to_owned()
        } else {
            format!("tidegate-{library}")
        };
        let now = listed(root, &package)?;
        let file = here.join(format!("{package}.txt"));
        if write {
            fs::write(&file, &now)?;
        } else {
            let promised = fs::read_to_string(&file).unwrap_or_default();
            if promised != now {
                same = false;
                let name = file.display().to_string();
                print!(
                    "{}",
                    TextDiff::from_lines(&promised, &now)
                        .unified_diff()
                        .header(&name, &package)
                );
            }
        }
        lists.push((package.replace('-', "_"), now));
    }
    for (library, name) in not_exported(&lists) {
        same = false;
        eprintln!(
            "{library}: a signature names {name}, which neither this library nor the facade exports"
        );
    }
    Ok(same)
}

/// The types in signatures that a program with the facade alone cannot name. The facade exports all
/// that the limiter does, and the other libraries as modules.
fn not_exported(lists: &[(String, String)]) -> BTreeSet<(&str, &str)> {
    let exports = |library: &str| -> BTreeSet<&str> {
        let list = lists
            .iter()
            .find(|(name, _)| name == library)
            .map_or("", |(_, list)| list);
        list.lines()
            .flat_map(|line| {
                line.strip_prefix("pub use ")
                    .into_iter()
                    .chain(declared(line))
            })
            .map(last)
            .collect()
    };
    let is_facades = |name: &str| !["tidegate_core", "tidegate_config"].contains(&name);
    let libraries: Vec<_> = lists.iter().filter(|(name, _)| is_facades(name)).collect();
    let all: BTreeSet<&str> = libraries
        .iter()
        .flat_map(|(name, _)| exports(name))
        .collect();
    let mut missing = BTreeSet::new();
    for (library, list) in libraries {
        let own = exports(library);
        for path in list
            .lines()
            .filter(|line| !line.starts_with("pub use "))
            .flat_map(paths)
        {
            let (name, is_own) = (last(path), path.starts_with(library.as_str()));
            let is_exported = if is_own {
                own.contains(name)
            } else {
                all.contains(name)
            };
            if !is_exported && !UNNAMED.contains(&name) {
                missing.insert((library.as_str(), path));
            }
        }
    }
    missing
}

/// The path that a line of a list declares: that of a type, a trait, a module or a constant.
fn declared(line: &str) -> Option<&str> {
    let kinds = [
        "struct ", "enum ", "union ", "trait ", "type ", "mod ", "const ", "static ",
    ];
    let at = kinds
        .iter()
        .filter_map(|kind| Some(line.find(kind)? + kind.len()))
        .min()?;
    line[at..]
        .starts_with("tidegate")
        .then(|| path_at(&line[at..]))
}

/// The paths of Tidegate's types in a line.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let starts = line
        .match_indices("tidegate")
        .filter(move |(at, _)| !line[..*at].ends_with(is_name));
    let all = starts.map(|(at, _)| path_at(&line[at..]));
    // A method's or a field's path begins with its type's.
    all.filter_map(|path| {
        let mut end = 0;
        for part in path.split("::") {
            end += part.len();
            if part.starts_with(|c: char| c.is_ascii_uppercase()) {
                return Some(&path[..end]);
            }
            end += 2;
        }
        None
    })
}

fn path_at(text: &str) -> &str {
    let end = text
        .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .unwrap_or(text.len());
    text[..end].trim_end_matches(':')
}

fn last(path: &str) -> &str {
    path.rsplit("::").next().unwrap_or(path)
}

/// Set for the `rustdoc` that cargo starts: this program, which starts the real one.
const AS_RUSTDOC: &str = "TIDEGATE_API_RUSTDOC";

/// Writes rustdoc's JSON of all packages, with all their features. Its dependencies are those of
/// every other build of the workspace: only rustdoc gets the variable for options that are not
/// stable, as some dependencies are built again when they see it.
fn document(root: &Path) -> Result<(), Failure> {
    let done = Command::new("cargo")
        .current_dir(root)
        .args([
            "doc",
            "--quiet",
            "--locked",
            "--workspace",
            "--lib",
            "--no-deps",
            "--all-features",
        ])
        .env("RUSTDOC", env::current_exe()?)
        .env(AS_RUSTDOC, "1")
        .env(
            "RUSTDOCFLAGS",
            "-Z unstable-options --output-format json -D warnings",
        )
        .status()?;
    if done.success() {
        Ok(())
    } else {
        Err("rustdoc failed".into())
    }
}

/// Runs the real rustdoc with the arguments of this program.
fn rustdoc() -> ExitCode {
    let done = Command::new("rustdoc")
        .args(env::args_os().skip(1))
        .env("RUSTC_BOOTSTRAP", "1")
        .status();
    if done.is_ok_and(|status| status.success()) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The public items of a package, a line each.
fn listed(root: &Path, package: &str) -> Result<String, Failure> {
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let json = target
        .join("doc")
        .join(format!("{}.json", package.replace('-', "_")));
    let api = public_api::Builder::from_rustdoc_json(json)
        // What derives and blanket implementations add says nothing more.
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}
