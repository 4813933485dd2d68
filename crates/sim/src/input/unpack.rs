//! Unpacks a file by its first bytes: gzip, bzip2, xz, zstd, a tar archive, or several of these.

use std::io::{self, BufRead, BufReader, Read};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

/// The size of the buffer before each layer.
const BUFFER: usize = 64 * 1024;
/// No ordinary log has more layers than a tar in a gzip in a tar; a file with more of them is meant to do harm.
const MAX_LAYERS: usize = 4;
/// A tar header is one block.
const TAR_BLOCK: usize = 512;

/// Unpacks `input` until the rest is text, and passes each text to `visit`: one, or each file of a tar archive.
///
/// # Errors
/// The errors of `visit` and of reading. Among the latter are [`io::ErrorKind::Unsupported`], with advice, for a format that
/// is recognised but not supported, and [`io::ErrorKind::InvalidData`] for more than four layers.
pub fn unpack<E: From<io::Error>>(
    input: impl Read,
    mut visit: impl FnMut(&mut dyn BufRead) -> Result<(), E>,
) -> Result<(), E> {
    unwrap(Box::new(BufReader::with_capacity(BUFFER, input)), 0, &mut visit)
}

type Visit<'v, E> = dyn FnMut(&mut dyn BufRead) -> Result<(), E> + 'v;

fn unwrap<E: From<io::Error>>(
    input: Box<dyn BufRead + '_>,
    layers: usize,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    let (head, mut whole) = peek(input)?;
    let layer = layer(&head);
    if layers >= MAX_LAYERS && layer != Layer::Text {
        let deep = "packed more than four times over; unpack it first";
        return Err(io::Error::new(io::ErrorKind::InvalidData, deep).into());
    }
    let layers = layers + 1;
    match layer {
        Layer::Text => visit(&mut whole),
        Layer::Gzip => unwrap(buffered(MultiGzDecoder::new(whole)), layers, visit),
        Layer::Bzip2 => unwrap(buffered(MultiBzDecoder::new(whole)), layers, visit),
        Layer::Xz => unwrap(buffered(XzReader::new(whole, true)), layers, visit),
        Layer::Zstd => unwrap(buffered(ZstdFrames::new(whole)), layers, visit),
        Layer::Tar => {
            let mut archive = tar::Archive::new(whole);
            for entry in archive.entries()? {
                let entry = entry?;
                if entry.header().entry_type().is_file() {
                    unwrap(buffered(entry), layers, visit)?;
                }
            }
            Ok(())
        }
        Layer::Foreign { name, command } => {
            let text =
                format!("this is {name}, which is not read here; pipe it: {command} | tidegate simulate - …");
            Err(io::Error::new(io::ErrorKind::Unsupported, text).into())
        }
    }
}

fn buffered<'a>(input: impl Read + 'a) -> Box<dyn BufRead + 'a> {
    Box::new(BufReader::with_capacity(BUFFER, input))
}

/// The first bytes (at most as many as a tar header has), and the input with them still in front.
fn peek<'a>(mut input: Box<dyn BufRead + 'a>) -> io::Result<(Vec<u8>, Box<dyn BufRead + 'a>)> {
    let mut head = Vec::with_capacity(TAR_BLOCK);
    (&mut input).take(TAR_BLOCK as u64).read_to_end(&mut head)?;
    let whole = io::Cursor::new(head.clone()).chain(input);
    Ok((head, Box::new(whole)))
}

/// A sequence of frames, as `zstd` appends them; one decoder reads one frame.
struct ZstdFrames<R: BufRead> {
    /// `None` between two frames: then `input` holds the input.
    frame: Option<StreamingDecoder<R, ruzstd::decoding::FrameDecoder>>,
    input: Option<R>,
}

impl<R: BufRead> ZstdFrames<R> {
    const fn new(input: R) -> Self {
        Self { frame: None, input: Some(input) }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let damaged =
            |error: &dyn std::fmt::Display| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(out)?;
                if read > 0 || out.is_empty() {
                    return Ok(read);
                }
                self.input = self.frame.take().map(StreamingDecoder::into_inner);
            }
            let Some(input) = &mut self.input else { return Ok(0) };
            if input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let Some(input) = self.input.take() else { return Ok(0) };
            self.frame = Some(StreamingDecoder::new(input).map_err(|error| damaged(&error))?);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Text,
    Gzip,
    Bzip2,
    Xz,
    Zstd,
    Tar,
    Foreign { name: &'static str, command: &'static str },
}

fn layer(head: &[u8]) -> Layer {
    match head {
        [0x1f, 0x8b, ..] => Layer::Gzip,
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Layer::Bzip2,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Layer::Zstd,
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Layer::Xz,
        [b'P', b'K', 3, 4, ..] => Layer::Foreign { name: "a zip archive", command: "unzip -p FILE" },
        [0x04, 0x22, 0x4d, 0x18, ..] => Layer::Foreign { name: "lz4", command: "lz4 -dc FILE" },
        _ if is_tar(head) => Layer::Tar,
        _ => Layer::Text,
    }
}

