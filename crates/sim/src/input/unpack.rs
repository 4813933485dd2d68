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
