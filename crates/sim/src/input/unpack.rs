//! Unpacks a file by its first bytes: gzip, bzip2, xz, zstd, a tar archive, or several of these.

use std::io::{self, BufRead, BufReader, Read};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;

/// The size of the buffer before each layer.
const BUFFER: usize = 64 * 1024;
/// No ordinary log has more layers than a tar in a gzip in a tar; a file with more of them is meant
/// to do harm.
const MAX_LAYERS: usize = 4;
/// A tar header is one block.
const TAR_BLOCK: usize = 512;

/// Unpacks `input` until the rest is text, and passes each text to `visit`: one, or each file of a
/// tar archive.
///
/// # Errors
/// The errors of `visit` and of reading. Among the latter are [`io::ErrorKind::Unsupported`], with
/// advice, for a format that is recognised but not supported, and [`io::ErrorKind::InvalidData`]
/// for more than four layers.
pub fn unpack<E: From<io::Error>>(
    input: impl Read,
    mut visit: impl FnMut(&mut dyn BufRead) -> Result<(), E>,
) -> Result<(), E> {
    unwrap(
        Box::new(BufReader::with_capacity(BUFFER, input)),
        0,
        &mut visit,
    )
}

type Visit<'v, E> = dyn FnMut(&mut dyn BufRead) -> Result<(), E> + 'v;

fn unwrap<E: From<io::Error>>(
    input: Box<dyn BufRead + '_>,
    layers: usize,
    visit: &mut Visit<'_, E>,
) -> Result<(), E> {
    if layers > MAX_LAYERS {
        let deep = "packed more than four times over; unpack it first";
        return Err(io::Error::new(io::ErrorKind::InvalidData, deep).into());
    }
    let (head, mut whole) = peek(input)?;
    let mut unwrap_next = |inner: Box<dyn Read + '_>| {
        unwrap(
            Box::new(BufReader::with_capacity(BUFFER, inner)),
            layers + 1,
            visit,
        )
    };
    match head[..] {
        [0x1f, 0x8b, ..] => unwrap_next(Box::new(MultiGzDecoder::new(whole))),
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => unwrap_next(Box::new(MultiBzDecoder::new(whole))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => unwrap_next(Box::new(ZstdFrames::new(whole))),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => unwrap_next(Box::new(XzReader::new(whole, true))),
        [b'P', b'K', 3, 4, ..] => Err(foreign("a zip archive", "unzip -p FILE").into()),
        [0x04, 0x22, 0x4d, 0x18, ..] => Err(foreign("lz4", "lz4 -dc FILE").into()),
        _ if is_tar(&head) => {
            for entry in tar::Archive::new(whole).entries()? {
                let entry = entry?;
                if entry.header().entry_type().is_file() {
                    unwrap_next(Box::new(entry))?;
                }
            }
            Ok(())
        }
        _ => visit(&mut whole),
    }
}

/// Whether these are the first bytes of what [`unpack`] unpacks, or knows and does not unpack.
pub fn is_packed(head: &[u8]) -> bool {
    let begins: [&[u8]; 6] = [
        &[0x1f, 0x8b],
        b"BZh",
        &[0x28, 0xb5, 0x2f, 0xfd],
        &[0xfd, b'7', b'z', b'X', b'Z', 0],
        b"PK\x03\x04",
        &[0x04, 0x22, 0x4d, 0x18],
    ];
    begins.iter().any(|begin| head.starts_with(begin)) || is_tar(head)
}

/// The error for a format that is recognised but not read.
fn foreign(name: &str, command: &str) -> io::Error {
    let text = format!(
        "this is {name}, which is not read here; pipe it: {command} | tidegate simulate - …"
    );
    io::Error::new(io::ErrorKind::Unsupported, text)
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
        Self {
            frame: None,
            input: Some(input),
        }
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let damaged = |error: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidData, error.to_string())
        };
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(out)?;
                if read > 0 || out.is_empty() {
                    return Ok(read);
                }
                self.input = self.frame.take().map(StreamingDecoder::into_inner);
            }
            let Some(input) = &mut self.input else {
                return Ok(0);
            };
            if input.fill_buf()?.is_empty() {
                return Ok(0);
            }
            let Some(input) = self.input.take() else {
                return Ok(0);
            };
            self.frame = Some(StreamingDecoder::new(input).map_err(|error| damaged(&error))?);
        }
    }
}

/// Whether a first block is a tar header: its checksum is right (the checksum's own field counts as
/// blanks).
fn is_tar(head: &[u8]) -> bool {
    if head.len() < TAR_BLOCK {
        return false;
    }
    let header = tar::Header::from_byte_slice(&head[..TAR_BLOCK]);
    let field = 148..156;
    let sum = |at: usize| {
        if field.contains(&at) {
            32
        } else {
            u32::from(head[at])
        }
    };
    header
        .cksum()
        .is_ok_and(|stated| stated == (0..TAR_BLOCK).map(sum).sum::<u32>())
}
