//! Bounds how long a response waits for a client that does not read it, and counts the responses to
//! clients that have gone.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::{Instant, Sleep, sleep},
};

use super::Responses;

/// How long a response may wait for a client once the server is stopping.
const WHILE_STOPPING: Duration = Duration::from_secs(1);

/// A stream whose writes fail when the peer has read nothing for a given time.
#[derive(Debug)]
pub struct WriteDeadline<S> {
    stream: S,
    patience: Duration,
    /// Runs while the peer reads nothing.
    waiting: Option<Pin<Box<Sleep>>>,
    stopping: watch::Receiver<bool>,
    peer: Peering<S>,
    responses: Arc<Responses>,
}

/// What a stream does about its peer.
#[derive(Debug)]
pub struct Peering<S> {
    /// Called when the time is over, just before the write fails.
    pub give_up: fn(&S),
    /// Whether the peer has closed its side of the connection, as far as is known without asking
    /// the system.
    pub has_gone: fn(&S) -> bool,
    /// Has the task woken when the peer closes its side.
    pub watch: fn(&S, &mut Context<'_>),
}

impl<S> WriteDeadline<S> {
    pub fn new(
        stream: S,
        patience: Duration,
        stopping: watch::Receiver<bool>,
        peer: Peering<S>,
        responses: Arc<Responses>,
    ) -> Self {
        Self {
            stream,
            patience,
            waiting: None,
            stopping,
            peer,
            responses,
        }
    }

    fn before_write(&self) {
        self.responses.write(|| (self.peer.has_gone)(&self.stream));
    }

    /// The result of a write. While the peer reads nothing, it is pending until the time is over.
    fn written(
        &mut self,
        written: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let patience = self.patience;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        let soon = Instant::now() + WHILE_STOPPING;
        if *self.stopping.borrow() && waiting.deadline() > soon {
            waiting.as_mut().reset(soon);
        }
        ready!(waiting.as_mut().poll(context));
        (self.peer.give_up)(&self.stream);
        Poll::Ready(Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the client does not read the response",
        )))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteDeadline<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteDeadline<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.before_write();
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.before_write();
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A server of HTTP/1 reads nothing during a request, but flushes whenever it is polled.
        if self.responses.are_in_line() {
            (self.peer.watch)(&self.stream, context);
            if (self.peer.has_gone)(&self.stream) {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::ConnectionAborted,
                    "the client has gone while its request waited in line",
                )));
            }
        }
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, duplex},
        net::{TcpListener, TcpStream},
    };
    use tokio_util::either::Either;

    use super::*;
    use crate::connections::PEERING;

    #[tokio::test]
    async fn a_response_is_unawaited_if_its_client_has_closed_the_connection_before() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_stop, stopping) = watch::channel(false);
        for is_gone in [false, true] {
            let mut client = TcpStream::connect(address).await.unwrap();
            let (server, _) = listener.accept().await.unwrap();
            let responses = Arc::<Responses>::default();
            let mut server = WriteDeadline::new(
                Either::Left(server),
                Duration::from_secs(10),
                stopping.clone(),
                PEERING,
                Arc::clone(&responses),
            );
            client.write_all(b"?").await.unwrap();
            let mut asked = Vec::new();
            if is_gone {
                drop(client);
                server.read_to_end(&mut asked).await.unwrap();
            } else {
                server.read_buf(&mut asked).await.unwrap();
            }
            // What is written without a response is the end of TLS or HTTP/2.
            server.write_all(b"bye").await.unwrap();
            assert_eq!(responses.unawaited(), 0);
            responses.ready();
            // The system refuses it if it knows already that the client reads nothing.
            let _ = server.write_all(b"!").await;
            assert_eq!(responses.unawaited(), u64::from(is_gone));
            let _ = server.write_all(b"bye").await;
            assert_eq!(responses.unawaited(), u64::from(is_gone), "counted once");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_times_out_and_one_that_reads_a_little_does_not() {
        let (mut here, mut there) = duplex(4);
        let (stop, stopping) = watch::channel(false);
        let peer = Peering {
            give_up: |_| (),
            has_gone: |_| false,
            watch: |_, _| (),
        };
        let patience = Duration::from_secs(10);
        let mut stream = WriteDeadline::new(&mut here, patience, stopping, peer, Arc::default());
        let started = Instant::now();
        let slowly = async {
            for _ in 0..5 {
                sleep(Duration::from_secs(9)).await;
                there.read_exact(&mut [0; 4]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 64]), slowly);
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(started.elapsed(), Duration::from_secs(5 * 9 + 10));
        stop.send(true).unwrap();
        stream.waiting = None;
        let started = Instant::now();
        assert!(stream.write_all(&[0; 64]).await.is_err());
        assert_eq!(started.elapsed(), WHILE_STOPPING);
    }
}
