//! One connection: requests, several at a time, answered in any order.

use std::{io, net::IpAddr, sync::Arc};

use bytes::BytesMut;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tidegate_core::Nanos;
use tidegate_listen::{
    access::{Rights, Role, Shown},
    connections::Calls,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::watch,
};

use super::{
    TokenServer,
    frames::{Answer, Asks, Reader, Status, TokenRequest, put_pong, put_tokens},
    namespaces::Member,
    tokens::Question,
};

/// How much of a connection is read at once.
const READ: usize = 16 << 10;
/// How many requests of a connection wait for the store at once. More stay in the socket.
const MAX_WAITING: usize = 1_024;

/// A connection of Sentinel's client.
pub(super) struct Connection<'a> {
    server: &'a TokenServer,
    calls: Arc<Calls>,
    peer: IpAddr,
    member: Option<Member>,
    output: Vec<u8>,
}

/// A request, its answer, and when it was read.
type Answered = (TokenRequest, Answer, Nanos);

impl<'a> Connection<'a> {
    pub fn new(server: &'a TokenServer, calls: Arc<Calls>, peer: IpAddr) -> Self {
        Self {
            server,
            calls,
            peer,
            member: None,
            output: Vec::new(),
        }
    }

    /// Answers until the client is gone, or `stop` is set and what was read is answered.
    ///
    /// # Errors
    /// When the connection breaks, or the client reads nothing.
    pub async fn converse<S>(
        mut self,
        mut stream: S,
        mut stop: watch::Receiver<bool>,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (mut reader, mut input) = (Reader::default(), BytesMut::with_capacity(READ));
        let mut waiting = FuturesUnordered::new();
        let mut is_open = true;
        let calls = Arc::clone(&self.calls);
        let mut under_way = None;
        while is_open || !waiting.is_empty() {
            tokio::select! {
                biased;
                read = stream.read_buf(&mut input), if is_open && waiting.len() < MAX_WAITING => {
                    is_open = read? > 0;
                    under_way.get_or_insert_with(|| calls.begin());
                    let now = self.server.tokens.service.now();
                    let rights = self.rights();
                    while let Some(request) = reader.next(&mut input) {
                        if let Some((request, question)) = self.begin(request, rights.as_deref(), now) {
                            let service = Arc::clone(&self.server.tokens.service);
                            waiting.push(async move {
                                let answer = question.decide_in_store(&service, now).await;
                                (request, answer, now)
                            });
                        }
                    }
                    input.reserve(READ);
                }
                Some(answered) = waiting.next() => {
                    self.put(answered);
                    while let Some(Some(answered)) = waiting.next().now_or_never() {
                        self.put(answered);
                    }
                }
                // An error means that the sender is gone, so no one can stop the server any more:
                // stop then, too.
                _ = stop.wait_for(|stop| *stop), if is_open => is_open = false,
            }
            if !self.output.is_empty() {
                stream.write_all(&self.output).await?;
                stream.flush().await?;
                self.output.clear();
            }
            if waiting.is_empty() {
                under_way = None;
            }
        }
        Ok(())
    }

    /// Answers a request, or returns what only the store can decide.
    fn begin(
        &mut self,
        mut request: TokenRequest,
        rights: Option<&Rights>,
        now: Nanos,
    ) -> Option<(TokenRequest, Question)> {
        let (asks, server) = (std::mem::replace(&mut request.asks, Asks::Bad), self.server);
        match asks {
            Asks::Ping(Some(namespace)) => {
                if self
                    .member
                    .as_ref()
                    .is_none_or(|member| *member.namespace != *namespace)
                {
                    self.member = None;
                    self.member = Some(server.tokens.namespaces.join(&namespace));
                }
                put_pong(
                    &mut self.output,
                    &request,
                    Some(server.tokens.namespaces.connections(&namespace)),
                );
                server.stats.count(request.code, Status::Ok as i8);
            }
            Asks::Ping(None) | Asks::Unknown => {
                put_pong(&mut self.output, &request, None);
                server.stats.count(request.code, Status::Fail as i8);
            }
            asks => {
                let Some(rights) = rights else {
                    self.put((request, Status::Fail.into(), now));
                    return None;
                };
                match server.tokens.question(rights, asks, now) {
                    Ok(question) => match question.decide_here(&server.tokens.service, now) {
                        Some(answer) => self.put((request, answer, now)),
                        None => return Some((request, question)),
                    },
                    Err(answer) => self.put((request, answer, now)),
                }
            }
        }
        None
    }

    fn put(&mut self, (request, answer, read_at): Answered) {
        put_tokens(&mut self.output, &request, answer);
        let stats = &self.server.stats;
        stats.count(request.code, answer.status as i8);
        let took = self.server.tokens.service.now().saturating_since(read_at);
        stats.latency.observe(took, 1);
    }

    /// `None` if the client may not take tokens. Looked up for each read: the access file may have
    /// changed.
    fn rights(&self) -> Option<Arc<Rights>> {
        if self.calls.slot.is_spare {
            return None;
        }
        self.server
            .door
            .rights(Shown::Address(self.peer))
            .ok()
            .filter(|rights| rights.may(Role::Decide))
    }
}
