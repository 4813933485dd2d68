//! The state of the program and the effects of key strokes, without a terminal or a server.

use ratatui::crossterm::event::KeyCode;

use super::{
    Sort,
    data::{Explained, HeavyKey, Overview, Top, TopLimit},
};

/// The current screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Screen {
    #[default]
    Overview,
    Limit {
        limit: String,
    },
    Key {
        limit: String,
        key: String,
    },
}

/// A change on the server, which needs a confirmation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// Whether to block the key, or to end its block.
    pub blocks: bool,
    pub limit: String,
    pub key: String,
    /// For how long to block it; empty for until it is unblocked.
    pub span: String,
    /// Why.
    pub note: String,
    /// Whether the user is typing the note, and not the duration.
    pub in_note: bool,
}

impl Action {
    fn field(&mut self) -> &mut String {
        if self.in_note {
            &mut self.note
        } else {
            &mut self.span
        }
    }
}

/// The effect of a key stroke beyond the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Quit,
    /// Refresh the data of the current screen from the server.
    Refresh,
    Do(Action),
}

/// Which list of a limit is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum List {
    #[default]
    Denied,
    Asked,
}

/// The state of the program.
#[derive(Debug, Default)]
pub struct App {
    pub server: String,
    pub screen: Screen,
    pub overview: Overview,
    /// The heavy keys of the limit on the screen; `None` if unknown.
    pub top: Option<Top>,
    pub explained: Option<Explained>,
    pub list: List,
    pub sort: Sort,
    pub filter: String,
    /// Whether the user is typing the filter.
    pub typing: bool,
    pub selected: usize,
    /// The action that waits for a confirmation.
    pub asking: Option<Action>,
    /// Whether the keys of the program are shown.
    pub helps: bool,
    /// The latest message.
    pub message: String,
}

impl App {
    pub fn new(server: &str, sort: Sort, filter: &str) -> Self {
        Self {
            server: server.to_owned(),
            sort,
            filter: filter.to_owned(),
            ..Self::default()
        }
    }

    /// Takes in new data and sorts it.
    pub fn show(&mut self, overview: Overview) {
        self.overview = overview;
        self.order();
    }

    fn order(&mut self) {
        fn by(limits: &mut [TopLimit], number: impl Fn(&TopLimit) -> Option<f64>) {
            let number = |limit: &TopLimit| number(limit).unwrap_or(-1.0);
            limits.sort_by(|a, b| number(b).total_cmp(&number(a)));
        }
        let limits = &mut self.overview.limits;
        match self.sort {
            Sort::Denied => by(limits, |limit| limit.denied_per_second),
            Sort::Share => by(limits, TopLimit::share_denied),
            Sort::Admitted => by(limits, |limit| limit.admitted_per_second),
            Sort::Name => limits.sort_by(|a, b| a.name.cmp(&b.name)),
        }
        self.selected = self.selected.min(self.rows().saturating_sub(1));
    }

    /// The limits that match the filter.
    pub fn limits(&self) -> impl Iterator<Item = &TopLimit> {
        self.overview
            .limits
            .iter()
            .filter(|limit| limit.name.contains(&self.filter))
    }

    /// The limit on the screen.
    pub fn limit(&self) -> Option<&TopLimit> {
        let (Screen::Limit { limit: name } | Screen::Key { limit: name, .. }) = &self.screen else {
            return None;
        };
        self.overview
            .limits
            .iter()
            .find(|limit| limit.name == *name)
    }

    /// The keys of the limit on the screen.
    pub fn keys(&self) -> &[HeavyKey] {
        self.keys_of(self.list)
    }

    /// Those of one list.
    pub fn keys_of(&self, list: List) -> &[HeavyKey] {
        match (&self.top, list) {
            (None, _) => &[],
            (Some(top), List::Asked) => &top.asked_most,
            (Some(top), List::Denied) => &top.denied_most,
        }
    }

    fn rows(&self) -> usize {
        match self.screen {
            Screen::Overview => self.limits().count(),
            Screen::Limit { .. } => self.keys().len(),
            Screen::Key { .. } => 0,
        }
    }

