//! Sockets that listen: at an address, or in a file of this machine.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// A connection.
pub type Socket = Either<TcpStream, UnixStream>;

/// The address of all clients of a Unix socket, for bounds and for access rules: they are on this
/// machine.
pub const LOCAL: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A socket that listens.
pub enum Listener {
    Tcp(TcpListener),
    /// The file comes first: the system keeps its number as long as the socket is open.
    Unix(Option<SocketFile>, UnixListener),
}

impl Listener {
    /// Listens at HOST:PORT or unix:PATH. A path that begins with `@` is a name without a file
    /// (Linux).
    ///
    /// # Errors
    /// When the address is in use or invalid, or when there is a file at the path that is not a
    /// socket.
    pub async fn bind(address: &str) -> io::Result<Self> {
        let Some(path) = address.strip_prefix("unix:") else {
            return TcpListener::bind(address).await.map(Self::Tcp);
        };
        if let Some(name) = path.strip_prefix('@') {
            return Ok(Self::Unix(None, UnixListener::bind(format!("\0{name}"))?));
        }
        remove_stale(Path::new(path)).await?;
        let listener = UnixListener::bind(path)?;
        Ok(Self::Unix(Some(SocketFile::at(path)?), listener))
    }

    /// The next connection, and the client's address.
    pub async fn accept(&self) -> io::Result<(Socket, SocketAddr)> {
        match self {
            Self::Tcp(listener) => listener
                .accept()
                .await
                .map(|(stream, peer)| (Either::Left(stream), peer)),
            Self::Unix(_, listener) => listener
                .accept()
                .await
                .map(|(stream, _)| (Either::Right(stream), LOCAL)),
        }
    }
}

/// Removes the socket of a server that was killed.
async fn remove_stale(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file that is not a socket",
        ));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// The file of a socket. It is removed when this is dropped, unless another server has replaced it.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// The device and the number of the file.
    id: (u64, u64),
}

impl SocketFile {
    fn at(path: &str) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self {
            path: path.into(),
            id: (found.dev(), found.ino()),
        })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.id) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
