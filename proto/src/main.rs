//! Compares the Rust types in `crates/envoy/src/pb` with the files in `crates/envoy/proto`, or
//! writes them with `--write`.

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use prost::Message as _;

type Failure = Box<dyn std::error::Error>;

/// The services whose descriptors the server also sends over reflection.
const REFLECTED: [&str; 3] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/rate_limit_quota/v3/rlqs.proto",
    "kuadrant/service/ratelimit/v1/ratelimit.proto",
];
/// The files with services whose types are written.
const TYPED: [&str; 3] = [
    "envoy/service/ratelimit/v3/rls.proto",
    "envoy/service/rate_limit_quota/v3/rlqs.proto",
    "envoy/service/discovery/v3/discovery.proto",
];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!(
                "These are not those of crates/envoy/proto. Run this again with --write and commit them."
            );
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all files are current.
fn run() -> Result<bool, Failure> {
    let writes = match env::args().nth(1).as_deref() {
        None => false,
        Some("--write") => true,
        Some(other) => {
            return Err(format!("unknown argument {other}: the only one is --write").into());
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .ok_or("proto/ has no parent directory")?;
    let crate_ = root.join("crates/envoy");
    let mut same = true;
    for (path, now) in files(&crate_)? {
        let file = crate_.join("src").join(path);
        if fs::read(&file).ok().as_ref() == Some(&now) {
            continue;
        }
        if writes {
            if let Some(directory) = file.parent() {
                fs::create_dir_all(directory)?;
            }
            fs::write(&file, now)?;
        } else {
            same = false;
        }
        println!("{}", file.display());
    }
    Ok(same)
}

/// The files below `src`, and their contents.
fn files(crate_: &Path) -> Result<BTreeMap<PathBuf, Vec<u8>>, Failure> {
    let proto = crate_.join("proto");
    let scratch = env::temp_dir().join(format!("tidegate-proto-{}", std::process::id()));
    fs::create_dir_all(&scratch)?;
    tonic_prost_build::configure()
        .compile_well_known_types(true)
        .emit_rerun_if_changed(false)
        .out_dir(&scratch)
        .include_file("mod.rs")
        .compile_fds(protox::compile(TYPED, [&proto])?)?;
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(&scratch)? {
        let entry = entry?;
        files.insert(Path::new("pb").join(entry.file_name()), fs::read(entry.path())?);
    }
    fs::remove_dir_all(&scratch)?;
    files.insert(
        "grpc/reflection/descriptors.bin".into(),
        protox::compile(REFLECTED, [&proto])?.encode_to_vec(),
    );
    Ok(files)
}
