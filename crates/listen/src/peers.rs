//! Bounds how many connections one client may have, so that it cannot take all of them.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

use parking_lot::{Mutex, MutexGuard};
use tidegate_service::shares::Shares;

/// The connections of a listener, by client address.
#[derive(Debug)]
pub struct Peers {
    /// Whether clients on this machine have no bound: often one proxy there is the client of all
    /// requests.
    is_for_others: bool,
    open: Mutex<Shares<IpAddr>>,
}

/// A client's connection. Dropping it makes room for another.
#[derive(Debug)]
pub struct Peer {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    /// Without a configured bound, a client on another machine may have as many of a listener's
    /// connections as are free: half of them if it is alone.
    pub fn new(bound: Option<usize>, max_connections: usize) -> Arc<Self> {
        let open = bound.map_or_else(|| Shares::new(max_connections), Shares::with_most);
        Arc::new(Self {
            is_for_others: bound.is_none(),
            open: Mutex::new(open),
        })
    }

    /// Adds a connection of this client.
    ///
    /// # Errors
    /// When it already has the maximum number. Without a bound for it, the result is `Ok(None)`.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Option<Peer>, TooMany> {
        if self.is_for_others && address.to_canonical().is_loopback() {
            return Ok(None);
        }
        let address = subnet(address);
        if !self.lock().enter(address) {
            return Err(TooMany);
        }
        Ok(Some(Peer {
            peers: Arc::clone(self),
            address,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Shares<IpAddr>> {
        // No step panics midway.
        self.open.lock()
    }
}

/// A client already has the maximum number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooMany;

impl Drop for Peer {
    fn drop(&mut self) {
        self.peers.lock().leave(&self.address);
    }
}

/// One client is assumed to have all addresses of an IPv6 /64 network.
pub fn subnet(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_its_own_bound_on_connections() {
        let peers = Peers::new(Some(2), 100);
        let enter = |address: &str| peers.enter(address.parse().unwrap());
        let one = enter("10.0.0.1").unwrap();
        let _two = enter("::ffff:10.0.0.1").unwrap();
        assert_eq!(enter("10.0.0.1").unwrap_err(), TooMany);
        let _other = enter("10.0.0.2").unwrap();
        drop(one);
        let _three = enter("10.0.0.1").unwrap();
        let _six = [enter("2001:db8::1").unwrap(), enter("2001:db8::2").unwrap()];
        assert_eq!(enter("2001:db8::3").unwrap_err(), TooMany);
        let _neighbour = enter("2001:db8:0:1::1").unwrap();
    }

    #[test]
    fn without_a_bound_a_client_has_as_many_connections_as_are_free_except_on_this_machine() {
        let peers = Peers::new(None, 9);
        let many = |address: [u8; 4]| {
            (0..9)
                .map_while(|_| peers.enter(address.into()).ok())
                .collect::<Vec<_>>()
        };
        let (hoarder, other, local) = (
            many([10, 0, 0, 1]),
            many([10, 0, 0, 2]),
            many([127, 0, 0, 1]),
        );
        assert_eq!([hoarder.len(), other.len(), local.len()], [5, 2, 9]);
    }

    #[test]
    fn clients_without_connections_take_no_memory() {
        let peers = Peers::new(Some(1), 100);
        for last in 0..=255 {
            drop(peers.enter([10, 0, 0, last].into()).unwrap());
        }
        assert_eq!(peers.lock().taken(), 0);
    }
}
