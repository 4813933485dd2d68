//! Random RESP frames.

use std::io::Read;

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};

use crate::{
    RULES,
    harness::{Resp, Running},
    size,
};

/// A frame, a prefix of one, or other bytes. Without AUTH, because the reply to a wrong password is delayed.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        4 => prop_oneof!["ACQUIRE", "PEEK", "REFUND", "BLOCK", "CL.THROTTLE",  "HELLO", "COMMAND", "INFO", "MULTI"]
            .prop_map(String::into_bytes),
        3 => prop_oneof!["per-user", "logins", "alice", "-1", "0", "3", "99999999999", "\\*"].prop_map(String::into_bytes),
        1 => prop::collection::vec(any::<u8>(), 0..40),
    ];
    let frame = prop::collection::vec(word, 0..6).prop_map(|words| {
        let mut frame = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            frame.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            frame.extend_from_slice(&word);
            frame.extend_from_slice(b"\r\n");
        }
        frame
    });
    let broken =
        (frame.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(|(mut frame, at, byte)| {
            let at = at.index(frame.len());
            frame[at] = byte;
            frame
        });
    prop_oneof![4 => frame, 3 => broken, 1 => prop::collection::vec(any::<u8>(), 1..64)]
}

#[test]
fn random_frames_are_answered_or_refused_and_never_stop_the_server() {
    let server = Running::with_rules("attack-frames", RULES);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = bytes();
    let (frames, pipeline) = (size(5_000, 250_000), 25);
    for round in 0..frames / pipeline {
        let sent: Vec<u8> =
            (0..pipeline).flat_map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
        let mut client = Resp::connect(server.resp);
        // The server may close the connection after any of them.
        let _ = client.try_send(&sent);
        let _ = client.stream().shutdown(std::net::Shutdown::Write);
        let mut replies = Vec::new();
        let _ = client.stream().read_to_end(&mut replies);
        assert!(sent.is_empty() || replies.is_empty() || b"+-:$*%=_".contains(&replies[0]), "round {round}");
    }
    assert_eq!(server.resp("PING"), "PONG");
}
