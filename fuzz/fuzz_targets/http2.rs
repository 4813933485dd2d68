//! Any bytes after the beginning of HTTP/2, through the accept loops of HTTP and gRPC: the
//! connection ends, and others are served.
#![no_main]

mod serving;

use libfuzzer_sys::fuzz_target;
use serving::{SERVER, post, send};

const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const ASK: &[u8] = br#"{"limit":"a","key":"k"}"#;

/// The input as frames: a type, flags, a stream and a length, one byte each, and the content. Other
/// lengths than that of the content are rare, so most frames are whole.
fn frames(mut bytes: &[u8]) -> Vec<u8> {
    let mut frames = Vec::new();
    while let [kind, flags, stream, length, rest @ ..] = bytes {
        let (content, after) = rest.split_at((*length as usize).min(rest.len()));
        let told = if *kind > 0xf0 {
            *length as usize
        } else {
            content.len()
        };
        frames.extend_from_slice(&[
            0,
            (told >> 8) as u8,
            told as u8,
            *kind % 12,
            *flags,
            0,
            0,
            0,
            *stream,
        ]);
        frames.extend_from_slice(content);
        bytes = after;
    }
    frames
}

fuzz_target!(|bytes: &[u8]| {
    let (first, bytes) = bytes.split_first().unwrap_or((&0, &[]));
    let address = if first & 1 == 0 {
        SERVER.http
    } else {
        SERVER.grpc
    };
    let sent = if first & 2 == 0 {
        frames(bytes)
    } else {
        bytes.to_vec()
    };
    send(address, &[GREETING, &sent].concat());
    if first & 0xfc == 0 {
        assert_eq!(post(SERVER.http, "/v1/peek", ASK), 200);
    }
});
