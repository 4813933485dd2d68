use ratatui::{Terminal, backend::TestBackend, buffer::Cell, crossterm::event::KeyCode, style::Color};
use serde_json::json;

use super::{
    Sort,
    app::{Action, App, Effect, Screen},
    data::{Overview, Standing, Top},
    view,
};

fn overview() -> Overview {
    let limit = |name: &str, admitted: f64, denied: f64, key: &str| {
        json!({
            "name": name, "algorithm": "token-bucket", "quota": "100/1m", "options": "burst: 20", "global": false,
            "shadow": name == "trial", "sharing": "local", "keys": 12, "max_keys": 1000, "bytes": 4096, "allowed": 900,
            "delayed": 0, "denied": 100, "shadow_denied": 7, "errors": 0, "admitted_per_second": admitted,
            "denied_per_second": denied, "recent": {"end": 9, "admitted": vec![1; 60], "denied": (0..60).collect::<Vec<_>>()},
            "heaviest": {"key": key, "share": 0.25},
        })
    };
    serde_json::from_value(json!({
        "version": "0.1.0", "now_seconds": 9, "store": {"address": "x", "health": "up", "trouble": null, "nodes": 3},
        "limits": [
            limit("per-ip", 120.0, 0.5, "10.0.0.1"),
            limit("logins", 3.0, 40.0, "eve\u{1b}[31m"),
            limit("trial", 12_345.0, 12.0, "alice"),
        ],
    }))
    .unwrap()
}

fn top() -> Top {
    serde_json::from_value(json!({
        "limit_name": "logins", "seconds": 61.0, "one_in": 4, "names": 1000, "requests": 10, "denials": 5,
        "asked_most": [{"key": "bob", "count": 90, "at_least": 80, "at_most": 100}],
        "denied_most": [
            {"key": "eve", "count": 40, "at_least": 40, "at_most": 40},
            {"key": "\u{fffd}", "not_utf8": true, "count": 3, "at_least": 3, "at_most": 3},
        ],
    }))
    .unwrap()
}

fn app() -> App {
    let mut app = App::new("127.0.0.1:8080", Sort::Denied, "");
    app.show(overview());
    app
}

/// The screen's lines without trailing blanks.
fn drawn(app: &App, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view::draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    // No cell sets a colour: bold and reversed text work on any terminal.
    let is_plain = |cell: &Cell| cell.fg == Color::Reset && cell.bg == Color::Reset;
    assert!(buffer.content().iter().all(is_plain));
    let line = |y: u16| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

fn strokes(app: &mut App, keys: &str) -> Option<Effect> {
    keys.chars()
        .map(|key| app.stroke(if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) }))
        .last()?
}

#[test]
fn the_overview_fits_80_by_24_with_most_denied_first_and_no_control_characters() {
    let lines = drawn(&app(), 80, 24);
    assert_eq!(lines[0], "tidegate 0.1.0  127.0.0.1:8080  store up, 3 servers");
    assert_eq!(lines[1], "3 of 3 limits by denied per second");
    assert_eq!(lines[23], "Enter open  s sort  / filter  q quit");
    for (line, words) in [
        (2, ["LIMIT", "ADMIT/s", "DENIED", "HEAVIEST"]),
        (3, ["logins", "100/1m", "40.0", "93%"]),
        (4, ["trial", "12.3k", "12.0", "25% alice"]),
        (5, ["per-ip", "120", "0.5", "25% 10.0"]),
    ] {
        assert!(words.iter().all(|word| lines[line].contains(word)), "{words:?} in {:?}", lines[line]);
    }
    assert!(lines.iter().all(|line| !line.contains('\u{1b}')), "{lines:?}");
}

