//! Recorded traces: written, read back, cut, and refused.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::json;
use tidegate_core::{DenialReason, Nanos, clock::ManualTimer};
use tidegate_server::{
    DecisionObservers,
    limits::{Act, Limits},
    rules,
    service::Service,
    throttle::Throttle,
    trace::{Event, KeyShare, RecordedLimit, Recording, Trace, Verdict, is_recording},
};

#[test]
fn a_share_is_read_and_written() {
    for (text, fraction) in [
        ("10%", 0.1),
        ("100%", 1.0),
        ("0.25%", 0.0025),
        ("0.0001%", 0.000_001),
    ] {
        let share: KeyShare = text.parse().unwrap();
        assert_eq!(
            (share.to_string().as_str(), share.fraction()),
            (text, fraction)
        );
    }
    for text in ["", "10", "0%", "101%", "x%", "-1%", "NaN%"] {
        assert!(
            text.parse::<KeyShare>()
                .unwrap_err()
                .to_string()
                .contains("as in 10%"),
            "{text}"
        );
    }
}

fn recording() -> Recording {
    let limit = |name: &str, rule: Option<&str>| RecordedLimit {
        name: name.to_owned(),
        rule: rule.map(str::to_owned),
        requests: Some(1_000),
        denied: None,
    };
    let event = |time, key, limit, verdict| Event {
        time,
        key,
        cost: 2,
        limit,
        verdict,
        reason: None,
    };
    Recording {
        share: "10%".parse().unwrap(),
        fresh: true,
        from: 1_000_000_001,
        until: 9_000_000_000,
        limits: vec![
            limit("a", Some("{limit: 1/1s}")),
            limit("CL.THROTTLE", None),
        ],
        names: [(7, "alice \"x\"\n".to_owned())].into(),
        events: vec![
            event(1_000_000_001, 7, 0, Verdict::Admitted),
            event(1_000_000_001, 1 << 62, 1, Verdict::Delayed),
            Event {
                reason: Some(DenialReason::Blocked),
                ..event(1_000_000_001, 7, 0, Verdict::Denied)
            },
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
    let cut: Vec<u8> = lines()
        .take(7)
        .flatten()
        .copied()
        .chain(*b"{\"tim")
        .collect();
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
        (
            &format!("{head}\n{{\"end\":3}}\n"),
            "another number of requests",
        ),
        (&format!("{head}\n{{}}\n"), "neither a limit"),
    ] {
        let error = Recording::read(&mut text.as_bytes())
            .unwrap_err()
            .to_string();
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

#[test]
fn the_newest_requests_stay_and_what_is_forgotten_of_one_key_is_left_out_of_all() {
    const END: u64 = 10_000;
    // The trace keeps as little as it can. It knows the names that the rules have.
    let trace = Arc::new(Trace::new(KeyShare::ALL, 0, true));
    let observers = DecisionObservers {
        trace: Some(Arc::clone(&trace)),
        ..DecisionObservers::default()
    };
    let rules = rules::parse("limits: [{name: a, limit: 1/1d, deny: [busy]}]").unwrap();
    let limits = Limits::new(rules, 1_000, |_| None, Nanos::ZERO)
        .unwrap()
        .observed_by(observers);
    let clock = Arc::new(ManualTimer::new(Nanos::new(END)));
    let service = Service::new(limits, Throttle::new(8, None).unwrap(), clock);
    let service = service.with_trace(Some(Arc::clone(&trace)));
    let limit = Arc::clone(&service.limits().limits()[0]);
    for time in 0..END {
        let ask = |key: &[u8]| {
            limit
                .decide_in_memory(Act::Take, key, 1, Nanos::new(time))
                .unwrap()
        };
        assert!(ask(b"busy").is_denied());
        if time % 100 == 0 {
            for key in 0..50_u8 {
                let _ = ask(&[key]);
            }
        }
        assert!(trace.bytes().0 <= trace.bytes().1);
    }
    let Recording {
        fresh,
        from,
        names,
        events,
        ..
    } = service.recording(|_| true, None).unwrap();
    assert!(!fresh && from > 0 && events.iter().all(|event| event.time >= from));
    let busy = names.iter().find(|(_, name)| *name == "busy").unwrap().0;
    let times: Vec<u64> = events
        .iter()
        .filter(|event| event.key == *busy)
        .map(|event| event.time)
        .collect();
    assert_eq!(times, (from..END).collect::<Vec<_>>());
    assert!(times.len() > 1_000, "{} requests are kept", times.len());
    let rounds = (from..END).filter(|time| time % 100 == 0).count();
    assert_eq!(events.len() - times.len(), 50 * rounds);
}
