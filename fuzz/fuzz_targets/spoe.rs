//! Any bytes from HAProxy are answered, or end the connection; and the limit is never exceeded.
#![no_main]

use std::{cell::RefCell, time::Duration};

use libfuzzer_sys::fuzz_target;
use tidegate_server::spoe::Conversations;

const RULES: &str = "limits: [{name: a, limit: 2/1h, algorithm: sliding-log, global: true}, {name: k, limit: 3/1m}]";
/// A handshake, and one message for the limit `a`.
const HELLO: &[u8] =
    b"\x01\0\0\0\x01\0\0\x12supported-versions\x08\x032.0\x0emax-frame-size\x03\xfc\xf0\x06\x0ccapabilities\x08\x0apipelining";
const ASK: &[u8] = b"\x03\0\0\0\x01\x01\x01\x01m\x01\x05limit\x08\x01a";
const ADMITTED: &[u8] = b"\x06denied\x01";

thread_local! {
    static AGENT: RefCell<Conversations> = RefCell::new(Conversations::new(RULES));
}

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
    AGENT.with_borrow_mut(|agent| {
        agent.advance(Duration::from_secs(7_200));
        let _ = agent.hold(bytes);
        // The input's frames end at 0xFE, which is rare in them.
        let frames = bytes.split(|byte| *byte == 0xfe);
        let (_, answered) = agent.hold(&framed([HELLO].into_iter().chain(frames)));
        assert!(answered.len() > 4, "the handshake is answered");
        let (ended_well, answered) = agent.hold(&framed([HELLO, ASK, ASK, ASK]));
        let admitted = answered.windows(ADMITTED.len()).filter(|window| *window == ADMITTED).count();
        assert!(ended_well && admitted <= 2, "{admitted} admitted");
    });
});
