//! HAProxy's questions over SPOP, byte by byte.

use crate::harness;

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    time::Duration,
};

use harness::{PATIENCE, Running};

const RULES: &str = "limits: [{name: a, limit: 2/1m, algorithm: sliding-log}, {name: b, limit: 1/1m, algorithm: sliding-log}]";
const AGENT_HELLO: u8 = 101;
const AGENT_DISCONNECT: u8 = 102;
const ACK: u8 = 103;

/// A frame of this type.
fn frame(kind: u8, id: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(7 + payload.len())
        .unwrap()
        .to_be_bytes()
        .to_vec();
    bytes.extend([kind, 0, 0, 0, 1, id, id]);
    bytes.extend(payload);
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = vec![u8::try_from(text.len()).unwrap()];
    bytes.extend(text.bytes());
    bytes
}

fn pair(name: &str, value: &str) -> Vec<u8> {
    [text(name), vec![8], text(value)].concat()
}

fn hello(version: &str, is_check: bool) -> Vec<u8> {
    let check = [text("healthcheck"), vec![if is_check { 0x11 } else { 1 }]].concat();
    // 16,380 as a varint.
    let size = [text("max-frame-size"), vec![3, 252, 240, 6]].concat();
    frame(
        1,
        0,
        &[
            pair("supported-versions", version),
            size,
            pair("capabilities", "pipelining,async"),
            check,
        ]
        .concat(),
    )
}

/// A frame with one message for each limit and key.
fn notify(id: u8, messages: &[(&str, &str)]) -> Vec<u8> {
    let message = |(limit, key): &(&str, &str)| {
        [
            text("check"),
            vec![2],
            pair("limit", limit),
            pair("key", key),
        ]
        .concat()
    };
    frame(
        3,
        id,
        &messages.iter().flat_map(message).collect::<Vec<_>>(),
    )
}

/// The server's frames: type, number and payload of each.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u8, &[u8])> {
    let mut frames = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let (frame, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        frames.push((frame[0], frame[5], &frame[7..]));
        bytes = rest;
    }
    frames
}

/// Whether an ACK sets this variable, and `start` is the beginning of its value.
fn sets(payload: &[u8], name: &str, start: &[u8]) -> bool {
    let wanted = [&text(name), start].concat();
    payload.windows(wanted.len()).any(|window| window == wanted)
}

fn serving(name: &str, rules: &str) -> Running {
    Running::with_rules_and(name, rules, |options| {
        options.spoe = Some("127.0.0.1:0".to_owned());
    })
}

/// Sends these bytes on a new connection and then the end. Returns what the server sent until it
/// ended the connection.
fn hold(server: &Running, sent: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(server.spoe).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(sent).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answered = Vec::new();
    stream.read_to_end(&mut answered).unwrap();
    answered
}

/// How many connections did not end well.
fn failed(server: &Running) -> u64 {
    server.metric("tidegate_spoe_connections_failed_total")
}

#[test]
fn all_messages_of_a_frame_are_one_decision() {
    let server = serving("spoe-joint", RULES);
    let questions = [
        hello("2.0", false),
        notify(1, &[("a", "k"), ("b", "k")]),
        // The second limit denies, so the first is not charged.
        notify(2, &[("a", "k"), ("b", "k")]),
        notify(3, &[("a", "k")]),
        notify(4, &[("a", "k")]),
        notify(5, &[("a", "other")]),
    ];
    let answered = hold(&server, &questions.concat());
    assert_eq!(failed(&server), 0);
    let mut frames = frames(&answered);
    assert_eq!(frames.remove(0).0, AGENT_HELLO);
    frames.sort_by_key(|(_, id, _)| *id);
    assert!(frames.iter().all(|(kind, ..)| *kind == ACK) && frames.len() == 5);
    let denied: Vec<bool> = frames
        .iter()
        .map(|(.., payload)| sets(payload, "denied", &[0x11]))
        .collect();
    assert_eq!(denied, [false, true, false, true, false]);
    assert!(sets(frames[0].2, "ratelimit", &[8]) && sets(frames[0].2, "ratelimit_policy", &[8]));
    // Sixty seconds.
    assert!(sets(frames[1].2, "retry_after", &[5, 60]) && !sets(frames[0].2, "retry_after", &[]));
    server.advance(Duration::from_secs(61));
    let answered = hold(
        &server,
        &[hello("1.0, 2.0", false), notify(1, &[("b", "k")])].concat(),
    );
    assert!(
        answered
            .windows(8)
            .any(|window| window == b"\x06denied\x01"),
        "admitted again"
    );
}

