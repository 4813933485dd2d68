//! Recorded traces: written, read back, cut, and refused.

use proptest::prelude::*;
use serde_json::json;
use tidegate_core::DenialReason;
use tidegate_server::trace::{Event, KeyShare, RecordedLimit, Recording, Verdict, is_recording};

#[test]
fn a_share_is_read_and_written() {
    for (text, fraction) in [("10%", 0.1), ("100%", 1.0), ("0.25%", 0.0025), ("0.0001%", 0.000_001)] {
        let share: KeyShare = text.parse().unwrap();
        assert_eq!((share.to_string().as_str(), share.fraction()), (text, fraction));
    }
    for text in ["", "10", "0%", "101%", "x%", "-1%", "NaN%"] {
        assert!(text.parse::<KeyShare>().unwrap_err().to_string().contains("as in 10%"), "{text}");
    }
}

fn recording() -> Recording {
    let limit = |name: &str, rule: Option<&str>| RecordedLimit {
        name: name.to_owned(),
        rule: rule.map(str::to_owned),
        requests: Some(1_000),
        denied: None,
    };
    let event = |time, key, limit, verdict| Event { time, key, cost: 2, limit, verdict, reason: None };
    Recording {
        share: "10%".parse().unwrap(),
        fresh: true,
        from: 1_000_000_001,
        until: 9_000_000_000,
        limits: vec![limit("a", Some("{limit: 1/1s}")), limit("CL.THROTTLE", None)],
        names: [(7, "alice \"x\"\n".to_owned())].into(),
        events: vec![
            event(1_000_000_001, 7, 0, Verdict::Admitted),
            event(1_000_000_001, 1 << 62, 1, Verdict::Delayed),
            Event { reason: Some(DenialReason::Blocked), ..event(1_000_000_001, 7, 0, Verdict::Denied) },
            event(8_999_999_999, 7, 0, Verdict::Refunded),
            event(8_999_999_999, 7, 0, Verdict::Charged),
        ],
        is_cut: false,
    }
}

fn text(recording: Recording) -> Vec<u8> {
    recording.pieces().flatten().collect()
}

#[test]
fn what_is_written_is_read_back() {
    let text = text(recording());
    assert!(is_recording(&text) && !is_recording(b"{\"time\":1}"));
    assert_eq!(Recording::read(&mut &text[..]).unwrap(), recording());
}

#[test]
fn a_file_that_was_cut_is_used_up_to_its_last_whole_line() {
    let text = text(recording());
    let lines = || text.split_inclusive(|byte| *byte == b'\n');
    let cut: Vec<u8> = lines().take(7).flatten().copied().chain(*b"{\"tim").collect();
    let read = Recording::read(&mut &cut[..]).unwrap();
    assert!(read.is_cut);
    assert_eq!((read.events.len(), read.until), (3, 1_000_000_001));
}

#[test]
fn what_is_no_trace_is_refused_with_its_line() {
    let head = r#"{"tidegate_trace":1,"share":"10%","from":"1.0","until":"2.0"}"#;
    for (text, why) in [
        ("", "line 1: a trace begins"),
        ("{\"limit\":\"a\"}\n", "line 1: a trace begins"),
        ("{\"tidegate_trace\":2}\n", "format 2"),
        ("{\"tidegate_trace\":1,\"share\":\"0%\"}\n", "as in 10%"),
        (
            &format!("{head}\n{{\"time\":\"1.0\",\"limit\":\"a\",\"key\":\"1\"}}\n"),
            "line 2: its limit is not listed",
        ),
        (&format!("{head}\nnonsense\n"), "line 2: expected"),
        (&format!("{head}\n{{\"end\":3}}\n"), "another number of requests"),
        (&format!("{head}\n{{}}\n"), "neither a limit"),
    ] {
        let error = Recording::read(&mut text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes: Vec<u8>, cut in 0_usize..600) {
        let mut whole = text(recording());
        whole.truncate(cut);
        whole.extend_from_slice(&bytes);
        let _ = Recording::read(&mut &whole[..]);
        let time = String::from_utf8_lossy(&bytes);
        let head = json!({"tidegate_trace": 1, "share": "10%", "from": time, "until": time});
        let _ = Recording::read(&mut head.to_string().as_bytes());
    }
}
