//! Drawing, for 80 columns and more, and without colours.

use std::{fmt::Write, time::Duration};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::Line,
    widgets::{Block, Borders, Clear, Paragraph, Row, Sparkline, Table, TableState, Wrap},
};

use tidegate_core::{Clock, clock::SystemClock};
use tidegate_server::shown::{counted, grouped, rate, span, when};

use super::{
    Sort,
    app::{Action, App, List, Screen},
    data::{Condition, HeavyKey, TopLimit, shown},
};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
/// The width of the trend of denials on 80 columns, and on many.
const TREND: [usize; 2] = [12, 60];
/// On screens with this width or more, the two lists of a limit are next to each other.
const WIDE: u16 = 120;
/// On screens with this height or more, each condition has its effect and the remedy below it.
const HIGH: u16 = 16;
const HEADS: [&str; 7] = [
    "LIMIT",
    "QUOTA",
    "ADMIT/s",
    "DENY/s",
    "DENIED",
    "DENIED, 1 min",
    "HEAVIEST KEY",
];

pub fn draw(frame: &mut Frame<'_>, app: &App) {
    let strip = conditions(app, frame.area().height);
    let [head, state, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Length(u16::try_from(strip.len()).unwrap_or(u16::MAX)),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(app)), head);
    frame.render_widget(Paragraph::new(strip), state);
    match &app.screen {
        Screen::Overview => overview(frame, app, body),
        Screen::Limit { limit } => one_limit(frame, app, limit, body),
        Screen::Key { limit, key } => one_key(frame, app, limit, key, body),
    }
    frame.render_widget(Paragraph::new(footing(app)), foot);
    if let Some(action) = &app.asking {
        ask(frame, action);
    }
    if app.helps {
        help(frame);
    }
}

/// A condition of the server as a whole: its state, and below it the effect and the remedy.
fn in_words(condition: &Condition) -> [String; 2] {
    let word = if condition.is_wrong {
        "WRONG"
    } else {
        "warning"
    };
    let since = when(condition.since_ms, SystemClock::new().now());
    [
        format!("{word}: {} (since {since})", condition.state),
        format!("  {}; {}", condition.effect, condition.remedy),
    ]
    .map(|line| shown(&line))
}

fn conditions(app: &App, height: u16) -> Vec<Line<'static>> {
    let lines = |condition: &Condition| {
        let [state, more] = in_words(condition);
        let style = if condition.is_wrong {
            BOLD.add_modifier(Modifier::REVERSED)
        } else {
            BOLD
        };
        let more = (height >= HIGH).then(|| Line::raw(more));
        [Some(Line::styled(state, style)), more]
    };
    let all = app.overview.conditions.iter().flat_map(lines).flatten();
    all.take(usize::from(height / 4)).collect()
}

fn heading(app: &App) -> Vec<Line<'static>> {
    let mut first = format!("tidegate {}  {}", app.overview.version, app.server);
    if let Some(store) = &app.overview.store {
        // Writing to a `String` does not fail.
        let servers = counted(store.nodes.into(), "server");
        let _ = write!(first, "  store {}, {servers}", store.health);
    }
    let sort = match app.sort {
        Sort::Denied => "denied per second",
        Sort::Share => "share denied",
        Sort::Admitted => "admitted per second",
        Sort::Name => "name",
    };
    let second = if !app.message.is_empty() {
        format!("! {}", app.message)
    } else if app.typing {
        format!("filter: {}_", app.filter)
    } else if app.screen == Screen::Overview {
        let filter = if app.filter.is_empty() {
            String::new()
        } else {
            format!(", with `{}`", app.filter)
        };
        format!(
            "{} of {} by {sort}{filter}",
            app.limits().count(),
            counted(app.overview.limits.len() as u64, "limit")
        )
    } else {
        String::new()
    };
    vec![Line::styled(shown(&first), BOLD), Line::raw(shown(&second))]
}

fn footing(app: &App) -> &'static str {
    match (&app.screen, app.typing) {
        (_, true) => "Enter keeps the filter  Esc removes it",
        (Screen::Overview, _) => "Enter open  s sort  / filter  ? keys  q quit",
        (Screen::Limit { .. }, _) => {
            "Enter open key  Tab asked or denied  b block  u unblock  Esc back  ? keys"
        }
        (Screen::Key { .. }, _) if app.block_helps() => {
            "b block  u unblock  Esc back  ? keys  q quit"
        }
        (Screen::Key { .. }, _) => "u unblock  Esc back  ? keys  q quit",
    }
}

/// The cells of a limit's row, with a trend of this width.
fn cells(limit: &TopLimit, width: usize) -> [String; 7] {
    let trend = limit
        .recent
        .as_ref()
        .map(|recent| trend(&recent.denied, width))
        .unwrap_or_default();
    let heaviest = limit.heaviest.as_ref();
    let name = if limit.shadow {
        format!("{} (shadow)", limit.name)
    } else {
        limit.name.clone()
    };
    [
        shown(&name),
        limit.quota.clone(),
        per_second(limit.admitted_per_second),
        per_second(limit.denied_per_second),
        limit
            .share_denied()
            .map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0)),
        trend,
        heaviest.map_or_else(String::new, |key| {
            format!("{:.0}% {}", key.share * 100.0, shown(&key.key))
        }),
    ]
}

