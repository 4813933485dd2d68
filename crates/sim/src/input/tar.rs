//! The files of a tar archive, one after another, as one text.

use std::io::{self, Read};

/// Headers and contents are padded to blocks of this many bytes.
pub(super) const BLOCK: usize = 512;

/// Whether a block is a tar header: the magic of POSIX and GNU archives, and a checksum that is right.
pub(super) fn is_header(block: &[u8]) -> bool {
    let Some(block) = block.first_chunk::<BLOCK>() else { return false };
    // The checksum counts its own eight bytes as blanks.
    let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
    let own: u64 = block[148..156].iter().map(|&byte| u64::from(byte)).sum();
    &block[257..262] == b"ustar" && number(&block[148..156]) == Some(sum - own + 8 * u64::from(b' '))
}

/// Reads the contents of all regular files in an archive, in their order, a line end between two files.
pub(super) struct TarFiles<R> {
    archive: R,
    /// Bytes of the current file that are still to come.
    left: u64,
    /// Padding behind the current file.
    padding: u64,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Start,
    InFile,
    /// A line end is due before the next file.
    Between,
    End,
}

impl<R: Read> TarFiles<R> {
    pub fn new(archive: R) -> Self {
        Self { archive, left: 0, padding: 0, state: State::Start }
    }

    /// Goes to the contents of the next regular file; `false` at the archive's end.
    fn next_file(&mut self) -> io::Result<bool> {
        self.skip(self.padding)?;
        self.padding = 0;
        loop {
            let mut header = [0; BLOCK];
            if !fill(&mut self.archive, &mut header)? || header.iter().all(|&byte| byte == 0) {
                return Ok(false);
            }
            if !is_header(&header) {
                return Err(invalid("a broken header in the tar archive"));
            }
            let size =
                number(&header[124..136]).ok_or_else(|| invalid("a broken size in the tar archive"))?;
            let padding = size.wrapping_neg() % BLOCK as u64;
            // A regular file is `0`, or NUL in old archives. Extended headers, links and directories are passed over.
            if matches!(header[156], b'0' | 0) {
                (self.left, self.padding) = (size, padding);
                return Ok(true);
            }
            self.skip(size.saturating_add(padding))?;
        }
    }

    fn skip(&mut self, count: u64) -> io::Result<()> {
        let skipped = io::copy(&mut (&mut self.archive).take(count), &mut io::sink())?;
        if skipped == count { Ok(()) } else { Err(cut()) }
    }
}

impl<R: Read> Read for TarFiles<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                State::End => return Ok(0),
                State::InFile if self.left > 0 => {
                    let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
                    let count = self.archive.read(&mut buffer[..most])?;
                    if count == 0 {
                        return Err(cut());
                    }
                    self.left -= count as u64;
                    return Ok(count);
                }
                State::InFile => {
                    self.state = if self.next_file()? { State::Between } else { State::End };
                }
                State::Start => {
                    self.state = if self.next_file()? { State::InFile } else { State::End };
                }
                State::Between => {
                    self.state = State::InFile;
                    buffer[0] = b'\n';
                    return Ok(1);
                }
            }
        }
    }
}

/// Fills the block; `false` when the archive ends before it.
fn fill(archive: &mut impl Read, block: &mut [u8; BLOCK]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < BLOCK {
        match archive.read(&mut block[filled..]) {
            // Archives end with two empty blocks; one that just ends is taken too, one that ends within a header not.
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(cut()),
            Ok(count) => filled += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// A number in octal digits, or (GNU, for large ones) in big-endian bytes behind a byte with its top bit set.
fn number(field: &[u8]) -> Option<u64> {
    if let [0x80, bytes @ ..] = field {
        return bytes.iter().try_fold(0_u64, |sum, &byte| Some(sum.checked_mul(256)? + u64::from(byte)));
    }
    let digits = field.split(|byte| matches!(byte, b' ' | 0)).find(|part| !part.is_empty())?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the tar archive ends in the middle of a file")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn entry(name: &str, kind: u8, contents: &[u8]) -> Vec<u8> {
        let mut block = [0; BLOCK];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[124..136].copy_from_slice(format!("{:011o}\0", contents.len()).as_bytes());
        block[148..156].fill(b' ');
        block[156] = kind;
        block[257..263].copy_from_slice(b"ustar\0");
        let sum: u64 = block.iter().map(|&byte| u64::from(byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let mut entry = block.to_vec();
        entry.extend_from_slice(contents);
        entry.resize(entry.len().next_multiple_of(BLOCK), 0);
        entry
    }

    pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive: Vec<u8> =
            files.iter().flat_map(|(name, contents)| entry(name, b'0', contents)).collect();
        archive.resize(archive.len() + 2 * BLOCK, 0);
        archive
    }

    fn text(archive: &[u8]) -> io::Result<String> {
        let mut text = String::new();
        TarFiles::new(archive).read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn files_follow_each_other_on_lines_of_their_own() {
        let long = "x".repeat(700);
        let packed = archive(&[("a", b"one"), ("empty", b""), ("b", long.as_bytes())]);
        assert!(is_header(&packed));
        assert_eq!(text(&packed).unwrap(), format!("one\n\n{long}"));
    }

    #[test]
    fn directories_and_extended_headers_are_passed_over() {
        let mut packed = entry("./", b'5', b"");
        packed.extend(entry("pax", b'x', b"30 mtime=1\n"));
        packed.extend(archive(&[("a", b"1 2")]));
        assert_eq!(text(&packed).unwrap(), "1 2");
    }

    #[test]
    fn a_cut_or_broken_archive_is_an_error() {
        let packed = archive(&[("a", &[b'x'; 600])]);
        assert_eq!(text(&packed[..BLOCK + 100]).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let mut two = archive(&[("a", b"1"), ("b", b"2")]);
        two[2 * BLOCK + 5] ^= 1;
        assert_eq!(text(&two).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