#[test]
fn limits_are_sorted_and_filtered_and_a_filter_can_be_removed() {
    let mut app = app();
    let names = |app: &App| app.limits().map(|limit| limit.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&app), ["logins", "trial", "per-ip"]);
    for expected in
        [["logins", "per-ip", "trial"], ["trial", "per-ip", "logins"], ["logins", "per-ip", "trial"]]
    {
        strokes(&mut app, "s");
        assert_eq!(names(&app), expected, "{:?}", app.sort);
    }
    strokes(&mut app, "/q-ip");
    assert!(drawn(&app, 80, 24)[1].contains("filter: q-ip_"), "a q in a filter does not quit");
    for _ in 0.."q-ip".len() {
        app.stroke(KeyCode::Backspace);
    }
    strokes(&mut app, "-ip\n");
    assert_eq!(names(&app), ["per-ip"]);
    strokes(&mut app, "/");
    app.stroke(KeyCode::Esc);
    assert_eq!(names(&app).len(), 3);
}

#[test]
fn a_limit_and_then_a_key_can_be_opened_and_closed() {
    let mut app = app();
    assert_eq!(strokes(&mut app, "\n"), Some(Effect::Refresh));
    assert_eq!(app.screen, Screen::Limit { limit: "logins".to_owned() });
    app.top = Some(top());
    let text = drawn(&app, 80, 24).join("\n");
    for words in [
        "token-bucket 100/1m, burst: 20; sharing: local",
        "12 keys of 1000",
        "Keys with most denials in the last 61 s, one in 4 counted (Tab: most requests)",
        "eve",
        "exact",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    app.stroke(KeyCode::Tab);
    assert!(drawn(&app, 80, 24).join("\n").contains("80 to 100"));
    app.stroke(KeyCode::Tab);
    assert_eq!(strokes(&mut app, "\n"), Some(Effect::Refresh));
    app.standing = Some(Standing {
        allowed: false,
        limit: 20,
        remaining: 0,
        retry_after_ms: Some(1_500),
        reset_after_ms: Some(60_000),
    });
    let text = drawn(&app, 80, 24).join("\n");
    for words in [
        "eve of logins",
        "denied",
        "remaining 0 of 20",
        "admitted again in 1500 ms",
        "full again in 60 s",
        "was denied 40 to 40 times",
    ] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
    app.stroke(KeyCode::Esc);
    app.stroke(KeyCode::Esc);
    assert_eq!(app.screen, Screen::Overview);
    assert_eq!(strokes(&mut app, "q"), Some(Effect::Quit));
}

#[test]
fn a_block_needs_a_confirmation() {
    let mut app = app();
    strokes(&mut app, "b");
    assert!(app.asking.is_none() && app.message.contains("open a limit first"), "{}", app.message);
    strokes(&mut app, "\n");
    app.top = Some(top());
    strokes(&mut app, "b");
    assert!(drawn(&app, 80, 24).join("\n").contains("Block eve in logins until it is unblocked?"));
    assert_eq!(strokes(&mut app, "n"), None);
    assert!(app.asking.is_none(), "any key other than y cancels");
    let of = |limit: &str, key: &str| (limit.to_owned(), key.to_owned());
    let (limit, key) = of("logins", "eve");
    assert_eq!(strokes(&mut app, "by"), Some(Effect::Do(Action::Block { limit, key })));
    let (limit, key) = of("logins", "eve");
    assert_eq!(strokes(&mut app, "uy"), Some(Effect::Do(Action::Unblock { limit, key })));
    // A key that is not text cannot be selected here.
    assert_eq!(strokes(&mut app, "jby"), None);
    assert!(app.asking.is_none());
}

#[test]
fn small_screens_and_long_lists_are_drawn_without_a_panic() {
    let mut app = app();
    app.top = Some(top());
    for screen in [
        Screen::Overview,
        Screen::Limit { limit: "logins".to_owned() },
        Screen::Limit { limit: "gone".to_owned() },
        Screen::Key { limit: "logins".to_owned(), key: "eve".to_owned() },
    ] {
        app.screen = screen;
        app.asking = Some(Action::Block { limit: "a".repeat(200), key: "b".repeat(200) });
        for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (300, 100)] {
            drawn(&app, width, height);
        }
    }
}

#[test]
fn the_plain_text_has_a_line_for_each_limit() {
    let text = view::plain(&app());
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    assert!(lines[0].starts_with("LIMIT") && lines[1].starts_with("logins"), "{text}");
    // A trend: sums of five seconds each, with the highest last.
    assert!(lines[1].contains('█') && !text.contains('\u{1b}'), "{text}");
}
