//! Sends to `StatsD` what the counters of envoyproxy/ratelimit have grown by.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use cadence::{Counted as _, MetricSink, StatsdClient, ext::MultiLineWriter};
use tokio::{sync::oneshot, task::spawn_blocking};

use super::{Protocol, StatsdAddress};

/// How long a connection, and each write, may take.
const TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum length of a datagram, for an MTU of 1500 bytes, and of a write over TCP.
const DATAGRAM: usize = 1432;
const WRITE: usize = 1 << 16;

/// Reads the counters by their names.
type Read = dyn Fn() -> BTreeMap<String, u64> + Send + Sync;

/// The counters, and the counts that `StatsD` knows.
pub struct Statsd {
    address: StatsdAddress,
    read: Box<Read>,
    sent: BTreeMap<String, u64>,
    is_away: bool,
}

impl Statsd {
    pub fn new(address: StatsdAddress, read: Box<Read>) -> Self {
        Self {
            address,
            read,
            sent: BTreeMap::new(),
            is_away: false,
        }
    }

    /// Sends at intervals, and for the last time when the sender of `end` is gone.
    pub async fn follow(mut self, mut end: oneshot::Receiver<()>) {
        loop {
            let is_last = tokio::select! {
                () = tokio::time::sleep(self.address.interval) => false,
                _ = &mut end => true,
            };
            self.send().await;
            if is_last {
                return;
            }
        }
    }

    /// What cannot be sent is sent with the next counts.
    async fn send(&mut self) {
        let now = (self.read)();
        // A rule that was away begins at 0 again.
        let before = |name, count| {
            self.sent
                .get(name)
                .copied()
                .filter(|before| *before <= count)
                .unwrap_or(0)
        };
        let grown = now
            .iter()
            .map(|(name, count)| (name.clone(), count - before(name, *count)));
        let grown: Vec<_> = grown.filter(|(_, by)| *by > 0).collect();
        if grown.is_empty() {
            return;
        }
        let address = self.address.clone();
        match spawn_blocking(move || address.send(&grown)).await {
            Ok(Ok(())) => (self.sent, self.is_away) = (now, false),
            Ok(Err(error)) if !self.is_away => {
                self.is_away = true;
                tracing::warn!(to = self.address.to, %error, "counters cannot be sent to StatsD; they are sent when it answers");
            }
            // The same again, or a panic, which has logged itself.
            _ => {}
        }
    }
}

impl StatsdAddress {
    fn send(&self, grown: &[(String, u64)]) -> io::Result<()> {
        let is_dog = self.protocol == Protocol::DogStatsd;
        let (wire, size): (Box<dyn Write + Send>, _) = match self.protocol {
            Protocol::Tcp => (Box::new(self.stream()?), WRITE),
            Protocol::Udp | Protocol::DogStatsd => (Box::new(self.datagrams()?), DATAGRAM),
        };
        let lines = LineSink(Mutex::new(MultiLineWriter::new(wire, size)));
        let mut client = StatsdClient::builder("", lines);
        let mut in_name = String::new();
        for (name, value) in &self.tags {
            if is_dog {
                client = client.with_tag(name, value);
            } else {
                in_name.extend([".__", name, "=", value]);
            }
        }
        let client = client.build();
        for (name, by) in grown {
            client
                .count(&format!("{name}{in_name}"), *by)
                .map_err(io::Error::other)?;
        }
        client.flush().map_err(io::Error::other)
    }

    fn stream(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for address in self.to.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => {
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    return Ok(stream);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn datagrams(&self) -> io::Result<Datagrams> {
        let all: Vec<SocketAddr> = self.to.to_socket_addrs()?.collect();
        // No answer says that nothing listens at the first one, so IPv4 comes first, as in Go.
        let v4 = all.iter().find(|address| address.is_ipv4());
        let to = *v4.or(all.first()).ok_or(io::ErrorKind::NotFound)?;
        let from: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(from)?;
        socket.connect(to)?;
        Ok(Datagrams(socket))
    }
}

/// Each write is a datagram.
struct Datagrams(UdpSocket);

impl Write for Datagrams {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Puts lines together up to the size of a write.
struct LineSink(Mutex<MultiLineWriter<Box<dyn Write + Send>>>);

impl MetricSink for LineSink {
    fn emit(&self, line: &str) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(line.as_bytes())
    }

    fn flush(&self) -> io::Result<()> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .flush()
    }
}
