//! The changes of a page, for a client that has the page as it was.
//!
//! A page is cut into pieces, each of which begins with a tag. An event is a JSON array: two numbers
//! stand for pieces that the client has (the first one and how many), and a text for new ones.

use std::{collections::HashMap, sync::Arc};

use serde_json::{Value, json};

/// A piece of this length or more is looked for elsewhere in the old page: it may have moved.
const DISTINCTIVE: usize = 24;

/// A page, and where its pieces begin and end.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    html: Arc<str>,
    /// The ends of the pieces.
    ends: Vec<usize>,
}

/// An event with a whole page.
pub(super) fn whole(html: &str) -> String {
    json!([html]).to_string()
}

impl Pieces {
    pub fn of(html: Arc<str>) -> Self {
        let begins = html.match_indices('<').map(|(at, _)| at);
        let mut ends: Vec<usize> = begins.filter(|at| *at > 0).collect();
        ends.push(html.len());
        Self { html, ends }
    }

    fn piece(&self, at: usize) -> Option<&str> {
        let begin = match at.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.html.get(begin..*self.ends.get(at)?)
    }

    fn all(&self) -> impl Iterator<Item = &str> {
        (0..self.ends.len()).filter_map(|at| self.piece(at))
    }

    /// The event that makes this page out of the `old` one.
    pub fn since(&self, old: &Self) -> String {
        if old.ends.is_empty() {
            return whole(&self.html);
        }
        let mut places: HashMap<&str, usize> = HashMap::new();
        for (at, piece) in old.all().enumerate() {
            if piece.len() >= DISTINCTIVE {
                places.entry(piece).or_insert(at);
            }
        }
        let mut steps: Vec<Value> = Vec::new();
        // Where the old page goes on, the run of old pieces, and the new text, one of which is empty.
        let (mut at, mut run, mut text) = (0, (0, 0), String::new());
        let mut end = |run: &mut (usize, usize), text: &mut String| {
            if run.1 > 0 {
                steps.extend([json!(run.0), json!(run.1)]);
            }
            if !text.is_empty() {
                steps.push(json!(std::mem::take(text)));
            }
            *run = (0, 0);
        };
        for piece in self.all() {
            let same = old.piece(at) == Some(piece);
            let moved = || places.get(piece).copied();
            if let Some(found) = if same { Some(at) } else { moved() } {
                if !text.is_empty() || run.0 + run.1 != found {
                    end(&mut run, &mut text);
                    run.0 = found;
                }
                run.1 += 1;
                at = found + 1;
            } else {
                if run.1 > 0 {
                    end(&mut run, &mut text);
                }
                text.push_str(piece);
                // One piece mostly replaces one.
                at += 1;
            }
        }
        end(&mut run, &mut text);
        Value::from(steps).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies an event as the page's script does.
    fn applied(old: &[String], event: &str) -> Vec<String> {
        let steps: Vec<Value> = serde_json::from_str(event).unwrap();
        let (mut new, mut steps) = (Vec::new(), steps.into_iter());
        while let Some(step) = steps.next() {
            if let Some(from) = step.as_u64() {
                let from = from as usize;
                let count = steps.next().unwrap().as_u64().unwrap() as usize;
                new.extend_from_slice(&old[from..from + count]);
            } else {
                new.extend(
                    Pieces::of(step.as_str().unwrap().into())
                        .all()
                        .map(str::to_owned),
                );
            }
        }
        new
    }

    #[test]
    fn an_event_makes_the_new_page_out_of_the_old_one() {
        let row = |name: &str, count: u32| {
            format!(
                "<tr data-row=\"limit {name}, which is long\"><th>{name}</th><td>{count}</td></tr>"
            )
        };
        let page = |rows: &[(&str, u32)]| {
            let rows: String = rows.iter().map(|(name, count)| row(name, *count)).collect();
            format!("<p>a &lt; b</p><table>{rows}</table>")
        };
        let first = page(&[("a", 1), ("b", 2), ("c", 3)]);
        let mut old = Pieces::of(first.into());
        for rows in [
            vec![("a", 1), ("b", 2), ("c", 3)],
            vec![("a", 1), ("b", 5), ("c", 3)],
            vec![("c", 9), ("a", 1), ("b", 5)],
            vec![("d", 9)],
            vec![],
            vec![("a", 1), ("b", 2), ("c", 3)],
        ] {
            let html = page(&rows);
            let new = Pieces::of(html.as_str().into());
            let event = new.since(&old);
            let before: Vec<String> = old.all().map(str::to_owned).collect();
            assert_eq!(applied(&before, &event).concat(), html, "{event}");
            old = new;
        }
    }

    #[test]
    fn what_stays_is_not_sent_again() {
        let [one, other] =
            ["<p>a</p><p>b</p>", "<p>a</p><p>c</p>"].map(|html| Pieces::of(html.into()));
        assert_eq!(other.since(&one), r#"[0,2,"<p>c",3,1]"#);
        assert_eq!(one.since(&one), "[0,4]");
        assert_eq!(one.since(&Pieces::default()), whole(&one.html));
    }
}
