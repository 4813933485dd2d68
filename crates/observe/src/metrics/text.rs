//! The two text formats of metrics.

use std::sync::Arc;

/// All metrics at one moment, in both formats.
#[derive(Debug)]
pub struct Rendering {
    open: Arc<str>,
    older: Arc<str>,
}

impl Rendering {
    pub(super) fn new(open: String) -> Self {
        let older = prometheus(&open).into();
        Self {
            open: open.into(),
            older,
        }
    }

    /// The text in the format that a client asks for with `Accept`, and its content type. A client
    /// that names none gets the older one, which every reader knows.
    pub fn in_format(&self, accept: Option<&str>) -> (&Arc<str>, &'static str) {
        if accept.is_some_and(|types| types.contains("application/openmetrics-text")) {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (&self.open, kind)
        } else {
            (&self.older, "text/plain; version=0.0.4; charset=utf-8")
        }
    }
}

/// In the older format comments name a counter with its suffix, an info is a gauge, and nothing
/// marks the end.
fn prometheus(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.split_inclusive('\n') {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            let (suffix, kind) = match kind.trim_end() {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                // A counter whose name is another program's.
                "unknown" => ("", "counter"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                out.extend(["# HELP ", name, suffix, " ", help]);
            }
            out.extend(["# TYPE ", name, suffix, " ", kind, "\n"]);
        } else if !line.starts_with("# ") {
            out.push_str(line);
        }
    }
    out
}
