//! One connection: the handshake, and then questions, several at a time, answered in any order.

use std::{io, sync::Arc, sync::atomic::Ordering};

use futures_util::{FutureExt, SinkExt, StreamExt, stream::FuturesUnordered};
use spop::{
    SpopCodec, SpopFrame, StatusCode,
    actions::VarScope,
    frame::{FramePayload, FrameType, Message},
    frames::{Ack, AgentDisconnect, AgentHello, FrameCapabilities, HaproxyHello},
};
use tidegate_listen::{
    access::{Rights, Role, Shown},
    connections::Calls,
};
use tidegate_service::decide::service::{Ask, JointAnswer, refuse_unknown};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
};
use tokio_util::codec::Framed;

use super::{
    Agent,
    question::{Asked, Unasked, asked},
};
use crate::edges::http::{policy_field, state_field};

/// The longest frame, in bytes. HAProxy's longest is its buffer: 16 KiB, unless it is configured.
const MAX_FRAME: u32 = 64 * 1024;
/// How many frames of a connection are decided at once. More stay in the socket.
const MAX_WAITING: usize = 64;

/// A connection of HAProxy.
pub(super) struct Connection<'a> {
    agent: &'a Agent,
    calls: Arc<Calls>,
    /// Those in the client's certificate, if any.
    names: Option<Arc<[String]>>,
}

/// The next step on a connection after the handshake.
enum Turn {
    Notify {
        stream: u64,
        frame: u64,
        messages: Vec<Message>,
    },
    Answered(Ack),
    Disconnect,
    Invalid(io::Error),
    Ended,
}

impl<'a> Connection<'a> {
    pub fn new(agent: &'a Agent, calls: Arc<Calls>, names: Option<Arc<[String]>>) -> Self {
        Self {
            agent,
            calls,
            names,
        }
    }

    /// Answers until the client is gone, or `stop` is set.
    ///
    /// # Errors
    /// When the client violates the protocol, or reads nothing.
    pub async fn converse<S>(&self, stream: S, mut stop: watch::Receiver<bool>) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut frames = Framed::new(stream, SpopCodec::new(MAX_FRAME));
        if !self.shake_hands(&mut frames).await? {
            return Ok(());
        }
        let mut waiting = FuturesUnordered::new();
        loop {
            let turn = tokio::select! {
                // All that has come is read before the first answer is written, so that answers
                // share a packet.
                biased;
                frame = frames.next(), if waiting.len() < MAX_WAITING => match frame.transpose() {
                    Ok(frame) => frame.map_or(Turn::Ended, |frame| Turn::from(&*frame)),
                    Err(error) => Turn::Invalid(error),
                },
                Some(ack) = waiting.next() => Turn::Answered(ack),
                // An error means that the sender is gone, so no one can stop the server any more:
                // stop then, too.
                _ = stop.wait_for(|stop| *stop) => break,
            };
            match turn {
                Turn::Notify {
                    stream,
                    frame,
                    messages,
                } => {
                    waiting.push(self.answer(stream, frame, messages));
                }
                Turn::Answered(ack) => send_all(&mut frames, ack, &mut waiting).await?,
                Turn::Ended => {
                    // A client may end only its sending side, so the remaining answers are sent; it
                    // may also be gone.
                    let _ = send_rest(&mut frames, waiting).await;
                    return Ok(());
                }
                Turn::Disconnect => {
                    return disconnect(&mut frames, StatusCode::None, "closed as asked for").await;
                }
                Turn::Invalid(error) => {
                    disconnect(&mut frames, StatusCode::Invalid, "expected a NOTIFY frame").await?;
                    return Err(error);
                }
            }
        }
        send_rest(&mut frames, waiting).await?;
        disconnect(&mut frames, StatusCode::None, "the server is stopping").await
    }

    /// Returns whether questions may follow; none follow a health check.
    async fn shake_hands<S>(&self, frames: &mut Framed<S, SpopCodec>) -> io::Result<bool>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let Some(first) = frames.next().await.transpose()? else {
            return Ok(false);
        };
        let _under_way = self.calls.begin();
        let hello = match first.frame_type() {
            FrameType::HaproxyHello => HaproxyHello::try_from(first.payload()).ok(),
            _ => None,
        };
        drop(first);
        let agreed = hello.ok_or(StatusCode::Invalid).and_then(|hello| {
            let version = hello.negotiate_version().ok_or(StatusCode::BadVersion)?;
            let max_frame_size = hello.negotiate_max_frame_size(MAX_FRAME)?;
            let capabilities = vec![FrameCapabilities::Pipelining];
            Ok((
                AgentHello {
                    version,
                    max_frame_size,
                    capabilities,
                },
                hello.healthcheck == Some(true),
            ))
        });
        match agreed {
            Ok((hello, is_check)) => {
                frames.codec_mut().set_max_frame_size(hello.max_frame_size);
                frames.send(boxed(hello)).await?;
                Ok(!is_check)
            }
            Err(status) => {
                let why = "expected a HAPROXY-HELLO frame of SPOP 2.0";
                disconnect(frames, status, why).await?;
                Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{why}: {status}"),
                ))
            }
        }
    }

    /// The answer to one frame.
    async fn answer(&self, stream: u64, frame: u64, messages: Vec<Message>) -> Ack {
        let _under_way = self.calls.begin();
        let (service, stats) = (&self.agent.service, &self.agent.stats);
        let now = service.now();
        let decided = self.decide(&messages).await;
        let ack = Ack::new(stream, frame);
        let txn = VarScope::Transaction;
        let [admitted, denied, failed] = &stats.requests;
        let (counter, ack) = match decided {
            Ok(answer) => {
                let is_denied = !answer.is_allowed();
                let mut ack = ack
                    .set_var(txn, "denied", is_denied)
                    .set_var(txn, "ratelimit", state_field(&answer.answers))
                    .set_var(txn, "ratelimit_policy", policy_field(&answer.answers));
                if let Some(wait) = answer.answers[answer.bound].retry_after() {
                    ack = ack.set_var(txn, "retry_after", tidegate_headers::ceil_secs(wait));
                }
                (if is_denied { denied } else { admitted }, ack)
            }
            Err(error) => (failed, ack.set_var(txn, "error", error.to_string())),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        stats
            .latency
            .observe(service.now().saturating_since(now), 1);
        ack
    }

    async fn decide(&self, messages: &[Message]) -> Result<JointAnswer, Unasked> {
        if self.calls.slot.is_spare {
            return Err(Unasked::NoSlot);
        }
        let rights = self.rights()?;
        let asked = asked(messages)?;
        let service = &self.agent.service;
        if let Some(foreign) = asked
            .iter()
            .find(|asked| !rights.concern(asked.limit.as_bytes()))
        {
            let (client, limit) = (rights.name.to_string(), foreign.limit.clone());
            return Err(Unasked::ForeignLimit { client, limit });
        }
        let limits = service.limits();
        asked
            .iter()
            .try_for_each(|asked| refuse_unknown(&limits, asked.limit.as_bytes(), &*rights))?;
        drop(limits);
        let asks: Vec<Ask<'_>> = asked.iter().map(Asked::ask).collect();
        service
            .acquire_all(&asks, service.now())
            .await
            .map_err(|(_, refusal)| refusal.into())
    }

    /// Looked up for each frame: the access file may have changed.
    fn rights(&self) -> Result<Arc<Rights>, Unasked> {
        let shown = self
            .names
            .as_deref()
            .map_or(Shown::Nothing, Shown::Certificate);
        let rights = self
            .agent
            .door
            .rights(shown)
            .map_err(|_| Unasked::Stranger)?;
        if rights.may(Role::Decide) {
            Ok(rights)
        } else {
            Err(Unasked::MayNotDecide(rights.name.to_string()))
        }
    }
}

