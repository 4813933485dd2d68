//! Draws how each algorithm treats the same traffic, and how tenants share a limit:
//! `cargo run -p tidegate-sim --example algorithm_pictures`.
//!
//! Writes one SVG for each algorithm, and one for shares, to `docs/src/pictures` (or the directory named).
//! `tests/pictures.rs` fails when they are not current.

mod draw;
mod shares;

use std::{env, fs, io, path::PathBuf};

fn main() -> io::Result<()> {
    let directory = env::args_os()
        .nth(1)
        .map_or_else(|| PathBuf::from("docs/src/pictures"), PathBuf::from);
    fs::create_dir_all(&directory)?;
    for panel in draw::panels() {
        let path = directory.join(panel.file_name());
        fs::write(&path, panel.svg())?;
        println!("{}", path.display());
    }
    let path = directory.join(shares::FILE);
    fs::write(&path, shares::Shares::replayed().svg())?;
    println!("{}", path.display());
    Ok(())
}
