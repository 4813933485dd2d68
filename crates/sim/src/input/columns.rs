//! Lines of columns whose names are in a header: CSV, text separated by tabs or semicolons, and the
//! extended log format of the W3C (IIS, Amazon's CDN).

use super::line::LineError;

/// The names of the columns, and what is between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    names: Vec<String>,
    /// `None` for a W3C log: tabs if a line has one, otherwise blanks.
    separator: Option<char>,
}

impl Header {
    /// The header of `#Fields: date time c-ip …`, a directive of W3C logs.
    pub fn directive(line: &[u8]) -> Option<Self> {
        let names = std::str::from_utf8(line.strip_prefix(b"#Fields:")?)
            .ok()?
            .split_ascii_whitespace();
        Some(Self {
            names: names.map(str::to_owned).collect(),
            separator: None,
        })
    }

    /// The header of a table, if the line is one: at least two names, of which none is a number, an
    /// address or a time.
    pub fn of_table(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line)
            .ok()?
            .trim_start_matches('\u{feff}');
        let separator = [',', ';', '\t']
            .into_iter()
            .max_by_key(|separator| line.matches(*separator).count())?;
        let names = split(line, separator)?;
        let is_name = |name: &String| {
            name.starts_with(|first: char| first.is_ascii_alphabetic() || "_@".contains(first))
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_@. ()-".contains(c))
        };
        (names.len() > 1 && names.iter().all(is_name)).then_some(Self {
            names,
            separator: Some(separator),
        })
    }

    /// Each column's name and text.
    pub fn fields(
        &self,
        line: &[u8],
    ) -> Result<impl Iterator<Item = (&String, String)>, LineError> {
        let line = String::from_utf8_lossy(line);
        let values = match self.separator {
            Some(separator) => split(&line, separator),
            None if line.contains('\t') => Some(line.split('\t').map(str::to_owned).collect()),
            None => Some(line.split_ascii_whitespace().map(str::to_owned).collect()),
        };
        let values = values.filter(|values: &Vec<_>| values.len() == self.names.len());
        let values = values.ok_or(LineError::Columns {
            wanted: self.names.len(),
        })?;
        Ok(self.names.iter().zip(values))
    }
}

/// The columns of a line, in which quotes may enclose a column and two of them stand for one;
/// `None` if a quote does not end.
fn split(line: &str, separator: char) -> Option<Vec<String>> {
    let (mut columns, mut rest) = (Vec::new(), line);
    loop {
        let mut column = String::new();
        if let Some(mut quoted) = rest.strip_prefix('"') {
            loop {
                let (text, behind) = quoted.split_once('"')?;
                column.push_str(text);
                match behind.strip_prefix('"') {
                    Some(more) => {
                        column.push('"');
                        quoted = more;
                    }
                    None => break rest = behind,
                }
            }
            if !rest.is_empty() && !rest.starts_with(separator) {
                return None;
            }
        } else {
            let end = rest.find(separator).unwrap_or(rest.len());
            column.push_str(rest[..end].trim_matches(' '));
            rest = &rest[end..];
        }
        columns.push(column);
        match rest.strip_prefix(separator) {
            Some(more) => rest = more,
            None => return Some(columns),
        }
    }
}
