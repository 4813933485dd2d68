//! A server whose clock a test moves.

use std::{fs, path::PathBuf, process::Command};

use crate::Server;

/// Adds the number of seconds in a file to the time that the server reads. It is loaded before the
/// C library.
const SHIFT: &str = include_str!("clock.c");

impl Server {
    /// Starts a server whose clock [`shift_clock`](Self::shift_clock) moves.
    ///
    /// # Panics
    /// When the C compiler, with which Rust links programs, cannot build the library that shifts
    /// the time, or the server does not start.
    pub fn with_clock() -> Self {
        let mut server = Self::start(&[]);
        let (source, library) = (
            server.directory().join("clock.c"),
            server.directory().join("clock.so"),
        );
        fs::write(&source, SHIFT).expect("the server's directory takes a file");
        let mut compiler = Command::new("cc");
        let built = compiler
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .arg(&library)
            .arg(&source)
            .status();
        assert!(
            built.is_ok_and(|status| status.success()),
            "cc cannot build {}",
            source.display()
        );
        server.preload = Some((library, server.clock_file()));
        server.shift_clock(0);
        server.start_again();
        server
    }

    /// Sets the server's clock to the system's time and `seconds`.
    ///
    /// # Panics
    /// When the server's directory does not take a file.
    pub fn shift_clock(&self, seconds: i64) {
        // Renamed, so that the server never reads half a number.
        let next = self.directory().join("clock.next");
        fs::write(&next, seconds.to_string()).expect("the server's directory takes a file");
        fs::rename(next, self.clock_file()).expect("a file can be renamed in its directory");
    }

    fn clock_file(&self) -> PathBuf {
        self.directory().join("clock")
    }
}
