//! Runs the program on a real terminal.

use std::{io, time::Duration};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tidegate_core::{Clock, clock::SystemClock};

use super::{
    app::{Action, App, Effect, Screen},
    data::TopServer,
    view,
};
use crate::client::ClientError;

/// Shows the server's limits until the user quits. The terminal is restored afterwards, even after
/// a panic.
///
/// # Errors
/// When the terminal cannot be used.
pub fn run(mut app: App, server: &TopServer<'_>, every: Duration) -> io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let done = serve(&mut terminal, &mut app, server, every);
    ratatui::restore();
    done
}

fn serve(
    terminal: &mut ratatui::DefaultTerminal,
    app: &mut App,
    server: &TopServer<'_>,
    every: Duration,
) -> io::Result<()> {
    let clock = SystemClock::new();
    loop {
        refresh(app, server);
        let due = clock.now().saturating_add(every.into());
        loop {
            terminal.draw(|frame| view::draw(frame, app))?;
            let left: Duration = due.saturating_since(clock.now()).into();
            if left.is_zero() || !event::poll(left)? {
                break;
            }
            let Event::Key(key) = event::read()? else {
                continue;
            };
            if key.kind == KeyEventKind::Release {
                continue;
            }
            if key.modifiers.contains(KeyModifiers::CONTROL) {
                if key.code == KeyCode::Char('c') {
                    return Ok(());
                }
                continue;
            }
            match app.stroke(key.code) {
                None => {}
                Some(Effect::Quit) => return Ok(()),
                Some(Effect::Refresh) => break,
                Some(Effect::Do(action)) => {
                    app.message = act(server, &action);
                    break;
                }
            }
        }
    }
}

fn act(server: &TopServer<'_>, action: &Action) -> String {
    let Action {
        blocks,
        limit,
        key,
        span,
        note,
        ..
    } = action;
    let done = if *blocks {
        server.block(limit, key, span, note).map(|()| "blocked")
    } else {
        server.unblock(limit, key, note).map(|was| {
            if was {
                "unblocked"
            } else {
                "it was not blocked"
            }
        })
    };
    done.map_or_else(|error| error.to_string(), str::to_owned)
}

/// Refreshes the data of the current screen. On an error, the old data stays and the error is
/// shown.
fn refresh(app: &mut App, server: &TopServer<'_>) {
    if let Err(error) = ask(app, server) {
        app.message = error.to_string();
    }
}

fn ask(app: &mut App, server: &TopServer<'_>) -> Result<(), ClientError> {
    app.show(server.overview()?);
    match app.screen.clone() {
        Screen::Overview => {}
        Screen::Limit { limit } => app.top = Some(server.top(&limit)?),
        Screen::Key { limit, key } => {
            app.explained = Some(server.explained(&limit, &key)?);
            app.top = Some(server.top(&limit)?);
        }
    }
    Ok(())
}
