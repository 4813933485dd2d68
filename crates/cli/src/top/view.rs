//! Drawing, for 80 columns and without colours.

use std::fmt::Write;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Modifier, Style},
    text::Line,
    widgets::{Block, Borders, Clear, Paragraph, Row, Sparkline, Table, TableState},
};

use super::{
    Sort,
    app::{Action, App, List, Screen},
    data::{TopLimit, shown},
};

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);
/// The width of the trend of denials.
const TREND: usize = 12;
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
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Fill(1),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    frame.render_widget(Paragraph::new(heading(app)), head);
    match &app.screen {
        Screen::Overview => overview(frame, app, body),
        Screen::Limit { limit } => one_limit(frame, app, limit, body),
        Screen::Key { limit, key } => one_key(frame, app, limit, key, body),
    }
    frame.render_widget(Paragraph::new(footing(app)), foot);
    if let Some(action) = &app.asking {
        ask(frame, action);
    }
}

fn heading(app: &App) -> Vec<Line<'static>> {
    let mut first = format!("tidegate {}  {}", app.overview.version, app.server);
    if let Some(store) = &app.overview.store {
        // Writing to a `String` does not fail.
        let _ = write!(first, "  store {}, {} servers", store.health, store.nodes);
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
            "{} of {} limits by {sort}{filter}",
            app.limits().count(),
            app.overview.limits.len()
        )
    } else {
        String::new()
    };
    vec![Line::styled(shown(&first), BOLD), Line::raw(shown(&second))]
}

fn footing(app: &App) -> &'static str {
    match (&app.screen, app.typing) {
        (_, true) => "Enter keeps the filter  Esc removes it",
        (Screen::Overview, _) => "Enter open  s sort  / filter  q quit",
        (Screen::Limit { .. }, _) => {
            "Enter open key  Tab asked or denied  b block  u unblock  Esc back  q quit"
        }
        (Screen::Key { .. }, _) => "b block  u unblock  Esc back  q quit",
    }
}

