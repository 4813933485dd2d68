//! The protection of the listeners: TLS and access control.

use std::{fmt, net::SocketAddr, sync::Arc};

use rustls::ServerConfig;

use crate::{
    access::{Access, Door},
    descriptors::Descriptors,
    tls::{Above, Tls},
};

/// TLS and access control as configured. All listeners share them.
#[derive(Clone, Debug)]
pub struct ListenerSecurity {
    pub tls: Option<Arc<Tls>>,
    pub access: Arc<Access>,
    /// The connections of all listeners.
    pub descriptors: Arc<Descriptors>,
    /// The listeners with TLS; empty for all.
    pub tls_listeners: Arc<[String]>,
    /// Whether other machines may reach listeners without protection.
    pub insecure: bool,
}

/// Other machines can reach a listener that is not protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "other machines can reach {address} (--{option}), which has {lacks}: {}, or listen on 127.0.0.1; if every client that can reach it may \
     use it, add --insecure",
    protection(*lacks)
)]
pub struct Exposed {
    /// The option with the address.
    pub option: &'static str,
    /// The address.
    pub address: SocketAddr,
    /// The missing protection.
    pub lacks: Lacks,
}

impl ListenerSecurity {
    /// The protection of the listener of this option.
    pub fn of(&self, option: &str) -> Self {
        let has_tls =
            self.tls_listeners.is_empty() || self.tls_listeners.iter().any(|name| name == option);
        Self {
            tls: self.tls.clone().filter(|_| has_tls),
            ..self.clone()
        }
    }

    /// The access control of a listener. `has_password`: the listener has its own password.
    ///
    /// # Errors
    /// When other machines can reach it and it is not protected.
    pub fn door(
        &self,
        option: &'static str,
        address: SocketAddr,
        has_password: bool,
    ) -> Result<Door, Exposed> {
        let is_local = address.ip().to_canonical().is_loopback();
        let lacks = match (
            self.of(option).tls.is_none(),
            !self.access.asks_for_something() && !has_password,
        ) {
            (false, false) => None,
            (true, false) => Some(Lacks::Tls),
            (false, true) => Some(Lacks::Credentials),
            (true, true) => Some(Lacks::Both),
        };
        match lacks.filter(|_| !is_local && !self.insecure) {
            Some(lacks) => Err(Exposed {
                option,
                address,
                lacks,
            }),
            None => Ok(Door::new(Arc::clone(&self.access), is_local)),
        }
    }

    /// The access control of a listener whose protocol has neither TLS nor credentials: clients are
    /// known by their addresses.
    ///
    /// # Errors
    /// When other machines can reach the listener and no access file protects it.
    pub fn door_by_address(
        &self,
        option: &'static str,
        address: SocketAddr,
    ) -> Result<Door, Exposed> {
        let is_local = address.ip().to_canonical().is_loopback();
        if !is_local && !self.insecure && self.access.path.is_none() {
            return Err(Exposed {
                option,
                address,
                lacks: Lacks::Addresses,
            });
        }
        Ok(Door::new(Arc::clone(&self.access), is_local))
    }

    /// The TLS configuration for new connections.
    pub fn config(&self, above: Above) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(|tls| tls.config(above))
    }
}

/// The protection that is missing on a listener that other machines can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lacks {
    /// TLS.
    Tls,
    /// Client credentials.
    Credentials,
    /// Both.
    Both,
    /// Addresses of clients, for a protocol that has neither TLS nor credentials.
    Addresses,
}

impl fmt::Display for Lacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "no TLS",
            Self::Credentials => "no credentials",
            Self::Both => "neither TLS nor credentials",
            Self::Addresses => "a protocol without TLS and credentials",
        })
    }
}

fn protection(lacks: Lacks) -> &'static str {
    match lacks {
        Lacks::Tls => "give --tls-cert and --tls-key",
        Lacks::Credentials => "give --access or --tls-client-ca",
        Lacks::Both => "give --tls-cert and --tls-key, and --access or --tls-client-ca",
        Lacks::Addresses => "give --access with the clients' `addresses`",
    }
}
