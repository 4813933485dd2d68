//! The request side of the Redis protocol: arrays of bulk strings, and inline commands.
//!
//! A pure function of the bytes so far: it keeps no state, allocates nothing and copies nothing. An
//! incomplete frame is parsed again when more bytes have arrived; [`MAX_FRAME`] bounds that cost.

use std::ops::Range;

/// The longest frame, in bytes.
pub const MAX_FRAME: usize = 16 * 1024;
/// The longest single argument, in bytes.
pub const MAX_BULK: usize = 4 * 1024;
/// The maximum number of arguments in one frame, including the command's name.
pub const MAX_ARGS: usize = 64;

/// The arguments of one command, as slices of the input.
#[derive(Debug)]
pub struct Args<'a> {
    items: [&'a [u8]; MAX_ARGS],
    /// Before them are the arguments of frames that [`Ahead`] keeps.
    begin: usize,
    len: usize,
}

impl<'a> Args<'a> {
    /// No arguments yet. One value can be reused for many frames.
    pub const fn new() -> Self {
        Self {
            items: [&[]; MAX_ARGS],
            begin: 0,
            len: 0,
        }
    }

    /// The arguments of the last parsed frame; empty for an empty line.
    pub fn get(&self) -> &[&'a [u8]] {
        &self.items[self.begin..self.len]
    }

    fn push(&mut self, item: &'a [u8]) -> Result<(), ProtocolError> {
        let slot = self
            .items
            .get_mut(self.len)
            .ok_or(ProtocolError::TooManyArguments)?;
        *slot = item;
        self.len += 1;
        Ok(())
    }
}

impl Default for Args<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Why bytes are not a request. The rest of the input cannot be parsed, so the connection is
/// closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The text after `*` is not a number.
    #[error("Protocol error: invalid multibulk length")]
    MultibulkLength,
    /// More than [`MAX_ARGS`] arguments.
    #[error("Protocol error: more than {MAX_ARGS} arguments")]
    TooManyArguments,
    /// An argument does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", _0.escape_ascii())]
    ExpectedBulk(u8),
    /// The text after `$` is not a number, or is negative.
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    /// An argument longer than [`MAX_BULK`].
    #[error("Protocol error: an argument longer than {MAX_BULK} bytes")]
    BulkTooLong,
    /// An argument that is not followed by CR LF.
    #[error("Protocol error: expected CR LF after an argument")]
    BulkEnd,
    /// A frame longer than [`MAX_FRAME`].
    #[error("Protocol error: a command longer than {MAX_FRAME} bytes")]
    FrameTooLong,
    /// An inline command has unbalanced quotes, or an escape inside quotes.
    #[error("Protocol error: unbalanced quotes or an escape in an inline request")]
    Quotes,
    /// An HTTP request arrived at this port, perhaps from a browser that was tricked into sending
    /// it.
    #[error("Protocol error: this port speaks the Redis protocol; HTTP has another port")]
    Http,
}

/// Parses one frame at the start of `input`. Stores its arguments in `args` and returns its length
/// in bytes, or `None` while the frame is incomplete.
///
/// # Errors
/// When no continuation of `input` can be a request.
#[inline]
pub fn parse<'a>(input: &'a [u8], args: &mut Args<'a>) -> Result<Option<usize>, ProtocolError> {
    args.len = 0;
    parse_after(input, args)
}

/// [`parse`], with the arguments after those of the frames before.
#[inline]
fn parse_after<'a>(input: &'a [u8], args: &mut Args<'a>) -> Result<Option<usize>, ProtocolError> {
    args.begin = args.len;
    let end = match input.first() {
        None => return Ok(None),
        Some(b'*') => parse_array(input, args)?,
        Some(_) => parse_inline(input, args)?,
    };
    match end {
        Some(end) if end <= MAX_FRAME => Ok(Some(end)),
        None if input.len() < MAX_FRAME => Ok(None),
        _ => Err(ProtocolError::FrameTooLong),
    }
}

/// How many frames of a pipeline are parsed in advance.
const AHEAD: usize = 16;

/// Complete frames at the start of some input, parsed before the first of them is run.
pub(super) struct Ahead<'a> {
    args: Args<'a>,
    /// The arguments of each frame in `args`, and its length in bytes.
    frames: [(Range<usize>, usize); AHEAD],
    next: usize,
    len: usize,
}

impl<'a> Ahead<'a> {
    pub const fn new() -> Self {
        Self {
            args: Args::new(),
            frames: [const { (0..0, 0) }; AHEAD],
            next: 0,
            len: 0,
        }
    }