fn overview(frame: &mut Frame<'_>, app: &App, area: Rect) {
    let width = TREND[usize::from(area.width >= 2 * WIDE - 60)];
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(width as u16 + 1),
        Constraint::Fill(3),
    ];
    let rows = app.limits().map(|limit| Row::new(cells(limit, width)));
    let table = Table::new(rows, widths)
        .header(Row::new(HEADS).style(BOLD))
        .row_highlight_style(CHOSEN);
    let mut state = TableState::new().with_selected(app.selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn one_limit(frame: &mut Frame<'_>, app: &App, name: &str, area: Rect) {
    let heights = [
        Constraint::Length(5),
        // Of the height that is there, the chart takes a part.
        Constraint::Length((area.height / 4).clamp(5, 20)),
        Constraint::Fill(1),
    ];
    let [facts, denied, keys] = Layout::vertical(heights).areas(area);
    frame.render_widget(Paragraph::new(about(app, name)), facts);
    let recent = app.limit().and_then(|limit| limit.recent.as_ref());
    let data = recent
        .map(|recent| recent.denied.clone())
        .unwrap_or_default();
    let title = format!(
        "denied, each second of the last minute (most {})",
        data.iter().max().unwrap_or(&0)
    );
    // Each second has as many columns as there are.
    let each = (usize::from(area.width) / data.len().max(1)).max(1);
    let data: Vec<u64> = data
        .iter()
        .flat_map(|count| std::iter::repeat_n(*count, each))
        .collect();
    let block = Block::new().borders(Borders::TOP).title(title);
    frame.render_widget(Sparkline::default().block(block).data(data), denied);
    if area.width < WIDE {
        return key_list(frame, app, app.list, keys);
    }
    let halves = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2);
    let [left, right] = halves.areas(keys);
    key_list(frame, app, List::Denied, left);
    key_list(frame, app, List::Asked, right);
}

/// The keys with most denials or requests of the limit on the screen.
fn key_list(frame: &mut Frame<'_>, app: &App, list: List, area: Rect) {
    let [heading, keys] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    let (title, other) = match list {
        List::Denied => ("most denials", "most requests"),
        List::Asked => ("most requests", "most denials"),
    };
    let sampled = app.top.as_ref().map_or_else(String::new, |top| {
        let of = if top.one_in > 1 {
            format!(", one in {} counted", top.one_in)
        } else {
            String::new()
        };
        let over = span(Duration::from_secs_f64(top.seconds.clamp(0.0, 1e9).round()));
        format!(" in the last {over}{of}")
    });
    let now = SystemClock::new().now();
    let row = |key: &HeavyKey| {
        let bounds = if key.at_least == key.at_most {
            "exact".to_owned()
        } else {
            format!("{} to {}", key.at_least, key.at_most)
        };
        let since = key
            .since_ms
            .map_or_else(|| "-".to_owned(), |since| when(since, now));
        Row::new([shown(&key.key), key.count.to_string(), bounds, since])
    };
    let text = format!("Keys with {title}{sampled} (Tab: {other})");
    frame.render_widget(Paragraph::new(text), heading);
    let head = ["KEY", "COUNT", "BOUNDS", "SINCE"];
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(8),
        Constraint::Length(16),
        Constraint::Length(11),
    ];
    let table = Table::new(app.keys_of(list).iter().map(row), widths)
        .header(Row::new(head).style(BOLD))
        .row_highlight_style(CHOSEN);
    // The keys of one list can be chosen.
    let selected = (list == app.list).then_some(app.selected);
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, keys, &mut state);
}

fn about(app: &App, name: &str) -> Vec<Line<'static>> {
    let Some(limit) = app.limit() else {
        return vec![Line::raw(format!("limit {name} is no longer in the rules"))];
    };
    let options = if limit.options.is_empty() {
        String::new()
    } else {
        format!(", {}", limit.options)
    };
    let kind = match (limit.global, limit.shadow) {
        (true, true) => ", global, shadow",
        (true, false) => ", global",
        (false, true) => ", shadow",
        (false, false) => "",
    };
    let mut counts = format!(
        "allowed {}, delayed {}, denied {}",
        limit.allowed, limit.delayed, limit.denied
    );
    if limit.shadow {
        counts = format!("{counts}, would have denied {}", limit.shadow_denied);
    }
    if limit.errors > 0 {
        counts = format!("{counts}, without the store {}", limit.errors);
    }
    if limit.waiting + limit.waited > 0 {
        let (waiting, waited) = (limit.waiting, limit.waited);
        counts = format!("{counts}, admitted after a wait {waited}, in line now {waiting}");
    }
    vec![
        Line::styled(shown(&limit.name), BOLD),
        Line::raw(format!(
            "{} {}{options}{kind}; sharing: {}",
            limit.algorithm, limit.quota, limit.sharing
        )),
        Line::raw(format!(
            "{} admitted and {} denied per second; {} of {}",
            per_second(limit.admitted_per_second),
            per_second(limit.denied_per_second),
            counted(limit.keys, "key"),
            grouped(limit.max_keys)
        )),
        Line::raw(format!("since the start: {counts}")),
    ]
}