/// The cells of a limit's row.
fn cells(limit: &TopLimit) -> [String; 7] {
    let trend = limit
        .recent
        .as_ref()
        .map(|recent| trend(&recent.denied))
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
    let widths = [
        Constraint::Fill(3),
        Constraint::Length(9),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(13),
        Constraint::Fill(3),
    ];
    let rows = app.limits().map(|limit| Row::new(cells(limit)));
    let table = Table::new(rows, widths)
        .header(Row::new(HEADS).style(BOLD))
        .row_highlight_style(CHOSEN);
    let mut state = TableState::new().with_selected(app.selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn one_limit(frame: &mut Frame<'_>, app: &App, name: &str, area: Rect) {
    let heights = [
        Constraint::Length(5),
        Constraint::Length(5),
        Constraint::Length(1),
        Constraint::Fill(1),
    ];
    let [facts, denied, heading, keys] = Layout::vertical(heights).areas(area);
    frame.render_widget(Paragraph::new(about(app, name)), facts);
    let recent = app.limit().and_then(|limit| limit.recent.as_ref());
    let data = recent
        .map(|recent| recent.denied.clone())
        .unwrap_or_default();
    let title = format!(
        "denied, each second of the last minute (most {})",
        data.iter().max().unwrap_or(&0)
    );
    let block = Block::new().borders(Borders::TOP).title(title);
    frame.render_widget(Sparkline::default().block(block).data(data), denied);
    let (title, other) = match app.list {
        List::Denied => ("most denials", "most requests"),
        List::Asked => ("most requests", "most denials"),
    };
    let sampled = app.top.as_ref().map_or_else(String::new, |top| {
        let of = if top.one_in > 1 {
            format!(", one in {} counted", top.one_in)
        } else {
            String::new()
        };
        format!(" in the last {:.0} s{of}", top.seconds)
    });
    let rows = app.keys().iter().map(|key| {
        let bounds = if key.at_least == key.at_most {
            "exact".to_owned()
        } else {
            format!("{} to {}", key.at_least, key.at_most)
        };
        Row::new([shown(&key.key), key.count.to_string(), bounds])
    });
    frame.render_widget(
        Paragraph::new(format!("Keys with {title}{sampled} (Tab: {other})")),
        heading,
    );
    let head = ["KEY", "COUNT", "BOUNDS"];
    let widths = [
        Constraint::Fill(1),
        Constraint::Length(10),
        Constraint::Length(20),
    ];
    let table = Table::new(rows, widths)
        .header(Row::new(head).style(BOLD))
        .row_highlight_style(CHOSEN);
    frame.render_stateful_widget(
        table,
        keys,
        &mut TableState::new().with_selected(app.selected),
    );
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
    vec![
        Line::styled(shown(&limit.name), BOLD),
        Line::raw(format!(
            "{} {}{options}{kind}; sharing: {}",
            limit.algorithm, limit.quota, limit.sharing
        )),
        Line::raw(format!(
            "{} admitted and {} denied per second; {} keys of {}",
            per_second(limit.admitted_per_second),
            per_second(limit.denied_per_second),
            limit.keys,
            limit.max_keys
        )),
        Line::raw(format!("since the start: {counts}")),
    ]
}

fn one_key(frame: &mut Frame<'_>, app: &App, limit: &str, key: &str, area: Rect) {
    let mut lines = vec![Line::styled(
        format!("{} of {}", shown(key), shown(limit)),
        BOLD,
    )];
    match &app.standing {
        None => lines.push(Line::raw("...")),
        Some(standing) => {
            let state = if standing.allowed {
                "the next request is admitted"
            } else {
                "the next request is denied"
            };
            lines.push(Line::raw(state));
            lines.push(Line::raw(format!(
                "remaining {} of {}",
                standing.remaining, standing.limit
            )));
            let ms = |ms: u64| {
                if ms < 10_000 {
                    format!("{ms} ms")
                } else {
                    format!("{} s", ms.div_ceil(1_000))
                }
            };
            if let Some(wait) = standing.retry_after_ms {
                lines.push(Line::raw(format!("admitted again in {}", ms(wait))));
            } else if !standing.allowed {
                lines.push(Line::raw(
                    "the wait is unknown: the key is blocked, or waits for a permit",
                ));
            }
            if let Some(reset) = standing.reset_after_ms {
                lines.push(Line::raw(format!("full again in {}", ms(reset))));
            }
        }
    }
    let top = app.top.as_ref();
    let lists = [
        ("asked", top.map(|top| &top.asked_most)),
        ("was denied", top.map(|top| &top.denied_most)),
    ];
    for (what, keys) in lists {
        if let Some(of) = keys.and_then(|keys| keys.iter().find(|of| of.key == key)) {
            let seconds = top.map_or(0.0, |top| top.seconds);
            lines.push(Line::raw(format!(
                "{what} {} to {} times in the last {seconds:.0} s",
                of.at_least, of.at_most
            )));
        }
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn ask(frame: &mut Frame<'_>, action: &Action) {
    let question = match action {
        Action::Block { limit, key } => {
            format!(
                "Block {} in {} until it is unblocked?",
                shown(key),
                shown(limit)
            )
        }
        Action::Unblock { limit, key } => format!("Unblock {} in {}?", shown(key), shown(limit)),
    };
    let area = frame.area();
    let width = area.width.min(64);
    let area = Rect {
        x: (area.width - width) / 2,
        y: area.height / 3,
        width,
        height: area.height.min(4),
    };
    frame.render_widget(Clear, area);
    let lines = vec![
        Line::raw(question),
        Line::styled("y yes  any other key no", BOLD),
    ];
    let paragraph = Paragraph::new(lines).wrap(ratatui::widgets::Wrap { trim: true });
    frame.render_widget(paragraph.block(Block::new().borders(Borders::ALL)), area);
}

/// The overview as text, with columns as wide as necessary.
pub fn plain(app: &App) -> String {
    let rows = std::iter::once(HEADS.map(str::to_owned)).chain(app.limits().map(cells));
    crate::check::aligned(&rows.collect::<Vec<_>>())
}

fn per_second(rate: Option<f64>) -> String {
    let Some(rate) = rate else {
        return "-".to_owned();
    };
    match rate {
        _ if rate >= 99_950.0 => format!("{:.0}k", rate / 1_000.0),
        _ if rate >= 9_999.5 => format!("{:.1}k", rate / 1_000.0),
        _ if rate >= 99.95 => format!("{rate:.0}"),
        _ => format!("{rate:.1}"),
    }
}

/// Numbers as bars of eight heights, in as many columns as fit; zero is a blank.
fn trend(numbers: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let each = numbers.len().div_ceil(TREND).max(1);
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
