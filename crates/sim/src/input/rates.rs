//! Requests per second: one number for each second, separated by blanks or line ends.

use std::io::{self, BufRead, Read};

use super::line::LineError;

/// The maximum length of a number; a longer run of bytes without a blank is not a number.
const MAX_WORD: usize = 32;

/// Reads the next word; `Ok(None)` at the end of the stream.
pub(super) fn read_count(input: &mut impl BufRead) -> io::Result<Option<Result<u32, LineError>>> {
    let mut word = String::new();
    for byte in input.bytes() {
        let byte = byte?;
        if byte.is_ascii_whitespace() {
            if word.is_empty() {
                continue;
            }
            break;
        }
        // What is too long stays so without the rest of it.
        if word.len() <= MAX_WORD {
            word.push(byte.into());
        }
    }
    if word.is_empty() {
        return Ok(None);
    }
    let is_number = word.len() <= MAX_WORD && word.bytes().all(|byte| byte.is_ascii_digit());
    let count = word.parse().ok().filter(|_| is_number);
    Ok(Some(count.ok_or(LineError::NotCount)))
}