impl From<&dyn SpopFrame> for Turn {
    fn from(frame: &dyn SpopFrame) -> Self {
        match (frame.frame_type(), frame.payload()) {
            (FrameType::Notify, FramePayload::ListOfMessages(messages)) => {
                let at = frame.metadata();
                Self::Notify {
                    stream: at.stream_id,
                    frame: at.frame_id,
                    messages: messages.to_vec(),
                }
            }
            (FrameType::HaproxyDisconnect, _) => Self::Disconnect,
            (kind, _) => Self::Invalid(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} came after the handshake", kind.as_str()),
            )),
        }
    }
}

/// Waits for all answers, and sends them.
async fn send_rest<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Framed<S, SpopCodec>,
    mut waiting: FuturesUnordered<impl Future<Output = Ack>>,
) -> io::Result<()> {
    while let Some(ack) = waiting.next().await {
        send_all(frames, ack, &mut waiting).await?;
    }
    Ok(())
}

/// Sends this answer, and those that are ready as well, together.
async fn send_all<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Framed<S, SpopCodec>,
    first: Ack,
    waiting: &mut FuturesUnordered<impl Future<Output = Ack>>,
) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(ack) = next {
        frames.feed(boxed(ack)).await?;
        next = waiting.next().now_or_never().flatten();
    }
    SinkExt::<Box<dyn SpopFrame>>::flush(frames).await
}

fn boxed(frame: impl SpopFrame + 'static) -> Box<dyn SpopFrame> {
    Box::new(frame)
}

async fn disconnect<S: AsyncRead + AsyncWrite + Unpin>(
    frames: &mut Framed<S, SpopCodec>,
    status: StatusCode,
    message: &str,
) -> io::Result<()> {
    let frame = AgentDisconnect {
        status_code: status.to_u32(),
        message: message.to_owned(),
    };
    frames.send(boxed(frame)).await
}
