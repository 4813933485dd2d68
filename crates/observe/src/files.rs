//! Files that a server keeps: appended to in whole lines, replaced as a whole, and locked against
//! other servers.

use std::{
    fmt::Write as _,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use serde::Serialize;

const OWNER_ALONE: u32 = 0o600;

/// For a file that no operator has named: a symlink is not followed, and a named pipe that nothing
/// reads is refused instead of waited for.
pub const OWN_FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK);

/// Opens a file for [`append`], and creates it for its owner alone.
pub fn open_to_append(path: &Path, flags: OFlags) -> io::Result<File> {
    // A named pipe that is also opened for reading would be its own reader.
    let has_an_end = fs::metadata(path).map_or(true, |there| there.is_file());
    let mut options = OpenOptions::new();
    options
        .append(true)
        .read(has_an_end)
        .create(true)
        .mode(OWNER_ALONE);
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .map_err(|error| match rustix::io::Errno::from_io_error(&error) {
            Some(rustix::io::Errno::NXIO) => io::Error::other(
                "it is a named pipe that nothing reads, or a socket; start the reader first, or name a file",
            ),
            Some(rustix::io::Errno::LOOP) => {
                io::Error::other("it is a symlink, which the server does not follow here; remove it")
            }
            _ => error,
        })?;
    rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Appends whole lines or nothing, next to other servers that do the same. A line that a killed
/// server has left in part is ended first.
pub fn append(mut file: &File, lines: &[u8]) -> io::Result<()> {
    let mut last = [b'\n'];
    if file.metadata()?.is_file() && file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last == [b'\n'] {
        tidegate_config::file::append(file, lines)
    } else {
        tidegate_config::file::append(file, &[b"\n", lines].concat())
    }
}

/// A line of JSON in which a terminal finds nothing to interpret, and a reader of JSON the value.
pub fn json_line(value: &impl Serialize) -> Vec<u8> {
    // Texts and numbers always serialize.
    let json = serde_json::to_string(value).unwrap_or_default();
    let mut line = String::with_capacity(json.len() + 1);
    for letter in json.chars() {
        if letter == ' ' || letter.is_ascii_graphic() || is_shown(letter) {
            line.push(letter);
        } else {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // A text takes everything, here and below.
                let _ = write!(line, "\\u{unit:04x}");
            }
        }
    }
    line.push('\n');
    line.into_bytes()
}

/// Whether a letter appears as such on a terminal: controls and marks of direction do not.
fn is_shown(letter: char) -> bool {
    letter.escape_debug().len() == 1
}

/// The text of a key. Bytes that are not UTF-8 are written as in `\xff`, so that keys that differ
/// in them stay apart.
pub fn key_text(key: &[u8]) -> String {
    let mut text = String::with_capacity(key.len());
    for chunk in key.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Creates an empty file that can [`replace`] another. A file that a crash has left is
/// removed.
pub fn create_new(path: &Path) -> io::Result<File> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_file() => fs::remove_file(path)?,
        Ok(there) => {
            return Err(io::Error::other(format!(
                "{} is {}",
                path.display(),
                kind(&there)
            )));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e),
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(OWNER_ALONE);
    options.open(path)
}

/// Puts the new file in the place of another, so that a crash leaves one of them.
///
/// # Errors
/// When the system refuses, or the path is no longer a regular file.
pub fn replace(path: &Path, new: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::other(format!(
                "{} has become {}",
                path.display(),
                kind(&there)
            )));
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => fs::rename(new, path)?,
    }
    // The rename is durable once its directory is synced.
    File::open(directory(path))?.sync_all()
}

pub fn directory(path: &Path) -> &Path {
    path.parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// The kind of a path that is not a regular file.
pub fn kind(metadata: &fs::Metadata) -> &'static str {
    let kind = metadata.file_type();
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_symlink() {
        "a symlink"
    } else {
        "a device"
    }
}

/// Why a lock cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another server has it.
    #[error("{} uses it", holder(*.by))]
    Locked {
        /// The process id of the other server, if it could be read.
        by: Option<u32>,
    },
    /// The system refuses access.
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(
        || "another server".to_owned(),
        |pid| format!("the server with process id {pid}"),
    )
}

/// A lock file with the process id of its holder. The system unlocks it when the process dies.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    pub fn take(path: PathBuf) -> Result<Self, LockError> {
        loop {
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(OWNER_ALONE);
            let mut file = options.custom_flags(flags.cast_signed()).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut pid = String::new();
                    // The holder may not have written its id yet.
                    let _ = file.take(16).read_to_string(&mut pid);
                    return Err(LockError::Locked {
                        by: pid.trim().parse().ok(),
                    });
                }
                Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => {
                    tracing::warn!(
                        file = %path.display(),
                        "this file system does not support locks: make sure that no other server uses the same file or directory",
                    );
                }
                Err(TryLockError::Error(e)) => return Err(e.into()),
            }
            // A previous holder may have removed the file after it was opened here.
            let mine = file.metadata()?;
            let is_there = fs::symlink_metadata(&path)
                .is_ok_and(|there| (there.dev(), there.ino()) == (mine.dev(), mine.ino()));
            if is_there {
                file.set_len(0)?;
                writeln!(file, "{}", std::process::id())?;
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while it is still locked, so no other process can hold it. A file left behind
        // does no harm.
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_nothing_for_a_terminal_and_is_the_same_value() {
        let every: String = ('\0'..='\u{2fff}')
            .chain(['\u{e0001}', '\u{1f600}', '\u{feff}'])
            .collect();
        let line = String::from_utf8(json_line(&every)).unwrap();
        let hidden = |c: &char| {
            c.is_control()
                || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}')
        };
        assert_eq!(line.chars().filter(hidden).collect::<String>(), "\n");
        assert!(
            line.contains('ä') && line.contains('😀'),
            "letters stay readable"
        );
        assert_eq!(serde_json::from_str::<String>(&line).unwrap(), every);
    }

    #[test]
    fn keys_of_any_bytes_stay_apart() {
        assert_eq!(key_text("grün".as_bytes()), "grün");
        assert_eq!(key_text(b"a\xffb\xc3"), "a\\xffb\\xc3");
        assert_ne!(key_text(b"\xfe"), key_text(b"\xff"));
    }

    #[test]
    fn a_torn_line_is_ended_before_the_next() {
        let path = std::env::temp_dir().join(format!("tidegate-torn-{}", std::process::id()));
        fs::write(&path, "whole\ntorn").unwrap();
        for line in ["a\n", "b\n"] {
            let file = open_to_append(&path, OWN_FILE).unwrap();
            append(&file, line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read(&path).unwrap(), b"whole\ntorn\na\nb\n");
        let link = path.with_added_extension("link");
        let _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(open_to_append(&link, OFlags::empty()).is_ok());
        let refused = open_to_append(&link, OWN_FILE).unwrap_err();
        assert!(refused.to_string().contains("a symlink"), "{refused}");
    }
}
