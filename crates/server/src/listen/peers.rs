//! Bounds how many connections one client may have, so that it cannot take all of them.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
};

/// The connections of a listener, by client address.
#[derive(Debug)]
pub(crate) struct Peers {
    /// `None` for no bound.
    most: Option<usize>,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// A client's connection. Dropping it makes room for another.
#[derive(Debug)]
pub(crate) struct Peer {
    peers: Arc<Peers>,
    address: IpAddr,
}

impl Peers {
    pub fn new(most: Option<usize>) -> Arc<Self> {
        Arc::new(Self { most, open: Mutex::default() })
    }

    /// Adds a connection of this client.
    ///
    /// # Errors
    /// When it already has the maximum number. Without a bound, the result is `Ok(None)`.
    pub fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Option<Peer>, TooMany> {
        let Some(most) = self.most else { return Ok(None) };
        let address = subnet(address);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let count = open.entry(address).or_default();
        if *count >= most {
            return Err(TooMany);
        }
        *count += 1;
        Ok(Some(Peer { peers: Arc::clone(self), address }))
    }
}

/// A client already has the maximum number of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

impl Drop for Peer {
    fn drop(&mut self) {
        let mut open = self.peers.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// One client is assumed to have all addresses of an IPv6 /64 network.
fn subnet(address: IpAddr) -> IpAddr {
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
        let peers = Peers::new(Some(2));
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
        let unbounded = Peers::new(None);
        assert!((0..9).all(|_| matches!(unbounded.enter([10, 0, 0, 1].into()), Ok(None))));
    }

    #[test]
    fn clients_without_connections_take_no_memory() {
        let peers = Peers::new(Some(1));
        for last in 0..=255 {
            drop(peers.enter([10, 0, 0, last].into()).unwrap());
        }
        assert!(peers.open.lock().unwrap().is_empty());
    }
}
