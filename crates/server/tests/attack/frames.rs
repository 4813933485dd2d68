//! RESP frames: which are commands, and random ones.

use std::io::Read;

use proptest::{
    prelude::*,
    strategy::ValueTree,
    test_runner::{Config, RngAlgorithm, TestRng, TestRunner},
};
use tidegate_server::resp::{Args, MAX_ARGS, MAX_BULK, MAX_FRAME, ProtocolError, parse};

use crate::{
    RULES,
    harness::{Resp, Running},
    size,
};

/// A frame, a prefix of one, or other bytes. Without AUTH, because the reply to a wrong password is
/// delayed.
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
    let broken = (frame.clone(), any::<prop::sample::Index>(), any::<u8>()).prop_map(
        |(mut frame, at, byte)| {
            let at = at.index(frame.len());
            frame[at] = byte;
            frame
        },
    );
    prop_oneof![4 => frame, 3 => broken, 1 => prop::collection::vec(any::<u8>(), 1..64)]
}

/// What a server replies to these pieces, each of which is sent alone.
fn replies<'a>(server: &Running, mut pieces: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut client = Resp::connect(server.resp);
    // The server may close the connection after any of them.
    let _ = pieces.try_for_each(|piece| client.try_send(piece));
    let _ = client.stream().shutdown(std::net::Shutdown::Write);
    let mut replies = Vec::new();
    let _ = client.stream().read_to_end(&mut replies);
    replies
}

#[test]
fn any_split_into_writes_gives_the_same_answers() {
    let [whole, cut] =
        ["whole", "cut"].map(|name| Running::with_rules(&format!("attack-{name}"), RULES));
    let mut runner = TestRunner::new_with_rng(
        Config::default(),
        TestRng::from_seed(RngAlgorithm::ChaCha, &[8; 32]),
    );
    // `INFO` reports how many commands have run, and commands of one read are counted together.
    // Nothing else is left out.
    let frame = bytes().prop_filter("INFO", |bytes| {
        !bytes
            .to_ascii_uppercase()
            .windows(4)
            .any(|word| word == b"INFO")
    });
    let strategy = prop::collection::vec((frame, 1_usize..30), 1..12);
    for round in 0..size(400, 20_000) {
        let frames = strategy.new_tree(&mut runner).unwrap().current();
        let sent: Vec<u8> = frames
            .iter()
            .flat_map(|(frame, _)| frame)
            .copied()
            .collect();
        let mut rest = &sent[..];
        let pieces = frames.iter().cycle().map_while(|(_, length)| {
            let (piece, after) = rest.split_at((*length).min(rest.len()));
            rest = after;
            (!piece.is_empty()).then_some(piece)
        });
        let told = replies(&cut, pieces);
        let same = replies(&whole, std::iter::once(&sent[..])) == told;
        assert!(
            same,
            "round {round}: {}: {}",
            sent.escape_ascii(),
            told.escape_ascii()
        );
    }
}

#[test]
fn random_frames_are_answered_or_refused_and_never_stop_the_server() {
    let server = Running::with_rules("attack-frames", RULES);
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let strategy = bytes();
    let (frames, pipeline) = (size(5_000, 250_000), 25);
    for round in 0..frames / pipeline {
        let sent: Vec<u8> = (0..pipeline)
            .flat_map(|_| strategy.new_tree(&mut runner).unwrap().current())
            .collect();
        let replies = replies(&server, std::iter::once(&sent[..]));
        assert!(
            sent.is_empty() || replies.is_empty() || b"+-:$*%=_".contains(&replies[0]),
            "round {round}"
        );
    }
    assert_eq!(server.resp("PING"), "PONG");
}

type Frame<'a> = (Vec<&'a [u8]>, usize);

fn read(input: &[u8]) -> Result<Option<Frame<'_>>, ProtocolError> {
    let mut args = Args::default();
    let end = parse(input, &mut args)?;
    Ok(end.map(|end| (args.get().to_vec(), end)))
}

