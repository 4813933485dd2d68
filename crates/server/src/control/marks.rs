//! Events that charts mark: what was wrong with the server, when rules came into force, and the
//! actions of operators, of which a deployment is one (`POST /v1/mark`).

use std::collections::{BTreeMap, VecDeque};

use parking_lot::{Mutex, MutexGuard};
use tidegate_chart::Mark;
use tidegate_service::{observe::audit::Action, shown};

use super::conditions::Condition;

/// How many events are kept.
const KEPT: usize = 200;
const MILLISECOND: u64 = 1_000_000;

/// The last events of this server.
#[derive(Debug, Default)]
pub(crate) struct Marks(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    /// The oldest first.
    past: VecDeque<Mark>,
    lasting: BTreeMap<&'static str, Mark>,
    /// When the rules in force were loaded, in nanoseconds; 0 before the first look.
    loaded_at: u64,
}

impl Seen {
    fn add(&mut self, mark: Mark) {
        if self.past.len() == KEPT {
            self.past.pop_front();
        }
        self.past.push_back(mark);
    }
}

impl Marks {
    /// Looks at the conditions and at when the rules were loaded, once a second. Times are in
    /// nanoseconds.
    pub fn look(&self, conditions: &[Condition], loaded_at: u64, now: u64) {
        let mut seen = self.lock();
        let lasting = std::mem::take(&mut seen.lasting);
        for (name, mark) in lasting {
            if conditions.iter().any(|condition| condition.name == name) {
                seen.lasting.insert(name, mark);
            } else {
                seen.add(Mark {
                    until: Some(now),
                    ..mark
                });
            }
        }
        for condition in conditions {
            let mark = seen.lasting.entry(condition.name).or_insert_with(|| Mark {
                from: condition.since_ms.saturating_mul(MILLISECOND),
                until: None,
                is_wrong: false,
                text: words(&condition.state),
            });
            // It may become wrong while it lasts.
            mark.is_wrong |= condition.is_wrong;
        }
        if loaded_at != seen.loaded_at {
            let first = std::mem::replace(&mut seen.loaded_at, loaded_at) == 0;
            let text = if first {
                "this server started"
            } else {
                "rules loaded"
            };
            seen.add(event(loaded_at, text.to_owned()));
        }
    }

    /// The events, and those of the operators' actions that concern a limit (or its key), or all
    /// limits. `None` is for all of them.
    pub fn of<'a>(
        &self,
        actions: impl Iterator<Item = &'a Action>,
        limit: Option<&str>,
        key: Option<&str>,
    ) -> Vec<Mark> {
        let seen = self.lock();
        let lasting = seen.lasting.values().map(|mark| Mark {
            until: Some(u64::MAX),
            ..mark.clone()
        });
        let concerns = |action: &&Action| {
            let same = |of: &Option<String>, shown: Option<&str>| match (of, shown) {
                (Some(of), Some(shown)) => of == shown,
                _ => true,
            };
            // The loading itself is an event.
            let is_load = ["reload", "save"].contains(&action.action);
            !is_load && same(&action.limit, limit) && same(&action.key, key)
        };
        let actions = actions.filter(concerns).map(of_action);
        let past = seen.past.iter().cloned();
        past.chain(lasting).chain(actions).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock()
    }
}

fn event(from: u64, text: String) -> Mark {
    Mark {
        from,
        until: None,
        is_wrong: false,
        text,
    }
}

/// The fact without its details: `the store is down`.
fn words(state: &str) -> String {
    let end = state.find([':', '(']).unwrap_or(state.len());
    state.get(..end).unwrap_or(state).trim_end().to_owned()
}

/// An action in words: `block mallory in logins by kim: tries passwords`.
fn of_action(action: &Action) -> Mark {
    let mut text = match action.action {
        "mark" => action.note.clone().unwrap_or_default(),
        did => did.to_owned(),
    };
    if let Some(key) = &action.key {
        text = format!("{text} {key}");
    }
    if let Some(limit) = &action.limit {
        text = format!("{text} in {limit}");
    }
    if let Some(value) = action.value.as_ref() {
        text = format!("{text}, {value}");
    }
    text = format!("{text}, by {}", action.client);
    if let Some(note) = action.note.as_ref().filter(|_| action.action != "mark") {
        text = format!("{text}: {note}");
    }
    event(
        action.time_ms.saturating_mul(MILLISECOND),
        shown::text(&text),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn condition(is_wrong: bool) -> Condition {
        Condition {
            name: "store",
            state: "the store is down: no route (os error 113)".to_owned(),
            since_ms: 5,
            effect: String::new(),
            remedy: String::new(),
            is_wrong,
        }
    }

    fn texts(marks: &Marks, limit: Option<&str>, key: Option<&str>) -> Vec<String> {
        let block = Action::new("kim", "block").on(b"logins", Some(b"eve"));
        let deployed = Action {
            note: Some("shop 1.4 deployed".to_owned()),
            ..Action::new("ci", "mark")
        };
        let actions = [block, deployed, Action::new("kim", "reload")];
        let found = marks.of(actions.iter(), limit, key);
        found.into_iter().map(|mark| mark.text).collect()
    }

    #[test]
    fn what_lasts_has_a_beginning_and_an_end() {
        let marks = Marks::default();
        marks.look(&[], 1, 2);
        marks.look(&[condition(false)], 1, 6_000_000);
        marks.look(&[condition(true)], 1, 7_000_000);
        let outage = |until| Mark {
            from: 5_000_000,
            until: Some(until),
            is_wrong: true,
            text: "the store is down".to_owned(),
        };
        assert_eq!(marks.of([].iter(), None, None)[1], outage(u64::MAX));
        marks.look(&[], 9, 9_000_000);
        let all = marks.of([].iter(), None, None);
        assert_eq!(all[1], outage(9_000_000));
        let words: Vec<&str> = all.iter().map(|mark| &*mark.text).collect();
        assert_eq!(
            words,
            ["this server started", "the store is down", "rules loaded"]
        );
    }

    #[test]
    fn a_page_has_the_actions_that_concern_it() {
        let marks = Marks::default();
        let (block, deployed) = ("block eve in logins, by kim", "shop 1.4 deployed, by ci");
        assert_eq!(texts(&marks, None, None), [block, deployed]);
        assert_eq!(
            texts(&marks, Some("logins"), Some("eve")),
            [block, deployed]
        );
        assert_eq!(texts(&marks, Some("logins"), Some("bob")), [deployed]);
        assert_eq!(texts(&marks, Some("search"), None), [deployed]);
    }

    #[test]
    fn old_events_make_room() {
        let marks = Marks::default();
        for loaded_at in 1..=2 * KEPT as u64 {
            marks.look(&[], loaded_at, 0);
        }
        let all = marks.of([].iter(), None, None);
        assert_eq!((all.len(), all[0].from), (KEPT, KEPT as u64 + 1));
    }
}