/// Whether a first block is a tar header: its checksum is right (the checksum's own field counts as blanks).
fn is_tar(head: &[u8]) -> bool {
    if head.len() < TAR_BLOCK {
        return false;
    }
    let header = tar::Header::from_byte_slice(&head[..TAR_BLOCK]);
    let field = 148..156;
    let sum = |at: usize| if field.contains(&at) { 32 } else { u32::from(head[at]) };
    header.cksum().is_ok_and(|told| told == (0..TAR_BLOCK).map(sum).sum::<u32>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn texts(packed: &[u8]) -> io::Result<Vec<String>> {
        let mut texts = Vec::new();
        unpack(packed, |input| {
            let mut text = String::new();
            input.read_to_string(&mut text)?;
            texts.push(text);
            Ok::<(), io::Error>(())
        })?;
        Ok(texts)
    }

    fn text(packed: &[u8]) -> io::Result<String> {
        texts(packed).map(|texts| texts.concat())
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(text).unwrap();
        packed.finish().unwrap()
    }

    fn bzip2(text: &[u8]) -> Vec<u8> {
        let mut packed = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        packed.write_all(text).unwrap();
        packed.finish().unwrap()
    }

    fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        for (name, text) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, name, *text).unwrap();
        }
        archive.into_inner().unwrap()
    }

    /// `printf '1 2 3\n' | zstd` and `| xz`.
    const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd\x04\x58\x31\x00\x00\x31\x20\x32\x20\x33\x0a\x2a\x71\x24\x71";
    const XZ: &[u8] = b"\xfd\x37\x7a\x58\x5a\x00\x00\x04\xe6\xd6\xb4\x46\x02\x00\x21\x01\x16\x00\x00\x00\x74\x2f\xe5\xa3\x01\x00\x05\x31\x20\x32\x20\x33\x0a\x00\x00\x00\xe3\x4d\x3a\x5d\x05\xc7\x88\x46\x00\x01\x1e\x06\xc1\x2f\xa4\x1d\x1f\xb6\xf3\x7d\x01\x00\x00\x00\x00\x04\x59\x5a";

    #[test]
    fn the_same_text_comes_out_of_every_wrapping() {
        let plain = b"1 2 3\n";
        let tar = archive(&[("workload.txt", plain)]);
        for packed in [
            plain.to_vec(),
            gzip(plain),
            bzip2(plain),
            ZSTD.to_vec(),
            XZ.to_vec(),
            tar.clone(),
            gzip(&tar),
            bzip2(&gzip(&tar)),
            gzip(&archive(&[("log.zst", ZSTD)])),
        ] {
            assert_eq!(text(&packed).unwrap(), "1 2 3\n");
        }
    }

    #[test]
    fn members_after_the_first_are_read_too() {
        for packed in [[gzip(b"1 2 3\n"), gzip(b"two\n")], [bzip2(b"1 2 3\n"), bzip2(b"two\n")]] {
            assert_eq!(text(&packed.concat()).unwrap(), "1 2 3\ntwo\n");
        }
        for packed in [ZSTD, XZ] {
            assert_eq!(text(&packed.repeat(2)).unwrap(), "1 2 3\n1 2 3\n");
        }
    }

    #[test]
    fn every_file_of_an_archive_is_a_text_of_its_own() {
        let tar = archive(&[("a.log", b"one"), ("b.log.gz", &gzip(b"two")), ("c/d.log", b"three")]);
        assert_eq!(texts(&tar).unwrap(), ["one", "two", "three"]);
    }

    #[test]
    fn an_empty_file_is_empty_text() {
        assert_eq!(text(b"").unwrap(), "");
    }

    #[test]
    fn a_cut_file_is_an_error_and_not_a_short_text() {
        let tar = archive(&[("a.log", &[b'x'; 2_000])]);
        for packed in [&gzip(b"some lines of text\n")[..], &bzip2(b"some lines of text\n"), ZSTD, XZ] {
            assert!(text(&packed[..packed.len() - 5]).is_err());
        }
        assert!(text(&tar[..1_000]).is_err());
    }

    #[test]
    fn a_format_that_is_not_read_says_how_to_pipe_it() {
        let error = text(b"PK\x03\x04....").unwrap_err();
        assert!(error.to_string().contains("unzip -p FILE |"), "{error}");
    }

    #[test]
    fn archives_nested_too_deep_are_refused() {
        let deep = |layers| (0..layers).fold(b"text".to_vec(), |inner, _| gzip(&inner));
        assert_eq!(text(&deep(4)).unwrap(), "text");
        assert_eq!(text(&deep(5)).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
