//! A client's socket: TCP or of this machine, plain or with TLS in the reactor's thread.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr},
    sync::Arc,
    time::Duration,
};

use mio::{
    Interest, Registry, Token,
    event::Source,
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};
use rustls::{ServerConfig, ServerConnection};
use socket2::{SockRef, TcpKeepalive};
use tidegate_listen::{
    socket::{LOCAL, SocketFile},
    tls,
};

/// The maximum number of plain-text bytes that wait in TLS until the client takes them.
const UNSENT: usize = 64 * 1024;

/// The keepalive time for silent peers, the same as in Redis.
const KEEPALIVE: Duration = Duration::from_mins(5);

/// A socket that listens, of one thread.
#[derive(Debug)]
pub(super) enum Listening {
    Tcp(TcpListener),
    /// The file goes when the last thread has closed its socket.
    Unix {
        _file: Option<Arc<SocketFile>>,
        listener: UnixListener,
    },
}

impl Listening {
    /// The next connection, and the client's address.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                Ok((Stream::Tcp(stream), peer))
            }
            Self::Unix { listener, .. } => Ok((Stream::Unix(listener.accept()?.0), LOCAL)),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(listener) => listener,
            Self::Unix { listener, .. } => listener,
        }
    }
}

impl Source for Listening {
    fn register(&mut self, to: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.source().register(to, token, interests)
    }

    fn reregister(&mut self, to: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.source().reregister(to, token, interests)
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        self.source().deregister(from)
    }
}

/// A connection, before TLS.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Sets what each connection has.
    pub fn prepare(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => {
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
                SockRef::from(stream).set_tcp_keepalive(&keepalive)
            }
            Self::Unix(_) => Ok(()),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        }
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Self::Tcp(stream) => stream,
            Self::Unix(stream) => stream,
        }
    }
}

impl Source for Stream {
    fn register(&mut self, to: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.source().register(to, token, interests)
    }

    fn reregister(&mut self, to: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.source().reregister(to, token, interests)
    }

    fn deregister(&mut self, from: &Registry) -> io::Result<()> {
        self.source().deregister(from)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[derive(Debug)]
pub(super) enum Socket {
    Plain(Stream),
    Tls(Box<Tls>),
}

#[derive(Debug)]
pub(super) struct Tls {
    socket: Stream,
    connection: ServerConnection,
}

impl Socket {
    /// # Errors
    /// When TLS cannot be started.
    pub fn new(socket: Stream, config: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        let Some(config) = config else {
            return Ok(Self::Plain(socket));
        };
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        connection.set_buffer_limit(Some(UNSENT));
        Ok(Self::Tls(Box::new(Tls { socket, connection })))
    }

    pub fn stream(&mut self) -> &mut Stream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &mut tls.socket,
        }
    }

    /// Whether the handshake is still in progress.
    pub fn is_beginning(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.connection.is_handshaking())
    }

    /// Whether something waits to be sent that the connection does not know about: a handshake.
    pub fn has_unsent(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.connection.wants_write())
    }

    /// The names in the client's certificate.
    pub fn names(&self) -> Option<Arc<[String]>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls::names_of(&tls.connection),
        }
    }

    /// Sends TLS's closing message, as far as the socket takes it immediately.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Self::Tls(tls) = self {
            tls.connection.send_close_notify();
            let _ = tls.send();
        }
        self.stream().shutdown(Shutdown::Write)
    }
}

impl Tls {
    /// Sends pending TLS records. Returns whether that was everything.
    fn send(&mut self) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(true)
    }

    /// Takes decrypted bytes: `None` if there are none, `Some(0)` at the end.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.connection.reader().read(buffer) {
            Ok(read) => Ok(Some(read)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The client disconnected without a closing message. As with a plain connection, that
            // is the end.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(e) => Err(e),
        }
    }

    /// Reads until the buffer is full or the socket is empty, because a reader that gets less than
    /// it asked for does not read again until the next event.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            match self.take(&mut buffer[filled..])? {
                // The end is reported by a separate read.
                Some(0) => return Ok(filled),
                Some(read) => {
                    filled += read;
                    if filled == buffer.len() {
                        return Ok(filled);
                    }
                    continue;
                }
                None => {}
            }
            match self.connection.read_tls(&mut self.socket) {
                // The next check of the decrypted data shows whether this is the end.
                Ok(0) if self.connection.is_handshaking() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return if filled == 0 { Err(e) } else { Ok(filled) };
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            let processed = self.connection.process_new_packets();
            // The next part of the handshake, or an alert about the client's.
            self.send()?;
            processed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(tls) => {
                // The TLS buffer is bounded, so its content is sent first.
                if !tls.send()? {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let written = tls.connection.writer().write(bytes)?;
                tls.send()?;
                Ok(written)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(tls) => {
                if tls.send()? {
                    Ok(())
                } else {
                    Err(io::ErrorKind::WouldBlock.into())
                }
            }
        }
    }
}
