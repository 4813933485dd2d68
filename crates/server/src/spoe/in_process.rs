//! The agent without sockets, for the fuzz target and for tests: what a client sends as bytes, on a clock that they move.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tidegate_core::{Clock, ManualClock, Nanos};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    runtime::{Builder, Runtime},
    sync::watch,
};

use super::{Agent, connection::Connection};
use crate::{
    access::{Access, Door},
    connections::{Calls, Slots},
    limits::Limits,
    rules,
    service::Service,
    throttle::Throttle,
};

const START: Nanos = Nanos::from_secs(1_700_049_600);

/// An agent with rules.
pub struct Conversations {
    runtime: Runtime,
    agent: Agent,
    slots: Arc<Slots>,
    clock: Arc<ManualClock>,
}

/// What a client sends, and then the end; and what it has read.
struct Script<'a> {
    sent: &'a [u8],
    read: Vec<u8>,
}

impl Conversations {
    /// # Panics
    /// When the rules have mistakes.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let rules = rules::parse(text).expect("rules");
        let limits = Limits::new(rules, 1_000, |_| None, START).expect("memory");
        let clock = Arc::new(ManualClock::new(START));
        let its: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let service = Service::new(limits, Throttle::new(4, None).expect("memory"), its);
        let door = Door::new(Arc::new(Access::open(None, false).expect("no file")), true);
        let agent = Agent { service: Arc::new(service), door, stats: Arc::default() };
        let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
        Self { runtime, agent, slots: Slots::new(1), clock }
    }

    /// Moves the clock on.
    pub fn advance(&self, span: Duration) {
        self.clock.advance(span);
    }

    /// Sends these bytes on a connection. Returns whether it ended well, and what was answered.
    ///
    /// # Panics
    /// When a connection before has not ended.
    #[must_use]
    pub fn hold(&self, sent: &[u8]) -> (bool, Vec<u8>) {
        let slot = self.slots.admit().expect("the connection before has ended").slot;
        let connection = Connection::new(&self.agent, Arc::new(Calls::new(slot)), None);
        let mut script = Script { sent, read: Vec::new() };
        let (_stop, stopping) = watch::channel(false);
        let ended = self.runtime.block_on(connection.converse(&mut script, stopping));
        (ended.is_ok(), script.read)
    }
}

impl AsyncRead for Script<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sent).poll_read(context, buffer)
    }
}

impl AsyncWrite for Script<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.read.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use spop::{
        SpopCodec, SpopFrame, StatusCode, TypedData,
        frame::{FrameType, FramePayload},
        parser::parse_frame,
    };
    use tokio_util::codec::Decoder;

    use super::*;

    const RULES: &str = "limits: [{name: a, limit: 2/1m, algorithm: sliding-log}, {name: b, limit: 1/1m, algorithm: sliding-log}]";

    /// A frame with this type and payload.
    fn frame(kind: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = u32::try_from(7 + payload.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend([kind, 0, 0, 0, 1, stream, stream]);
        bytes.extend(payload);
        bytes
    }

    /// A short text, as a name or, after its type, as a value.
    fn text(text: &str) -> Vec<u8> {
        let mut bytes = vec![u8::try_from(text.len()).unwrap()];
        bytes.extend(text.bytes());
        bytes
    }

    fn pair(name: &str, value: &str) -> Vec<u8> {
        [text(name), vec![8], text(value)].concat()
    }

    fn hello(version: &str, is_check: bool) -> Vec<u8> {
        let check = [text("healthcheck"), vec![if is_check { 0x11 } else { 1 }]].concat();
        // A varint of 16,380.
        let size = [text("max-frame-size"), vec![3, 252, 240, 6]].concat();
        let both = [pair("supported-versions", version), size, pair("capabilities", "pipelining,async"), check];
        frame(1, 0, &both.concat())
    }

    fn notify(stream: u8, messages: &[(&str, &str)]) -> Vec<u8> {
        let message = |(limit, key): &(&str, &str)| {
            [text("check"), vec![2], pair("limit", limit), pair("key", key)].concat()
        };
        frame(3, stream, &messages.iter().flat_map(message).collect::<Vec<_>>())
    }

    fn frames(bytes: &[u8]) -> Vec<Box<dyn SpopFrame>> {
        let mut rest = BytesMut::from(bytes);
        let mut codec = SpopCodec::default();
        std::iter::from_fn(|| codec.decode(&mut rest).unwrap()).collect()
    }

    fn variable(frame: &dyn SpopFrame, name: &str) -> Option<TypedData> {
        todo!()
    }
}
