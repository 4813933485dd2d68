//! Any bytes from a cluster client of Sentinel are answered or skipped, frame by frame; and a ping
//! that follows is answered.
#![no_main]

mod serving;

use libfuzzer_sys::fuzz_target;
use serving::{SERVER, send};

/// A ping of the namespace `n`: its length, number, type, and the name with its length.
const PING: &[u8] = b"\0\x0a\0\0\0\x07\0\0\0\0\x01n";

/// The input as frames, each with a length of one byte and a type.
fn frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    while let [length, kind, rest @ ..] = bytes {
        let (content, after) = rest.split_at((*length as usize).min(rest.len()));
        frames.extend_from_slice(&(content.len() as u16 + 5).to_be_bytes());
        frames.extend_from_slice(&[0, 0, 0, 1, *kind]);
        frames.extend_from_slice(content);
        bytes = after;
    }
    frames
}

fuzz_target!(|bytes: &[u8]| {
    send(SERVER.sentinel, bytes);
    let answer = send(SERVER.sentinel, &[&frames(bytes), PING].concat());
    // The last response is the pong: its number is 7.
    assert!(
        answer.windows(5).any(|window| window == [0, 0, 0, 7, 0]),
        "the ping has no answer"
    );
});
