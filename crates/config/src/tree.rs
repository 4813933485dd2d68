//! A YAML text as a tree. Every node knows its line, so every complaint can name it.
//!
//! The tree is built from the events of `saphyr-parser`, a maintained YAML 1.2 parser. Serde would
//! stop at the first mistake, and would lose the lines of values that parse but are invalid. This
//! crate reports all problems of a file in one pass.

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use tidegate_core::Visible;

use super::Problem;

/// Configuration consists of lists of nearly flat mappings. Deeper nesting is a mistake or an
/// attack.
const MAX_DEPTH: usize = 16;
/// The maximum number of values: each takes about 100 bytes, so a tree has at most 25 MB. A
/// thousand limits with 100,000 overrides have 210,000.
const MAX_VALUES: usize = 250_000;

/// A value and its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// The first line of the value, counted from 1.
    pub line: usize,
    /// The value itself.
    pub kind: Kind,
}

/// The kind of a value.
#[derive(Clone, Debug)]
pub enum Kind {
    /// A text, a number, a boolean or null. The reader decides which.
    Scalar {
        /// The text as written, without quotes.
        text: String,
        /// Whether the text is unquoted, so that `true` and `~` have their YAML meaning.
        plain: bool,
    },
    /// A list.
    Sequence(Vec<Node>),
    /// Keys with their values, in file order.
    Mapping(Vec<(Node, Node)>),
}

impl Node {
    /// Describes the node for a complaint.
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Scalar { .. } if self.is_null() => "nothing".to_owned(),
            Kind::Scalar { text, .. } => format!("`{}`", abridged(text)),
            Kind::Sequence(_) => "a list".to_owned(),
            Kind::Mapping(_) => "a mapping".to_owned(),
        }
    }

    /// Returns whether the value is empty, `null` or `~`.
    pub fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// Returns the text of a scalar that is not null.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }
}

/// Returns the beginning of an untrusted text, which may be long, on one line.
pub fn abridged(text: &str) -> String {
    const SHOWN: usize = 60;
    let beginning: String = text.chars().take(SHOWN).collect();
    let mut shown = Visible(&beginning).to_string();
    if text.chars().count() > SHOWN {
        shown.push('…');
    }
    shown
}

/// Parses a text with one document; `None` if the text has no document.
///
/// # Errors
/// If the text is not valid YAML, has anchors or a second document, has more than 250,000 values,
/// or nests them more than 16 levels deep.
pub fn parse(text: &str) -> Result<Option<Node>, Problem> {
    parse_nested(text, MAX_DEPTH)
}

/// Same as [`parse`], but allows nesting up to `max_depth` levels.
///
/// # Errors
/// Same as [`parse`], with that depth.
pub fn parse_nested(text: &str, max_depth: usize) -> Result<Option<Node>, Problem> {
    let parser = Parser::new_from_str(text);
    let mut reader = Reader {
        parser,
        last_line: 1,
        max_depth,
        values_left: MAX_VALUES,
    };
    let mut root = None;
    loop {
        let (event, line) = reader.next()?;
        match event {
            Event::StreamEnd => return Ok(root),
            Event::DocumentStart(_) if root.is_some() => {
                return Err(Problem::at(line, "a second YAML document begins here")
                    .mend("keep one document in the file: remove the `---` and what follows"));
            }
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::Nothing => {}
            event => root = Some(reader.node(event, line, 0)?),
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, saphyr_parser::StrInput<'a>>,
    last_line: usize,
    max_depth: usize,
    values_left: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, usize), Problem> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => {
                self.last_line = line_of(&span);
                Ok((event, self.last_line))
            }
            Some(Err(e)) => Err(
                Problem::at(e.marker().line(), format!("not YAML: {}", e.info()))
                    .mend("check the indentation, and quote values with special characters"),
            ),
            None => Ok((Event::StreamEnd, self.last_line)),
        }
    }

    fn node(&mut self, event: Event<'a>, line: usize, depth: usize) -> Result<Node, Problem> {
        if depth > self.max_depth {
            return Err(Problem::at(line, "the nesting is too deep")
                .mend("is the indentation right? see `tidegate check --help`"));
        }
        self.values_left = self.values_left.checked_sub(1).ok_or_else(|| {
            Problem::at(line, format!("the file has more than {MAX_VALUES} values"))
                .mend("override the quotas of single keys while the server runs instead: `tidegate override`")
        })?;
        let anchor = match &event {
            Event::Alias(_) => 1,
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(anchor, _)
            | Event::MappingStart(anchor, _) => *anchor,
            _ => 0,
        };
        if anchor != 0 {
            return Err(
                Problem::at(line, "anchors and aliases (& and *) are not supported here")
                    .mend("write the value out, or quote it if the & or * belongs to it"),
            );
        }
        let kind = match event {
            Event::Scalar(text, style, _, _) => Kind::Scalar {
                text: text.into_owned(),
                plain: style == ScalarStyle::Plain,
            },
            Event::SequenceStart(..) => {
                let mut items = Vec::new();
                loop {
                    let (event, line) = self.next()?;
                    if event == Event::SequenceEnd {
                        items.shrink_to_fit();
                        break Kind::Sequence(items);
                    }
                    items.push(self.node(event, line, depth + 1)?);
                }
            }
            Event::MappingStart(..) => {
                let mut entries = Vec::new();
                loop {
                    let (event, line) = self.next()?;
                    if event == Event::MappingEnd {
                        // Most have two or three entries, and room for four.
                        entries.shrink_to_fit();
                        break Kind::Mapping(entries);
                    }
                    let key = self.node(event, line, depth + 1)?;
                    let (event, line) = self.next()?;
                    entries.push((key, self.node(event, line, depth + 1)?));
                }
            }
            // The parser pairs start and end events, so any other event means that the text is
            // broken.
            _ => {
                return Err(
                    Problem::at(line, "the YAML ends unexpectedly").mend("close what is open here")
                );
            }
        };
        Ok(Node { line, kind })
    }
}

fn line_of(span: &Span) -> usize {
    span.start.line().max(1)
}
