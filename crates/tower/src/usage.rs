//! Costs that the text of a response has: a JSON document, or the server-sent events of a stream.

use http::{
    header::{CONTENT_ENCODING, CONTENT_TYPE},
    response::Parts,
};
use serde_json::Value;

/// The maximum size of a document or an event that is read. A larger one has no cost.
const MOST: usize = 1 << 20;

/// Reads the JSON values of a body as it passes.
#[derive(Default)]
pub(crate) struct Usage {
    is_stream: bool,
    /// The document so far, or the data of the event so far.
    text: Vec<u8>,
    /// The line of the stream so far.
    line: Vec<u8>,
    /// Whether the last byte was a carriage return: a line feed after it ends no other line.
    is_after_return: bool,
    /// Whether the document or the event is larger than [`MOST`].
    is_too_large: bool,
}

impl Usage {
    /// `None` if the body is neither JSON nor a stream of events, or is compressed.
    pub fn of(head: &Parts) -> Option<Self> {
        let kind = head.headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let is_stream = kind.eq_ignore_ascii_case("text/event-stream");
        let is_json = kind.eq_ignore_ascii_case("application/json") || kind.ends_with("+json");
        let is_plain = head
            .headers
            .get(CONTENT_ENCODING)
            .is_none_or(|coding| coding == "identity");
        (is_plain && (is_stream || is_json)).then(|| Self {
            is_stream,
            ..Self::default()
        })
    }

    /// Reads a part of the body, and passes on each event of a stream that is complete.
    pub fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(&Value)) {
        if !self.is_stream {
            return self.add(bytes);
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (before, ended_by) = (&bytes[..end], bytes[end]);
            bytes = &bytes[end + 1..];
            let is_second =
                std::mem::take(&mut self.is_after_return) && before.is_empty() && ended_by == b'\n';
            if is_second {
                continue;
            }
            self.is_after_return = ended_by == b'\r';
            self.is_too_large |= !append(&mut self.line, before);
            let line = std::mem::take(&mut self.line);
            if let Some(data) = line.strip_prefix(b"data:") {
                self.add(data);
                self.add(b"\n");
            } else if line.is_empty() {
                self.end(&mut found);
            }
        }
        if !bytes.is_empty() {
            self.is_after_return = false;
        }
        self.is_too_large |= !append(&mut self.line, bytes);
    }

    /// The body is over: passes on a document.
    pub fn end(&mut self, mut found: impl FnMut(&Value)) {
        let text = std::mem::take(&mut self.text);
        if !std::mem::take(&mut self.is_too_large)
            && let Ok(value) = serde_json::from_slice(&text)
        {
            found(&value);
        }
    }

    fn add(&mut self, bytes: &[u8]) {
        self.is_too_large |= !append(&mut self.text, bytes);
    }
}

/// Appends bytes to a text, unless both together are too large. Returns whether they fit.
fn append(text: &mut Vec<u8>, bytes: &[u8]) -> bool {
    let fits = text.len() + bytes.len() <= MOST;
    if fits {
        text.extend_from_slice(bytes);
    }
    fits
}
