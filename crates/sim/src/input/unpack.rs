//! What a file is wrapped in, told by its first bytes: gzip, bzip2, a tar archive, or several of these.

use std::io::{self, BufRead, BufReader, Read};

use bzip2::read::MultiBzDecoder;
use flate2::read::MultiGzDecoder;

use super::tar::{self, TarFiles};

/// How much is buffered before each layer.
const BUFFER: usize = 64 * 1024;
/// A log in a tar in a gzip in a tar is as deep as anybody packs; a file that nests further was made to hurt.
const MAX_LAYERS: usize = 4;

/// Unwraps `input` until what is left is text.
///
/// # Errors
/// Those of reading; [`io::ErrorKind::Unsupported`], with what to do, for a format that is recognised but not read; and
/// [`io::ErrorKind::InvalidData`] for more than four layers.
pub fn unpack<'a>(input: impl Read + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let mut input: Box<dyn BufRead + 'a> = Box::new(BufReader::with_capacity(BUFFER, input));
    for _ in 0..=MAX_LAYERS {
        let (head, whole) = peek(input)?;
        input = match layer(&head) {
            Layer::Text => return Ok(whole),
            Layer::Gzip => buffered(MultiGzDecoder::new(whole)),
            Layer::Bzip2 => buffered(MultiBzDecoder::new(whole)),
            Layer::Tar => buffered(TarFiles::new(whole)),
            Layer::Foreign { name, command } => {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    format!(
                        "this is {name}, which is not read here; pipe it: {command} | tidegate simulate - …"
                    ),
                ));
            }
        };
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "packed more than four times over; unpack it first"))
}

fn buffered<'a>(input: impl Read + 'a) -> Box<dyn BufRead + 'a> {
    Box::new(BufReader::with_capacity(BUFFER, input))
}

/// The first bytes (as many as a tar header has, where there are as many), and the input with them still in front.
fn peek<'a>(mut input: Box<dyn BufRead + 'a>) -> io::Result<(Vec<u8>, Box<dyn BufRead + 'a>)> {
    let mut head = Vec::with_capacity(tar::BLOCK);
    (&mut input).take(tar::BLOCK as u64).read_to_end(&mut head)?;
    let whole = io::Cursor::new(head.clone()).chain(input);
    Ok((head, Box::new(whole)))
}

enum Layer {
    Text,
    Gzip,
    Bzip2,
    Tar,
    Foreign { name: &'static str, command: &'static str },
}

fn layer(head: &[u8]) -> Layer {
    match head {
        [0x1f, 0x8b, ..] => Layer::Gzip,
        [b'B', b'Z', b'h', b'1'..=b'9', ..] => Layer::Bzip2,
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Layer::Foreign { name: "zstd", command: "zstd -dc FILE" },
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Layer::Foreign { name: "xz", command: "xz -dc FILE" },
        [b'P', b'K', 3, 4, ..] => Layer::Foreign { name: "a zip archive", command: "unzip -p FILE" },
        _ if tar::is_header(head) => Layer::Tar,
        _ => Layer::Text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn text(packed: &[u8]) -> io::Result<String> {
        let mut text = String::new();
        unpack(packed)?.read_to_string(&mut text)?;
        Ok(text)
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

    #[test]
    fn the_same_text_comes_out_of_every_wrapping() {
        let plain = b"1 2 3\n";
        let tar = tar::tests::archive(&[("workload.txt", plain)]);
        for packed in [plain.to_vec(), gzip(plain), bzip2(plain), tar.clone(), gzip(&tar), bzip2(&gzip(&tar))]
        {
            assert_eq!(text(&packed).unwrap(), "1 2 3\n");
        }
    }

    #[test]
    fn members_after_the_first_are_read_too() {
        let rotated = [gzip(b"one\n"), gzip(b"two\n")].concat();
        assert_eq!(text(&rotated).unwrap(), "one\ntwo\n");
        let rotated = [bzip2(b"one\n"), bzip2(b"two\n")].concat();
        assert_eq!(text(&rotated).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn an_empty_file_is_empty_text() {
        assert_eq!(text(b"").unwrap(), "");
    }

    #[test]
    fn a_cut_file_is_an_error_and_not_a_short_text() {
        for packed in [gzip(b"some lines of text\n"), bzip2(b"some lines of text\n")] {
            assert!(text(&packed[..packed.len() - 5]).is_err());
        }
    }

    #[test]
    fn a_format_that_is_not_read_says_how_to_pipe_it() {
        let error = text(b"\x28\xb5\x2f\xfd....").unwrap_err();
        assert!(error.to_string().contains("zstd -dc FILE |"), "{error}");
    }

    #[test]
    fn what_is_packed_too_deep_is_refused() {
        let deep = (0..6).fold(b"text".to_vec(), |inner, _| gzip(&inner));
        assert_eq!(text(&deep).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
