//! Counts what a resource has in its protobuf bytes, before any of it is built.
//!
//! A descriptor takes two bytes on the wire and thousands as a rule, so the size of a message does
//! not bound the memory for it.

use super::ResourceError;
use crate::config::load::MAX_RULES;

/// The maximum number of descriptors in an answer: those with a limit, and those around them.
pub(super) const MAX_DESCRIPTORS: usize = 4 * MAX_RULES;
/// The maximum number of names to replace, and of values in metadata.
pub(super) const MAX_VALUES: usize = 10 * MAX_RULES;
/// The deepest nesting of messages: that of prost.
pub(super) const MAX_DEPTH: usize = 100;

/// The parts of an answer's resources so far.
#[derive(Debug, Default)]
pub(super) struct Count {
    descriptors: usize,
    values: usize,
}

/// The messages that are looked into.
#[derive(Clone, Copy)]
enum Within {
    Config,
    Descriptor,
    Policy,
    Replace,
    /// A `google.protobuf.Struct`, an entry of it, a value, and a list of values.
    Struct,
    Entry,
    Value,
    List,
}

impl Within {
    /// The message in a field.
    const fn inner(self, field: u64) -> Option<Self> {
        Some(match (self, field) {
            (Self::Config, 3) | (Self::Descriptor, 4) => Self::Descriptor,
            (Self::Descriptor, 3) => Self::Policy,
            (Self::Policy, 5) => Self::Replace,
            (Self::Descriptor, 8) | (Self::Value, 5) => Self::Struct,
            (Self::Struct, 1) => Self::Entry,
            (Self::Entry, 2) | (Self::List, 1) => Self::Value,
            (Self::Value, 6) => Self::List,
            _ => return None,
        })
    }
}

impl Count {
    /// Adds a resource.
    ///
    /// # Errors
    /// When there are too many parts in all resources together, or they nest too deeply. What
    /// cannot be read is left to the decoder.
    pub fn add(&mut self, resource: &[u8]) -> Result<(), ResourceError> {
        self.message(Within::Config, resource, 0)
    }

    fn message(
        &mut self,
        within: Within,
        mut bytes: &[u8],
        depth: usize,
    ) -> Result<(), ResourceError> {
        if depth > MAX_DEPTH {
            return Err(ResourceError::TooDeep);
        }
        while let Some(tag) = number(&mut bytes) {
            let skipped = match tag & 7 {
                0 => number(&mut bytes).map(|_| &[][..]),
                1 => take(&mut bytes, 8),
                2 => number(&mut bytes).and_then(|length| take(&mut bytes, length)),
                5 => take(&mut bytes, 4),
                _ => None,
            };
            let Some(content) = skipped else {
                return Ok(());
            };
            let inner = within.inner(tag >> 3).filter(|_| tag & 7 == 2);
            match inner {
                Some(Within::Descriptor) => self.descriptors += 1,
                Some(Within::Replace | Within::Value) => self.values += 1,
                _ => {}
            }
            if self.descriptors > MAX_DESCRIPTORS {
                return Err(ResourceError::TooManyDescriptors);
            }
            if self.values > MAX_VALUES {
                return Err(ResourceError::TooManyValues);
            }
            if let Some(inner) = inner {
                self.message(inner, content, depth + 1)?;
            }
        }
        Ok(())
    }
}

/// A varint from the front.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(length).ok()?)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::super::messages::{Descriptor, RateLimitConfig};
    use super::*;
    use crate::pb::google::protobuf::{ListValue, Struct, Value, value::Kind};

    fn config(descriptors: Vec<Descriptor>) -> Vec<u8> {
        let config = RateLimitConfig {
            descriptors,
            ..RateLimitConfig::default()
        };
        config.encode_to_vec()
    }

    #[test]
    fn descriptors_are_counted_on_every_level_and_in_all_resources() {
        let leaf = vec![Descriptor::default(); 999];
        let level = vec![
            Descriptor {
                descriptors: leaf,
                ..Descriptor::default()
            };
            MAX_DESCRIPTORS / 1_000
        ];
        let full = config(level);
        let mut count = Count::default();
        count.add(&full).unwrap();
        assert_eq!(count.descriptors, MAX_DESCRIPTORS);
        let refused = count.add(&config(vec![Descriptor::default()]));
        assert!(matches!(refused, Err(ResourceError::TooManyDescriptors)));
    }

    #[test]
    fn values_of_metadata_are_counted_and_nesting_is_bounded() {
        let list = |values| Value {
            kind: Some(Kind::ListValue(ListValue { values })),
        };
        let with = |value: Value| {
            config(vec![Descriptor {
                metadata: Some(Struct {
                    fields: [("a".to_owned(), value)].into(),
                }),
                ..Descriptor::default()
            }])
        };
        let many = with(list(vec![Value { kind: None }; MAX_VALUES]));
        let refused = Count::default().add(&many);
        assert!(matches!(refused, Err(ResourceError::TooManyValues)));
        let deep = (0..200).fold(Value { kind: None }, |value, _| list(vec![value]));
        let refused = Count::default().add(&with(deep));
        assert!(matches!(refused, Err(ResourceError::TooDeep)));
    }

    #[test]
    fn any_bytes_are_counted_without_a_panic() {
        let whole = config(vec![Descriptor::default(); 3]);
        for end in 0..whole.len() {
            Count::default().add(&whole[..end]).unwrap();
        }
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..state % 60)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (state >> 33) as u8
                })
                .collect();
            state = state.wrapping_add(0x9E37_79B9);
            let _ = Count::default().add(&bytes);
        }
    }
}
