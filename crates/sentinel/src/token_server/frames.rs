//! Requests and responses, byte by byte. All numbers are signed and in network order.
//!
//! ```text
//! request    length u16 │ xid i32 │ type i8 │ data
//! response   length u16 │ xid i32 │ type i8 │ status i8 │ data
//! ```

use bytes::{Buf, BufMut, BytesMut};
use tidegate_flow::Arg;

/// The longest frame that is read, without its length. A longer one is skipped.
const MAX_FRAME: usize = 1_022;
const XID_AND_TYPE: usize = 5;

/// How a request ended, as clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    BadRequest = -4,
    TooManyRequests = -2,
    /// Clients decide by themselves, or pass, as their rule says.
    Fail = -1,
    Ok = 0,
    Blocked = 1,
    ShouldWait = 2,
    NoRule = 3,
}

/// A request.
#[derive(Debug, PartialEq)]
pub(super) struct TokenRequest {
    pub xid: i32,
    /// The type, as it was sent.
    pub code: i8,
    pub asks: Asks,
}

/// The question of a request.
#[derive(Debug, PartialEq)]
pub(super) enum Asks {
    /// Who the client is; `None` if it does not say.
    Ping(Option<String>),
    Flow {
        flow_id: i64,
        count: u32,
        is_prioritized: bool,
    },
    Params {
        flow_id: i64,
        count: u32,
        values: Vec<Vec<u8>>,
    },
    /// A request that no rule can answer: without values, with a count below 1, or cut off.
    Bad,
    Unknown,
}

/// Takes requests from the bytes that a client sent.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Bytes of a frame that is too long, which have not come yet.
    to_skip: usize,
}

impl Reader {
    /// The next request; `None` if its end has not come yet.
    pub fn next(&mut self, input: &mut BytesMut) -> Option<TokenRequest> {
        loop {
            let skipped = self.to_skip.min(input.len());
            input.advance(skipped);
            self.to_skip -= skipped;
            let length = usize::from(u16::from_be_bytes(*input.first_chunk()?));
            if length > MAX_FRAME {
                self.to_skip = 2 + length;
                continue;
            }
            if input.len() < 2 + length {
                return None;
            }
            input.advance(2);
            let mut frame = &input[..length];
            let request = (length >= XID_AND_TYPE).then(|| {
                let (xid, code) = (frame.get_i32(), frame.get_i8());
                let asks = match code {
                    0 => Asks::Ping(namespace(frame)),
                    1 => flow(frame).unwrap_or(Asks::Bad),
                    2 => params(frame).unwrap_or(Asks::Bad),
                    _ => Asks::Unknown,
                };
                TokenRequest { xid, code, asks }
            });
            input.advance(length);
            if request.is_some() {
                return request;
            }
        }
    }
}

fn namespace(mut data: &[u8]) -> Option<String> {
    let length = usize::try_from(data.try_get_i32().ok()?).ok()?;
    let name = data.get(..length).filter(|name| !name.is_empty())?;
    Some(String::from_utf8_lossy(name).into_owned())
}

fn flow(mut data: &[u8]) -> Option<Asks> {
    let (flow_id, count) = id_and_count(&mut data)?;
    // Old clients leave the last byte out.
    let is_prioritized = data.first().is_some_and(|byte| *byte != 0);
    Some(Asks::Flow {
        flow_id,
        count,
        is_prioritized,
    })
}

fn params(mut data: &[u8]) -> Option<Asks> {
    let (flow_id, count) = id_and_count(&mut data)?;
    let values = data.try_get_i32().ok()?;
    // Each value has two bytes or more.
    let values = usize::try_from(values)
        .ok()
        .filter(|values| (1..=MAX_FRAME / 2).contains(values))?;
    let values: Option<Vec<_>> = (0..values).map(|_| value(&mut data)).collect();
    Some(Asks::Params {
        flow_id,
        count,
        values: values?,
    })
}

fn id_and_count(data: &mut &[u8]) -> Option<(i64, u32)> {
    let flow_id = data.try_get_i64().ok().filter(|id| *id > 0)?;
    let count = u32::try_from(data.try_get_i32().ok()?)
        .ok()
        .filter(|count| *count > 0)?;
    Some((flow_id, count))
}

/// The key of a value: its text. Values of different types can have the same.
fn value(data: &mut &[u8]) -> Option<Vec<u8>> {
    let arg: Arg<'_> = match data.try_get_i8().ok()? {
        0 => i64::from(data.try_get_i32().ok()?).into(),
        1 => data.try_get_i64().ok()?.into(),
        2 => i64::from(data.try_get_i8().ok()?).into(),
        3 => data.try_get_f64().ok()?.into(),
        4 => data.try_get_f32().ok()?.into(),
        5 => i64::from(data.try_get_i16().ok()?).into(),
        6 => (data.try_get_u8().ok()? != 0).into(),
        7 => {
            let length = usize::try_from(data.try_get_i32().ok()?).ok()?;
            let text = data.split_off(..length)?;
            return Some(text.to_vec());
        }
        _ => return None,
    };
    Some(arg.to_string().into_bytes())
}

/// Appends the response to a PING: the connections of its namespace. Without them, it is that to a
/// PING that names none, and to a request of an unknown type.
pub(super) fn put_pong(output: &mut Vec<u8>, request: &TokenRequest, connections: Option<usize>) {
    let Some(connections) = connections else {
        return put_head(output, request, Status::Fail, 0);
    };
    put_head(output, request, Status::Ok, 4);
    output.put_i32(i32::try_from(connections).unwrap_or(i32::MAX));
}

/// Appends the response to a request for tokens.
pub(super) fn put_tokens(output: &mut Vec<u8>, request: &TokenRequest, answer: Answer) {
    put_head(output, request, answer.status, 8);
    output.put_i32(answer.remaining);
    output.put_i32(answer.wait_ms);
}

fn put_head(output: &mut Vec<u8>, request: &TokenRequest, status: Status, data: u16) {
    output.put_u16(6 + data);
    output.put_i32(request.xid);
    output.put_i8(request.code);
    output.put_i8(status as i8);
}

/// The answer to a request for tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: Status,
    pub remaining: i32,
    pub wait_ms: i32,
}

impl From<Status> for Answer {
    fn from(status: Status) -> Self {
        Self {
            status,
            remaining: 0,
            wait_ms: 0,
        }
    }
}