#[test]
fn an_array_of_bulk_strings_is_a_command() {
    let input = b"*3\r\n$7\r\nACQUIRE\r\n$1\r\na\r\n$0\r\n\r\n*1";
    assert_eq!(
        read(input),
        Ok(Some((vec![&b"ACQUIRE"[..], b"a", b""], 30)))
    );
    assert_eq!(read(b"*0\r\nrest"), Ok(Some((vec![], 4))));
    assert_eq!(read(b"*-1\r\n"), Ok(Some((vec![], 5))));
}

#[test]
fn an_argument_may_hold_any_bytes() {
    let input = b"*1\r\n$5\r\n\r\n\0\xFF*\r\n";
    assert_eq!(read(input), Ok(Some((vec![&b"\r\n\0\xFF*"[..]], 15))));
}

#[test]
fn a_line_is_a_command() {
    assert_eq!(read(b"PING\r\n"), Ok(Some((vec![&b"PING"[..]], 6))));
    let words = vec![&b"ACQUIRE"[..], b"a b", b"", b"x"];
    assert_eq!(
        read(b"  ACQUIRE \"a b\" '' x \nrest"),
        Ok(Some((words, 22)))
    );
    assert_eq!(read(b"\r\n"), Ok(Some((vec![], 2))));
}

#[test]
fn an_unfinished_frame_asks_for_more() {
    let whole = b"*2\r\n$4\r\nECHO\r\n$3\r\nabc\r\n";
    for end in 0..whole.len() {
        assert_eq!(read(&whole[..end]), Ok(None), "after {end} bytes");
    }
    assert_eq!(read(whole).unwrap().unwrap().1, whole.len());
}

#[test]
fn input_that_can_never_be_a_request_is_refused() {
    let many = format!("*{}\r\n", MAX_ARGS + 1);
    let long = format!("*1\r\n${}\r\n", MAX_BULK + 1);
    let line = vec![b'a'; MAX_FRAME];
    let frame = format!(
        "*64\r\n{}",
        format!("${MAX_BULK}\r\n{}\r\n", "x".repeat(MAX_BULK)).repeat(5)
    );
    for (input, error) in [
        (&b"*x\r\n"[..], ProtocolError::MultibulkLength),
        (b"*\r\n", ProtocolError::MultibulkLength),
        (b"*99999999999999999999\r\n", ProtocolError::MultibulkLength),
        (b"*1\rx", ProtocolError::MultibulkLength),
        (many.as_bytes(), ProtocolError::TooManyArguments),
        (b"*1\r\n:5\r\n", ProtocolError::ExpectedBulk(b':')),
        (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$1x\r\n", ProtocolError::BulkLength),
        (long.as_bytes(), ProtocolError::BulkTooLong),
        (b"*1\r\n$1\r\nabc", ProtocolError::BulkEnd),
        (&line, ProtocolError::FrameTooLong),
        (frame.as_bytes(), ProtocolError::FrameTooLong),
        (b"ECHO \"a\n", ProtocolError::Quotes),
        (b"ECHO \"a\\n\"\n", ProtocolError::Quotes),
        (b"ECHO 'a'b\n", ProtocolError::Quotes),
        (b"POST / HTTP/1.1\r\n", ProtocolError::Http),
    ] {
        assert_eq!(read(input), Err(error), "{}", input.escape_ascii());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_incomplete_or_refused(input: Vec<u8>) {
        if let Ok(Some((_, end))) = read(&input) {
            prop_assert!(end <= input.len() && end > 0);
        }
    }

    /// More bytes never change the result for the first ones.
    #[test]
    fn a_result_for_a_prefix_never_changes(
        input in "(\\*[0-9]{1,2}\r\n|\\$[0-9]{1,2}\r\n|[a-z]{0,4}\r\n|PING|[\"' \r\n]){0,12}",
    ) {
        let input = input.as_bytes();
        for end in 0..input.len() {
            let prefix = read(&input[..end]);
            if prefix != Ok(None) {
                prop_assert_eq!(prefix, read(input));
            }
        }
    }
}
