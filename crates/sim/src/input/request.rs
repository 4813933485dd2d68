//! A request of a log by its fields, in any format.

use std::borrow::Cow;

use super::{client::client, line::LineError};
use crate::workload::{By, Field};

/// The contents of a line about a request.
pub(super) trait LogRequest {
    /// Nanoseconds since 1970.
    fn time(&self) -> u64;

    /// The text of a field, as in the log.
    fn field(&self, field: &Field) -> Result<Cow<'_, [u8]>, LineError>;

    /// Composes the request's key. Addresses become [clients](client).
    fn key(&self, by: &By, key: &mut Vec<u8>) -> Result<(), LineError> {
        for field in by.fields() {
            let text = self.field(field)?;
            if *field == Field::Ip {
                by.push(key, &client(&text));
            } else {
                by.push(key, &text);
            }
        }
        Ok(())
    }
}
