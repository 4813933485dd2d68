//! Any bytes from HAProxy are answered, or end the connection; and the limit is never exceeded.
#![no_main]

mod serving;

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use serving::{SERVER, send};

/// A handshake, and one message for the limit `two`.
const HELLO: &[u8] =
    b"\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x0apipelining";
const ASK: &[u8] = b"\x03\0\0\0\x01\x01\x01\x01m\x01\x05limit\x08\x03two";
const ANSWERED: &[u8] = b"\x06denied";
const ADMITTED: &[u8] = b"\x06denied\x01";

/// These frames, each with its length.
fn framed<'f>(frames: impl IntoIterator<Item = &'f [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for frame in frames {
        bytes.extend((frame.len() as u32).to_be_bytes());
        bytes.extend(frame);
    }
    bytes
}

fuzz_target!(|bytes: &[u8]| {
    SERVER.advance(Duration::from_secs(7_200));
    send(SERVER.spoe, bytes);
    // The input's frames end at 0xFE, which is rare in them.
    let frames = bytes.split(|byte| *byte == 0xfe);
    send(SERVER.spoe, &framed([HELLO].into_iter().chain(frames)));
    let answered = send(SERVER.spoe, &framed([HELLO, ASK, ASK, ASK]));
    let count = |part: &[u8]| {
        answered
            .windows(part.len())
            .filter(|window| *window == part)
            .count()
    };
    assert_eq!(count(ANSWERED), 3, "all are answered");
    assert!(count(ADMITTED) <= 2, "{} admitted", count(ADMITTED));
});
