//! A request of a log by its fields, in any format.

use std::borrow::Cow;

use super::{
    client::{client, is_address},
    line::LineError,
    record::IP,
};
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
            // A field with any other name may have an address, but its port may matter.
            let is_client = match field {
                Field::Ip => true,
                Field::Named(name) => IP.split(' ').any(|ip| ip == name) || is_address(&text),
                _ => false,
            };
            by.push(key, &if is_client { client(&text) } else { text });
        }
        Ok(())
    }
}