#[test]
fn a_limit_in_shadow_mode_denies_nothing_and_is_charged_with_the_limits_beside_it() {
    let server = serving(
        "spoe-shadow",
        "limits: [{name: a, limit: 2/1m, algorithm: sliding-log}, {name: s, limit: 1/1m, algorithm: sliding-log, shadow: true}]",
    );
    let both = [("s", "k"), ("a", "k")];
    let questions = [
        hello("2.0", false),
        notify(1, &both),
        notify(2, &[("s", "k")]),
        notify(3, &both),
        // Denied by `a`, so another key of `s` is not charged.
        notify(4, &[("s", "other"), ("a", "k")]),
        notify(5, &[("s", "other")]),
    ];
    // One after another, as the order of answers is free.
    let mut told = Vec::new();
    for question in &questions[1..] {
        let answered = hold(&server, &[&questions[0][..], question].concat());
        let payload = frames(&answered)[1].2.to_vec();
        told.push((
            sets(&payload, "denied", &[0x11]),
            sets(&payload, "retry_after", &[]),
        ));
        let state = String::from_utf8_lossy(&payload).into_owned();
        let left = if told.len() == 5 {
            "\"s\";r=0;t=60"
        } else {
            "\"s\";r="
        };
        assert!(state.contains(left), "{}: {state}", told.len());
    }
    assert_eq!(
        told,
        [
            (false, false),
            (false, false),
            (false, false),
            (true, true),
            (false, false)
        ]
    );
    let answered = hold(
        &server,
        &[hello("2.0", false), notify(1, &[("s", "other")])].concat(),
    );
    assert!(
        sets(frames(&answered)[1].2, "denied", &[1]),
        "over in shadow mode"
    );
}

#[test]
fn a_question_without_a_decision_has_an_error_and_no_outcome() {
    let server = serving("spoe-error", RULES);
    for (messages, told) in [
        (vec![("c", "k")], "no limit is named `c`"),
        (vec![("a", "k"), ("c", "k")], "no limit is named `c`"),
        (vec![], "no message"),
        (vec![("a", "k"); 33], "33 messages"),
    ] {
        let answered = hold(
            &server,
            &[hello("2.0", false), notify(1, &messages)].concat(),
        );
        let frames = frames(&answered);
        let (kind, _, payload) = frames[1];
        assert!(kind == ACK && sets(payload, "error", &[8]) && !sets(payload, "denied", &[]));
        assert!(
            String::from_utf8_lossy(payload).contains(told),
            "{payload:?}"
        );
    }
    let answered = hold(
        &server,
        &[hello("2.0", false), notify(1, &[("a", "k")])].concat(),
    );
    assert!(
        sets(frames(&answered)[1].2, "denied", &[1]),
        "nothing was charged"
    );
    assert_eq!(failed(&server), 0);
}

/// Names and encoded values.
type Arguments<'a> = &'a [(&'a str, &'a [u8])];

/// A number as HAProxy writes it.
fn varint(mut number: u64) -> Vec<u8> {
    if number < 240 {
        return vec![number as u8];
    }
    let mut bytes = vec![number as u8 | 0xf0];
    number = (number - 240) >> 4;
    while number >= 128 {
        bytes.push(number as u8 | 0x80);
        number = (number - 128) >> 7;
    }
    bytes.push(number as u8);
    bytes
}