    /// The arguments of the next frame, and its length in bytes.
    #[inline]
    pub fn next(&mut self) -> Option<(&[&'a [u8]], usize)> {
        let (args, length) = self.frames[..self.len].get(self.next)?.clone();
        self.next += 1;
        Some((&self.args.items[args], length))
    }

    /// Parses the frames at the start of `input` as far as they have room, and shows each frame
    /// after the first. An error in a later frame is left for when that frame is the first.
    ///
    /// # Errors
    /// When no continuation of `input` can be a request.
    pub fn parse(
        &mut self,
        input: &'a [u8],
        mut show: impl FnMut(&[&'a [u8]]),
    ) -> Result<(), ProtocolError> {
        (self.next, self.len) = (0, 0);
        let Some(mut at) = parse(input, &mut self.args)? else {
            return Ok(());
        };
        self.keep(at);
        while self.len < AHEAD
            && let Ok(Some(length)) = parse_after(&input[at..], &mut self.args)
        {
            show(self.args.get());
            self.keep(length);
            at += length;
        }
        Ok(())
    }

    #[inline]
    fn keep(&mut self, length: usize) {
        self.frames[self.len] = (self.args.begin..self.args.len, length);
        self.len += 1;
    }
}

#[inline]
fn parse_array<'a>(input: &'a [u8], args: &mut Args<'a>) -> Result<Option<usize>, ProtocolError> {
    let Some((count, mut at)) = number(input, 1, ProtocolError::MultibulkLength)? else {
        return Ok(None);
    };
    // Redis treats `*0` and `*-1` as no command.
    let count = usize::try_from(count).unwrap_or(0);
    if count > MAX_ARGS {
        return Err(ProtocolError::TooManyArguments);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::ExpectedBulk(*other)),
        }
        let Some((length, start)) = number(input, at + 1, ProtocolError::BulkLength)? else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| ProtocolError::BulkLength)?;
        if length > MAX_BULK {
            return Err(ProtocolError::BulkTooLong);
        }
        let end = start + length;
        match input.get(end..end + 2) {
            Some(b"\r\n") => {}
            Some(_) => return Err(ProtocolError::BulkEnd),
            None => return Ok(None),
        }
        args.push(&input[start..end])?;
        at = end + 2;
    }
    Ok(Some(at))
}

/// A decimal number and the CR LF after it: its value, and where the next line begins.
#[inline]
fn number(
    input: &[u8],
    from: usize,
    wrong: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    // Most numbers have one digit or two.
    match input.get(from..) {
        Some([ones @ b'0'..=b'9', b'\r', b'\n', ..]) => {
            Ok(Some((i64::from(ones - b'0'), from + 3)))
        }
        Some([tens @ b'0'..=b'9', ones @ b'0'..=b'9', b'\r', b'\n', ..]) => Ok(Some((
            i64::from(tens - b'0') * 10 + i64::from(ones - b'0'),
            from + 4,
        ))),
        _ => long_number(input, from, wrong),
    }
}

#[inline(never)]
fn long_number(
    input: &[u8],
    from: usize,
    wrong: ProtocolError,
) -> Result<Option<(i64, usize)>, ProtocolError> {
    let mut at = from;
    let mut value = 0_i64;
    let negative = input.get(at) == Some(&b'-');
    at += usize::from(negative);
    let digits = at;
    loop {
        match input.get(at) {
            None => return Ok(None),
            // Nine digits exceed every bound here and never overflow.
            Some(digit @ b'0'..=b'9') if at - digits < 9 => {
                value = value * 10 + i64::from(digit - b'0');
            }
            Some(b'\r') if at > digits => break,
            Some(_) => return Err(wrong),
        }
        at += 1;
    }
    match input.get(at + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((if negative { -value } else { value }, at + 2))),
        Some(_) => Err(wrong),
    }
}

/// A line of words separated by blanks; words may be quoted.
#[cold]
fn parse_inline<'a>(input: &'a [u8], args: &mut Args<'a>) -> Result<Option<usize>, ProtocolError> {
    let Some(end) = input.iter().take(MAX_FRAME).position(|byte| *byte == b'\n') else {
        return Ok(None);
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    let mut rest = line.trim_ascii_start();
    while let Some(first) = rest.first() {
        let (word, behind) = if matches!(first, b'"' | b'\'') {
            let close = rest[1..]
                .iter()
                .position(|byte| byte == first)
                .ok_or(ProtocolError::Quotes)?;
            (&rest[1..=close], &rest[close + 2..])
        } else {
            let end = rest
                .iter()
                .position(u8::is_ascii_whitespace)
                .unwrap_or(rest.len());
            (&rest[..end], &rest[end..])
        };
        let ends = behind.first().is_none_or(u8::is_ascii_whitespace);
        let quoted = matches!(first, b'"' | b'\'');
        if !ends || (quoted && word.contains(&b'\\')) {
            return Err(ProtocolError::Quotes);
        }
        args.push(word)?;
        rest = behind.trim_ascii_start();
    }
    let http =
        |name: &[u8]| name.eq_ignore_ascii_case(b"POST") || name.eq_ignore_ascii_case(b"Host:");
    if args.get().first().is_some_and(|name| http(name)) {
        return Err(ProtocolError::Http);
    }
    Ok(Some(end + 1))
}
