//! The reply side: what is written to a client, in version 2 or 3 of the protocol.

use crate::Protocol;

/// The longest integer, in bytes: its kind, a sign, nineteen digits, and the end of the line.
const LONGEST: usize = 1 + 1 + 19 + 2;

/// A number as the protocol has them: at most 2⁶³ − 1.
#[inline]
pub(super) fn to_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Replies to one client, appended to its output.
pub(super) struct Replies<'a> {
    pub out: &'a mut Vec<u8>,
    pub protocol: Protocol,
}

impl Replies<'_> {
    /// `+OK`
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text without line breaks.
    pub fn simple(&mut self, text: &'static str) {
        self.out.push(b'+');
        self.out.extend_from_slice(text.as_bytes());
        self.end();
    }

    /// An error that begins with its code. Line breaks become blanks, because the text may quote
    /// what a client sent.
    pub fn error(&mut self, text: &str) {
        self.out.push(b'-');
        self.out.extend(
            text.bytes()
                .map(|byte| if byte.is_ascii_control() { b' ' } else { byte }),
        );
        self.end();
    }

    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.integers([number]);
    }

    /// Integers, each a reply or an element of an array.
    #[inline]
    pub fn integers<const N: usize>(&mut self, numbers: [i64; N]) {
        // In one piece: the output's bounds are checked once, not for each byte.
        let mut text = [[0; LONGEST]; N];
        let text = text.as_flattened_mut();
        let mut end = 0;
        for number in numbers {
            let line = &mut text[end..];
            // Most numbers are below ten, where a table is faster than a formatter.
            end += if let Ok(digit @ 0..=9) = u8::try_from(number) {
                line[..4].copy_from_slice(&[b':', b'0' + digit, b'\r', b'\n']);
                4
            } else {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(number).as_bytes();
                line[0] = b':';
                line[1..=digits.len()].copy_from_slice(digits);
                line[1 + digits.len()..][..2].copy_from_slice(b"\r\n");
                digits.len() + 3
            };
        }
        self.out.extend_from_slice(&text[..end]);
    }

    /// A non-negative integer, at most 2⁶³ − 1, the protocol's maximum.
    #[inline]
    pub fn count(&mut self, number: u64) {
        self.integer(to_integer(number));
    }

    #[inline]
    pub fn array(&mut self, length: usize) {
        self.length(b'*', length);
    }

    /// Starts a list of pairs: a map in version 3, a flat array in version 2.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.length(b'*', 2 * pairs),
            Protocol::Resp3 => self.length(b'%', pairs),
        }
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.length(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.end();
    }

    /// Texts, each a reply or an element of an array.
    pub fn texts<const N: usize>(&mut self, texts: [&str; N]) {
        for text in texts {
            self.bulk(text.as_bytes());
        }
    }

    /// A number with a fraction: a double in version 3, its text in version 2.
    pub fn double(&mut self, number: f64) {
        let text = number.to_string();
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.out.push(b',');
                self.out.extend_from_slice(text.as_bytes());
                self.end();
            }
        }
    }

    /// A text for people.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.length(b'=', text.len() + 4);
                self.out.extend_from_slice(b"txt:");
                self.out.extend_from_slice(text.as_bytes());
                self.end();
            }
        }
    }

    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    #[inline]
    fn length(&mut self, kind: u8, length: usize) {
        let at = self.out.len();
        self.integers([i64::try_from(length).unwrap_or(i64::MAX)]);
        self.out[at] = kind;
    }

    #[inline]
    fn end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }
}