    /// Handles a key stroke.
    pub fn stroke(&mut self, code: KeyCode) -> Option<Effect> {
        if std::mem::take(&mut self.helps) {
            return None;
        }
        if let Some(action) = self.asking.take() {
            return self.answer(action, code);
        }
        if self.typing {
            self.type_filter(code);
            return None;
        }
        self.message.clear();
        match code {
            KeyCode::Char('q') => return Some(Effect::Quit),
            KeyCode::Down | KeyCode::Char('j') => {
                self.selected = (self.selected + 1).min(self.rows().saturating_sub(1));
            }
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Home | KeyCode::Char('g') => self.selected = 0,
            KeyCode::End | KeyCode::Char('G') => self.selected = self.rows().saturating_sub(1),
            KeyCode::Enter | KeyCode::Right => return self.open(),
            KeyCode::Esc | KeyCode::Left | KeyCode::Backspace => return self.back(),
            KeyCode::Char('s') if self.screen == Screen::Overview => {
                self.sort = match self.sort {
                    Sort::Denied => Sort::Share,
                    Sort::Share => Sort::Admitted,
                    Sort::Admitted => Sort::Name,
                    Sort::Name => Sort::Denied,
                };
                self.order();
            }
            KeyCode::Char('?') => self.helps = true,
            KeyCode::Char('/') if self.screen == Screen::Overview => self.typing = true,
            KeyCode::Tab => {
                self.list = if self.list == List::Denied {
                    List::Asked
                } else {
                    List::Denied
                };
                self.selected = 0;
            }
            KeyCode::Char(letter @ ('b' | 'u')) => self.ask_about_key(letter == 'b'),
            _ => {}
        }
        None
    }

    /// A key stroke in the question about an action.
    fn answer(&mut self, mut action: Action, code: KeyCode) -> Option<Effect> {
        match code {
            KeyCode::Enter => return Some(Effect::Do(action)),
            KeyCode::Esc => return None,
            KeyCode::Tab | KeyCode::BackTab | KeyCode::Up | KeyCode::Down => {
                // An end of a block has only a note.
                action.in_note = !action.in_note || !action.blocks;
            }
            KeyCode::Backspace => drop(action.field().pop()),
            KeyCode::Char(letter) => action.field().push(letter),
            _ => {}
        }
        self.asking = Some(action);
        None
    }

    fn type_filter(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) => self.filter.push(letter),
            _ => {}
        }
        self.selected = 0;
    }

    fn open(&mut self) -> Option<Effect> {
        self.screen = match &self.screen {
            Screen::Overview => Screen::Limit {
                limit: self.limits().nth(self.selected)?.name.clone(),
            },
            Screen::Limit { limit } => {
                let key = self.keys().get(self.selected)?;
                if key.not_utf8 {
                    "this key is not text: use redis-cli for it".clone_into(&mut self.message);
                    return None;
                }
                Screen::Key {
                    limit: limit.clone(),
                    key: key.key.clone(),
                }
            }
            Screen::Key { .. } => return None,
        };
        (self.selected, self.explained) = (0, None);
        if let Screen::Limit { .. } = self.screen {
            self.top = None;
        }
        Some(Effect::Refresh)
    }

    fn back(&mut self) -> Option<Effect> {
        self.screen = match &self.screen {
            Screen::Overview => return None,
            Screen::Limit { .. } => Screen::Overview,
            Screen::Key { limit, .. } => Screen::Limit {
                limit: limit.clone(),
            },
        };
        self.selected = 0;
        Some(Effect::Refresh)
    }

    /// Whether a block changes the next decision on the key on the screen, as far as that is known.
    pub fn block_helps(&self) -> bool {
        let explained = self.explained.as_ref();
        explained.and_then(|of| of.block_helps).unwrap_or(true)
    }

    fn ask_about_key(&mut self, block: bool) {
        if block && matches!(self.screen, Screen::Key { .. }) && !self.block_helps() {
            "a block does not help here".clone_into(&mut self.message);
            return;
        }
        let (limit, key) = match &self.screen {
            Screen::Overview => {
                "open a limit first, then select a key to block".clone_into(&mut self.message);
                return;
            }
            Screen::Limit { limit } => match self.keys().get(self.selected) {
                Some(key) if !key.not_utf8 => (limit.clone(), key.key.clone()),
                _ => {
                    "no key to block here".clone_into(&mut self.message);
                    return;
                }
            },
            Screen::Key { limit, key } => (limit.clone(), key.clone()),
        };
        self.asking = Some(Action {
            blocks: block,
            limit,
            key,
            span: if block { "1h" } else { "" }.to_owned(),
            note: String::new(),
            in_note: !block,
        });
    }
}
