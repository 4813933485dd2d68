//! One request of a log, by its fields, whatever the log's form.

use std::borrow::Cow;

use super::{
    by::{By, Field},
    client::client,
    line::LineError,
};

/// What a line says about a request.
pub(super) trait Request {
    /// Nanoseconds since 1970.
    fn time(&self) -> u64;

    /// The text of a field, as the log has it.
    fn field(&self, field: &Field) -> Result<Cow<'_, [u8]>, LineError>;

    /// Puts together the request's key. Addresses are [clients](client).
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
