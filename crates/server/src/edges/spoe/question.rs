//! The questions in the messages of a frame.

use spop::{TypedData, frame::Message};
use tidegate_core::MAX_LIMIT;
use tidegate_service::decide::{refusal::Refusal, service::Ask};

use crate::edges::http::MAX_ALL;

/// The question of one message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub limit: String,
    pub key: Option<Vec<u8>>,
    pub cost: u64,
}

/// Why a frame gets no decision. The message says what to do: HAProxy can log it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unasked {
    #[error("all connections are in use; retry later or raise --max-connections")]
    NoSlot,
    #[error("the connection needs a client certificate that the server knows")]
    Stranger,
    #[error("{0} may not ask for decisions: it needs the role `decide`")]
    MayNotDecide(String),
    #[error("{client} may not use the limit `{limit}`")]
    ForeignLimit { client: String, limit: String },
    #[error("the event has no message with a limit")]
    NoMessage,
    #[error("the event has {0} messages; at most {MAX_ALL} are decided together")]
    TooManyMessages(usize),
    #[error(
        "message `{message}` has the argument `{argument}`; the arguments are limit, key and cost, each once"
    )]
    Argument { message: String, argument: String },
    #[error("message `{0}` has no limit: add `limit=str(NAME)` to its args")]
    NoLimit(String),
    #[error("message `{0}`: the cost must be a whole number from 0 to {max}", max = MAX_LIMIT)]
    Cost(String),
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl Asked {
    pub fn ask(&self) -> Ask<'_> {
        Ask {
            limit: self.limit.as_bytes(),
            key: self.key.as_deref(),
            cost: self.cost,
        }
    }
}

/// The questions of a frame's messages.
///
/// # Errors
/// When a message is not a question, or the frame has no message or too many.
pub(super) fn asked(messages: &[Message]) -> Result<Vec<Asked>, Unasked> {
    match messages.len() {
        0 => Err(Unasked::NoMessage),
        1..=MAX_ALL => messages.iter().map(one).collect(),
        many => Err(Unasked::TooManyMessages(many)),
    }
}

fn one(message: &Message) -> Result<Asked, Unasked> {
    let (mut limit, mut key, mut cost) = (None, None, None);
    for (name, value) in &message.args {
        let place = match name.as_str() {
            "limit" => &mut limit,
            "key" => &mut key,
            "cost" => &mut cost,
            _ => return Err(unknown(message, name)),
        };
        if place.replace(value).is_some() {
            return Err(unknown(message, name));
        }
    }
    let limit = limit
        .and_then(bytes)
        .ok_or_else(|| Unasked::NoLimit(shown(&message.name)))?;
    let cost = match cost {
        None => 1,
        Some(cost) => number(cost).ok_or_else(|| Unasked::Cost(shown(&message.name)))?,
    };
    Ok(Asked {
        limit: String::from_utf8_lossy(&limit).into_owned(),
        key: key.and_then(bytes),
        cost,
    })
}

fn unknown(message: &Message, argument: &str) -> Unasked {
    Unasked::Argument {
        message: shown(&message.name),
        argument: shown(argument),
    }
}

/// A value as a key or a name: text and bytes as they are, everything else as HAProxy writes it.
/// `None` where a sample found nothing.
fn bytes(value: &TypedData) -> Option<Vec<u8>> {
    let text = match value {
        TypedData::Null => return None,
        TypedData::String(text) => return Some(text.clone().into_bytes()),
        TypedData::Binary(bytes) => return Some(bytes.clone()),
        TypedData::Bool(is_true) => u8::from(*is_true).to_string(),
        TypedData::Int32(number) => number.to_string(),
        TypedData::UInt32(number) => number.to_string(),
        TypedData::Int64(number) => number.to_string(),
        TypedData::UInt64(number) => number.to_string(),
        TypedData::IPv4(address) => address.to_string(),
        TypedData::IPv6(address) => address.to_string(),
    };
    Some(text.into_bytes())
}

fn number(value: &TypedData) -> Option<u64> {
    let number = match value {
        TypedData::Int32(number) => u64::try_from(*number).ok(),
        TypedData::UInt32(number) => Some((*number).into()),
        TypedData::Int64(number) => u64::try_from(*number).ok(),
        TypedData::UInt64(number) => Some(*number),
        TypedData::String(text) => text.parse().ok(),
        _ => None,
    };
    number.filter(|number| *number <= MAX_LIMIT)
}

/// The first characters of a name, for a message.
fn shown(name: &str) -> String {
    name.chars().take(64).collect()
}
