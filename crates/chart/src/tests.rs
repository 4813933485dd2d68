use super::*;

const MINUTE: u64 = 60_000_000_000;

fn layer(class: &'static str, counts: &[u64]) -> Layer {
    Layer {
        class,
        name: format!("{class} requests"),
        counts: counts.to_vec(),
    }
}

fn minutes(time: u64, _: u64) -> String {
    format!("{}m", time / MINUTE)
}

fn chart<'a>(layers: &'a [Layer], marks: &'a [Mark]) -> Chart<'a> {
    Chart {
        words: "a < b",
        start: 0,
        step: MINUTE,
        steps: 10,
        layers,
        scale: 0,
        limit: None,
        marks,
        lists_marks: true,
        time: &minutes,
        hover: false,
    }
}

fn mark(from: u64, until: Option<u64>, text: &str) -> Mark {
    Mark {
        from: from * MINUTE,
        until: until.map(|until| until * MINUTE),
        is_wrong: text == "store",
        text: text.to_owned(),
    }
}

#[test]
fn layers_are_stacked_and_empty_ones_are_left_out() {
    let layers = [
        layer("admitted", &[60, 30]),
        layer("denied", &[0, 30]),
        layer("blocked", &[0, 0]),
    ];
    let drawn = chart(&layers, &[]).figure().into_string();
    // The upper layer first, which the lower one covers; 120 pixels stand for 60 requests.
    let denied = drawn.find(r#"class="denied" d="M0 120v-120h2V120z""#);
    let admitted = drawn.find(r#"class="admitted" d="M0 120v-120h1v60h1V120z""#);
    assert!(denied.is_some() && denied < admitted, "{drawn}");
    assert!(
        drawn.contains("a &lt; b") && drawn.contains("denied requests"),
        "{drawn}"
    );
    assert!(!drawn.contains("blocked"), "{drawn}");
    // 60 in a minute are one a second.
    assert!(drawn.contains(">1/s<"), "{drawn}");
    assert!(
        drawn.contains(">2m<") && !drawn.contains(">10m<"),
        "{drawn}"
    );
}

#[test]
fn a_limit_is_a_line_unless_it_is_far_above_the_bars() {
    let layers = [layer("admitted", &[60])];
    let with = |rate| Chart {
        limit: Some((rate, "limit 60/1m".to_owned())),
        ..chart(&layers, &[])
    };
    let drawn = with(2.0).figure().into_string();
    assert!(
        drawn.contains(r#"class="limit" x1="0" x2="100%" y1="27.7""#),
        "{drawn}"
    );
    let drawn = with(30.0).figure().into_string();
    assert!(
        !drawn.contains("line class=\"limit\"") && drawn.contains("limit 60/1m, above this chart"),
        "{drawn}"
    );
}

#[test]
fn marks_are_numbered_and_close_ones_share_a_number() {
    let marks = [
        mark(6, None, "reload"),
        mark(2, Some(4), "store"),
        mark(20, None, "later"),
        mark(6, None, "block <alice>"),
        mark(8, Some(99), "clock"),
    ];
    let drawn = chart(&[layer("admitted", &[1])], &marks)
        .figure()
        .into_string();
    let numbers = drawn.matches("text class=\"flag").count();
    assert_eq!(numbers, 3, "{drawn}");
    for part in [
        r#"<li class="wrong"><time>2m to 4m</time> store</li>"#,
        "<time>6m</time> reload; <time>6m</time> block &lt;alice&gt;",
        "<time>from 8m</time> clock",
        r#"<rect class="span wrong" x="20.00%" width="20.00%""#,
        r#"<rect class="span" x="80.00%" width="20.00%""#,
    ] {
        assert!(drawn.contains(part), "{part} in {drawn}");
    }
    assert!(!drawn.contains("later"), "{drawn}");
}

#[test]
fn axes_are_round_and_take_any_numbers() {
    assert_eq!(rate(0.5), "30/min");
    assert_eq!(rate(1_500.0), "1.5k/s");
    assert_eq!(rate(0.0), "0");
    let words = |highest: f64| -> Vec<String> {
        let ticks = Unit::fitting(highest).ticks(highest);
        ticks.into_iter().map(|(_, words)| words).collect()
    };
    assert_eq!(words(10.0), ["0", "2.5/s", "5/s", "7.5/s", "10/s"]);
    assert_eq!(words(0.1), ["0", "2/min", "4/min", "6/min"]);
    assert_eq!(moments(0, 15 * MINUTE).len(), 6);
    assert_eq!(moments(7, 7).len(), 1);
    for end in [0, 1, MINUTE, u64::MAX] {
        assert!(moments(0, end).len() <= 6, "{end}");
    }
    let layers = [layer("admitted", &[u64::MAX, 0]), layer("denied", &[1])];
    for (start, step) in [(0, 0), (u64::MAX, u64::MAX), (0, 1)] {
        let chart = Chart {
            start,
            step,
            hover: true,
            ..chart(&layers, &[])
        };
        let drawn = chart.figure().into_string();
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");
    }
}
