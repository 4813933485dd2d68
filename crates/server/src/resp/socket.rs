//! A client's socket: plain, or with TLS spoken in the reactor's own thread.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    sync::Arc,
};

use mio::{Interest, Registry, Token, event::Source, net::TcpStream};
use rustls::{ServerConfig, ServerConnection};

use crate::tls;

/// Bytes of plain text that wait in TLS for the client to take them.
const UNSENT: usize = 64 * 1024;

/// What a connection needs of its stream beside reading and writing.
pub(super) trait Transport: Read + Write {
    /// Whether the client still has to show who it is, before any command.
    fn is_beginning(&self) -> bool {
        false
    }

    /// Whether something waits to be sent of which the connection does not know: a handshake.
    fn has_unsent(&self) -> bool {
        false
    }

    /// The names in the client's certificate.
    fn names(&self) -> Option<Arc<[String]>> {
        None
    }
}

#[derive(Debug)]
pub(super) enum Socket {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

#[derive(Debug)]
pub(super) struct Tls {
    socket: TcpStream,
    connection: ServerConnection,
}

impl Socket {
    /// # Errors
    /// When TLS cannot begin.
    pub fn new(socket: TcpStream, config: Option<Arc<ServerConfig>>) -> io::Result<Self> {
        let Some(config) = config else { return Ok(Self::Plain(socket)) };
        let mut connection = ServerConnection::new(config).map_err(io::Error::other)?;
        connection.set_buffer_limit(Some(UNSENT));
        Ok(Self::Tls(Box::new(Tls { socket, connection })))
    }

    pub fn tcp(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &mut tls.socket,
        }
    }

    /// Says that nothing more will be sent, as far as the socket takes that at once.
    pub fn finish(&mut self) -> io::Result<()> {
        if let Self::Tls(tls) = self {
            tls.connection.send_close_notify();
            let _ = tls.send();
        }
        self.tcp().shutdown(Shutdown::Write)
    }
}

impl Tls {
    /// Sends what TLS has; whether that was everything.
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

    /// Takes what has been decrypted; `None` when there is nothing, `Some(0)` at the end.
    fn take(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match self.connection.reader().read(buffer) {
            Ok(read) => Ok(Some(read)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The client left without a word of farewell: as with a plain connection, that is an end.
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(Some(0)),
            Err(e) => Err(e),
        }
    }

    /// Reads until the buffer is full or the socket is empty: a reader that gets less than it asked for does not ask again until
    /// the next event.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        loop {
            match self.take(&mut buffer[filled..])? {
                // An end is told by a read of its own.
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
                // The next look at what was decrypted says whether that is an end.
                Ok(0) if self.connection.is_handshaking() => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    return if filled == 0 { Err(e) } else { Ok(filled) };
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(e),
            }
            let processed = self.connection.process_new_packets();
            // A handshake's next part, or what is wrong with the client's.
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
                // TLS has room for a while; what it holds goes first.
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

impl Transport for Socket {
    fn is_beginning(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.connection.is_handshaking())
    }

    fn has_unsent(&self) -> bool {
        matches!(self, Self::Tls(tls) if tls.connection.wants_write())
    }

    fn names(&self) -> Option<Arc<[String]>> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => tls::names_of(&tls.connection),
        }
    }
}

impl Source for Socket {
    fn register(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.tcp().register(registry, token, interests)
    }

    fn reregister(&mut self, registry: &Registry, token: Token, interests: Interest) -> io::Result<()> {
        self.tcp().reregister(registry, token, interests)
    }

    fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.tcp().deregister(registry)
    }
}
