//! Compares the public API of the published libraries with the snapshots in `api/`, or writes them with `--write`.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use similar::TextDiff;

/// The compiler whose JSON `public-api` reads, as `rustc --version` begins.
const RUSTC: &str = "rustc 1.95.";

/// The libraries whose API a program can depend on.
const LIBRARIES: [&str; 7] = ["core", "config", "limiter", "flow", "redis", "tower", "tidegate"];

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("The public API differs from api/*.txt. Is the change meant? Then run this again with --write.");
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
        Some(other) => return Err(format!("unknown argument {other}: the only one is --write").into()),
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().ok_or("api/ has no parent directory")?;
    let version = String::from_utf8(Command::new("rustc").arg("--version").output()?.stdout)?;
    if !version.starts_with(RUSTC) {
        println!("NOT compared: {} is here, and the snapshots need {RUSTC}x", version.trim());
        return Ok(true);
    }
    let mut same = true;
    for library in LIBRARIES {
        let package = if library == "tidegate" { library.to_owned() } else { format!("tidegate-{library}") };
        let now = listed(root, &package)?;
        let file = here.join(format!("{package}.txt"));
        if write {
            fs::write(&file, now)?;
        } else {
            let promised = fs::read_to_string(&file).unwrap_or_default();
            if promised != now {
                same = false;
                let name = file.display().to_string();
                print!("{}", TextDiff::from_lines(&promised, &now).unified_diff().header(&name, &package));
            }
        }
    }
    Ok(same)
}

/// The public items of a package with all its features, a line each.
fn listed(root: &Path, package: &str) -> Result<String, Failure> {
    let target = root.join("target/api");
    let done = Command::new("cargo")
        .current_dir(root)
        .args(["rustdoc", "--quiet", "--locked", "--lib", "--all-features", "-p", package, "--target-dir"])
        .arg(&target)
        .args(["--", "-Z", "unstable-options", "--output-format", "json", "--cap-lints", "allow"])
        // Rustdoc's JSON is not stable yet; the compiler is.
        .env("RUSTC_BOOTSTRAP", "1")
        .status()?;
    if !done.success() {
        return Err(format!("rustdoc of {package} failed").into());
    }
    let json: PathBuf = target.join("doc").join(format!("{}.json", package.replace('-', "_")));
    let api = public_api::Builder::from_rustdoc_json(json)
        // What derives and blanket implementations add says nothing more.
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    Ok(api.items().map(|item| format!("{item}\n")).collect())
}
