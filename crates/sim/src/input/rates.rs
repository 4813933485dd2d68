//! Requests per second: one number for each second, separated by blanks or line ends.

use std::io::{self, BufRead};

use super::line::LineError;

/// The maximum length of a number; a longer run of bytes without a blank is not a number.
const MAX_WORD: usize = 32;

/// Reads the next word; `Ok(None)` at the end of the stream.
pub(super) fn read_count(input: &mut impl BufRead) -> io::Result<Option<Result<u32, LineError>>> {
    let (mut word, mut length) = ([0; MAX_WORD], 0);
    loop {
        let available = match input.fill_buf() {
            Ok(available) => available,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        if available.is_empty() {
            break;
        }
        let mut used = 0;
        let mut ended = false;
        for &byte in available {
            used += 1;
            if !byte.is_ascii_whitespace() {
                if let Some(place) = word.get_mut(length) {
                    *place = byte;
                }
                length = length.saturating_add(1);
            } else if length > 0 {
                ended = true;
                break;
            }
        }
        input.consume(used);
        if ended {
            break;
        }
    }
    if length == 0 {
        return Ok(None);
    }
    let digits = word.get(..length).filter(|word| word.iter().all(u8::is_ascii_digit));
    let count = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    Ok(Some(count.ok_or(LineError::NotCount)))
}
