//! Texts that clients and operators choose, in a page of findings.

use std::num::NonZeroUsize;

use proptest::prelude::*;
use tidegate_sim::{
    AlgorithmSpec, Progress, Trial, Workload, heat_map,
    input::{By, Sample},
    replay,
    report::{Report, printable, write_html},
    workload::TraceBuilder,
};

/// A page in which a text stands wherever one can come from outside.
fn page(text: &str) -> String {
    let mut builder = TraceBuilder::new(By::ip());
    assert!(builder.push(b"key", 1_000, 9));
    let trace = builder.build(true, 0);
    let specs = AlgorithmSpec::parse_list("sliding-log").unwrap();
    let trial = Trial::new("5/10s".parse().unwrap(), &specs).unwrap();
    let trials = std::slice::from_ref(&trial);
    let findings = replay(&trace, trials, NonZeroUsize::MIN, &Progress::default());
    assert_eq!((trace.keys(), findings[0].most_denied.len()), (1, 1));
    let text = || text.to_owned();
    let report = Report {
        command: text(),
        date: "today".to_owned(),
        source: text(),
        by: text(),
        warnings: vec![text()],
        samples: vec![Sample {
            line: text(),
            keys: vec![Some(text())],
            time: text(),
            path: Some(text()),
            cost: 1,
        }],
        limits: vec![text()],
        names: vec![vec![text()]],
        heat: vec![heat_map(&trace, &trial, &findings[0])],
        findings,
        ..Report::default()
    };
    let mut page = Vec::new();
    write_html(&mut page, &report).unwrap();
    String::from_utf8(page).unwrap()
}

#[test]
fn markup_in_a_log_is_escaped() {
    let escaped = page("<script>alert('x\")</script>&");
    assert!(
        !escaped.contains("<script>")
            && escaped.contains("&lt;script&gt;alert('x&quot;)&lt;/script&gt;&amp;")
    );
    let plain = page("plain");
    assert!(
        plain.starts_with("<!doctype html>\n<html lang=\"en\">") && plain.ends_with("</html>\n"),
        "{plain}"
    );
    assert!(plain.contains("<p class=\"dim source\">plain</p>"));
    assert!(page("a\u{202e}b").contains("<p class=\"dim source\">a\\u{202e}b</p>"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_text_adds_an_element_an_attribute_or_a_control_character(text in any::<String>()) {
        let (page, usual) = (page(&text), page("plain"));
        for mark in ['<', '>', '"', '\n'] {
            prop_assert_eq!(page.matches(mark).count(), usual.matches(mark).count(), "{}", mark);
        }
        let acts = |c: char| (c.is_control() && c != '\n') || ('\u{202a}'..='\u{202e}').contains(&c);
        prop_assert!(!page.contains(acts));
        for most in [0, 1, 7, 50] {
            let shown = printable(&text, most);
            prop_assert!(!shown.contains(char::is_control) && !shown.contains(acts), "{}", shown);
            prop_assert!(shown.chars().count() <= most.max(1));
        }
    }
}