fn one_key(frame: &mut Frame<'_>, app: &App, limit: &str, key: &str, area: Rect) {
    let mut lines = vec![Line::styled(
        format!("{} of {}", shown(key), shown(limit)),
        BOLD,
    )];
    match &app.explained {
        None => lines.push(Line::raw("...")),
        Some(explained) => lines.extend(
            explained
                .facts
                .iter()
                .map(|fact| Line::raw(format!("{:<12} {}", shown(&fact.name), shown(&fact.text)))),
        ),
    }
    let top = app.top.as_ref();
    let lists = [
        ("asked", top.map(|top| &top.asked_most)),
        ("was denied", top.map(|top| &top.denied_most)),
    ];
    for (what, keys) in lists {
        if let Some(of) = keys.and_then(|keys| keys.iter().find(|of| of.key == key)) {
            let seconds = top.map_or(0.0, |top| top.seconds.clamp(0.0, 1e9));
            let times = if of.at_least == of.at_most {
                counted(of.at_least, "time")
            } else {
                format!("{} to {} times", grouped(of.at_least), grouped(of.at_most))
            };
            lines.push(Line::raw(format!(
                "{what} {times} in the last {}",
                span(Duration::from_secs_f64(seconds.round()))
            )));
        }
    }
    let lines = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(lines, area);
}

fn ask(frame: &mut Frame<'_>, action: &Action) {
    let Action {
        limit,
        key,
        span,
        note,
        in_note,
        ..
    } = action;
    let cursor = |is_here: bool| if is_here { "_" } else { "" };
    let verb = if action.blocks { "Block" } else { "Unblock" };
    let mut lines = vec![Line::raw(format!(
        "{verb} {} in {}?",
        shown(key),
        shown(limit)
    ))];
    if action.blocks {
        let ever = if span.is_empty() {
            " (until it is unblocked)"
        } else {
            ""
        };
        lines.push(Line::raw(format!(
            "for:  {}{}{ever}",
            shown(span),
            cursor(!in_note)
        )));
    }
    lines.push(Line::raw(format!(
        "note: {}{}",
        shown(note),
        cursor(*in_note)
    )));
    let keys = if action.blocks {
        "Enter yes  Esc no  Tab other field"
    } else {
        "Enter yes  Esc no"
    };
    lines.push(Line::styled(keys, BOLD));
    pop_up(frame, lines);
}

/// The keys of the program.
fn help(frame: &mut Frame<'_>) {
    let lines = [
        ("arrows, j k", "move; Home g and End G: first and last"),
        ("Enter", "open a limit, then a key"),
        ("Esc", "back"),
        ("s", "sort limits: denied, share, admitted, name"),
        ("/", "filter limits by name"),
        ("Tab", "keys with most denials, or most requests"),
        ("b, u", "block or unblock a key, with a note"),
        ("q, Ctrl-C", "quit"),
    ];
    let line = |(keys, what): (&str, &str)| Line::raw(format!("{keys:<12} {what}"));
    let mut lines: Vec<_> = lines.into_iter().map(line).collect();
    lines.push(Line::styled("any key closes this", BOLD));
    pop_up(frame, lines);
}

/// Lines in a box above the rest.
fn pop_up(frame: &mut Frame<'_>, lines: Vec<Line<'static>>) {
    let area = frame.area();
    let width = area.width.min(64);
    let high = u16::try_from(lines.len())
        .unwrap_or(u16::MAX)
        .saturating_add(2);
    let height = area.height.min(high);
    let area = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 3,
        width,
        height,
    };
    frame.render_widget(Clear, area);
    let paragraph = Paragraph::new(lines);
    frame.render_widget(paragraph.block(Block::new().borders(Borders::ALL)), area);
}

/// The overview as text, with columns as wide as necessary, below what is wrong with the server.
pub fn plain(app: &App) -> String {
    let wrong = app.overview.conditions.iter().flat_map(in_words);
    let wrong: String = wrong.map(|line| line + "\n").collect();
    let rows = std::iter::once(HEADS.map(str::to_owned))
        .chain(app.limits().map(|limit| cells(limit, TREND[0])));
    wrong + &crate::check::aligned(&rows.collect::<Vec<_>>())
}

fn per_second(of: Option<f64>) -> String {
    of.map_or_else(|| "-".to_owned(), rate)
}

/// Numbers as bars of eight heights, in as many columns; zero is a blank.
fn trend(numbers: &[u64], width: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let each = numbers.len().div_ceil(width).max(1);
    let sums: Vec<u64> = numbers
        .rchunks(each)
        .rev()
        .map(|chunk| chunk.iter().sum())
        .collect();
    let most = sums.iter().copied().max().unwrap_or(0);
    let bar = |sum: &u64| match *sum {
        0 => ' ',
        sum => BARS[((u128::from(sum) * 8).div_ceil(u128::from(most)) as usize).clamp(1, 8) - 1],
    };
    sums.iter().map(bar).collect()
}