#[test]
fn every_type_of_sample_is_a_key_and_a_message_that_is_no_question_is_told_what_to_change() {
    let server = serving("spoe-types", "limits: [{name: a, limit: 9/1h}]");
    // The ACK to a message with these arguments.
    let told = |arguments: Arguments<'_>| {
        let arguments_of = arguments
            .iter()
            .flat_map(|(name, value)| [&text(name)[..], value].concat());
        let message = text("check")
            .into_iter()
            .chain([arguments.len() as u8])
            .chain(arguments_of);
        let answered = hold(
            &server,
            &[
                hello("2.0", false),
                frame(3, 1, &message.collect::<Vec<_>>()),
            ]
            .concat(),
        );
        frames(&answered)[1].2.to_vec()
    };
    let a = [&[8][..], &text("a")].concat();
    let number = |kind: u8, number: i64| [&[kind][..], &varint(number.cast_unsigned())].concat();
    let localhost = [&[7][..], &[0; 15], &[1]].concat();
    for (key, text) in [
        (&b"\x08\x05alice"[..], &b"alice"[..]),
        (&[9, 2, 0, 255], &[0, 255]),
        (&[6, 10, 0, 0, 1], b"10.0.0.1"),
        (&localhost, b"::1"),
        (&number(2, -5), b"-5"),
        (&number(4, i64::MIN), b"-9223372036854775808"),
        (&number(5, 300), b"300"),
        (&[0x11], b"1"),
    ] {
        assert!(
            sets(
                &told(&[("limit", &a), ("key", key), ("cost", &number(5, 7))]),
                "denied",
                &[1]
            ),
            "{key:?}"
        );
        let mut client = harness::Resp::connect(server.resp);
        client.send(
            &[
                format!("*3\r\n$4\r\nPEEK\r\n$1\r\na\r\n${}\r\n", text.len()).as_bytes(),
                text,
                b"\r\n",
            ]
            .concat(),
        );
        assert!(client.reply().starts_with("[0 9 2 "), "{key:?}");
    }
    let cost = |text: &str| pair("cost", text)[5..].to_vec();
    let wrong: [(Arguments<'_>, &str); 9] = [
        (&[], "add `limit=str(NAME)`"),
        (&[("limit", &[0])], "no limit"),
        (&[("limit", &a), ("limit", &a)], "each once"),
        (&[("limit", &a), ("keys", &a)], "argument `keys`"),
        (&[("limit", &a), ("cost", &number(4, -1))], "whole number"),
        (
            &[("limit", &a), ("cost", &number(5, 1 << 53))],
            "whole number",
        ),
        (&[("limit", &a), ("cost", &cost("1.5"))], "whole number"),
        (&[("limit", &a), ("cost", &[0])], "whole number"),
        (&[("limit", &a), ("key", &[0])], "give a key"),
    ];
    for (arguments, why) in wrong {
        let payload = told(arguments);
        assert!(
            String::from_utf8_lossy(&payload).contains(why),
            "{arguments:?}: {}",
            payload.escape_ascii()
        );
    }
    let bob = pair("key", "bob")[4..].to_vec();
    let told = told(&[("limit", &a), ("key", &bob), ("cost", &cost("7"))]);
    assert!(sets(&told, "denied", &[1]) && server.resp("PEEK a bob").starts_with("[0 9 2 "));
}

#[test]
fn what_is_no_conversation_ends_with_a_reason() {
    let server = serving("spoe-invalid", RULES);
    let hello_of_today = hello("2.0", false);
    let too_long = [0, 1, 0, 1, 3];
    let invalid = [
        (hello("3.0", false), vec![AGENT_DISCONNECT]),
        (notify(1, &[("a", "k")]), vec![AGENT_DISCONNECT]),
        (
            [&hello_of_today[..], &hello_of_today].concat(),
            vec![AGENT_HELLO, AGENT_DISCONNECT],
        ),
        (
            [&hello_of_today[..], &frame(77, 1, b"")].concat(),
            vec![AGENT_HELLO, AGENT_DISCONNECT],
        ),
        (
            [&hello_of_today[..], &too_long].concat(),
            vec![AGENT_HELLO, AGENT_DISCONNECT],
        ),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![]),
    ];
    let count = invalid.len() as u64;
    for (sent, answers) in invalid {
        let answered = hold(&server, &sent);
        let kinds: Vec<u8> = frames(&answered).iter().map(|(kind, ..)| *kind).collect();
        assert_eq!(kinds, answers, "{sent:?}");
    }
    let goodbye = frame(
        2,
        0,
        &[text("status-code"), vec![3, 0], pair("message", "bye")].concat(),
    );
    let answered = hold(&server, &[&hello_of_today[..], &goodbye].concat());
    assert_eq!(frames(&answered)[1].0, AGENT_DISCONNECT);
    let answered = hold(
        &server,
        &[hello("2.0", true), notify(1, &[("a", "k")])].concat(),
    );
    assert_eq!(
        frames(&answered).len(),
        1,
        "a health check ends after the handshake"
    );
    tidegate_redis_servers::eventually("those are counted, and no others", || {
        failed(&server) == count
    });
}
