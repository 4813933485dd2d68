//! The protection of the listeners: TLS and access control.

use std::{net::SocketAddr, sync::Arc};

use rustls::ServerConfig;

use crate::{
    listen::{
        access::{Access, Door},
        descriptors::Descriptors,
        tls::{Above, Tls},
    },
    serve::{
        options::Options,
        start_error::{Lacks, StartError},
    },
};

/// TLS and access control as configured. All listeners share them.
#[derive(Clone, Debug)]
pub(crate) struct ListenerSecurity {
    pub tls: Option<Arc<Tls>>,
    pub access: Arc<Access>,
    /// The connections of all listeners.
    pub descriptors: Arc<Descriptors>,
    /// The listeners with TLS; empty for all.
    tls_listeners: Arc<[String]>,
    insecure: bool,
}

impl ListenerSecurity {
    /// # Errors
    /// When the files are invalid.
    pub fn open(options: &Options) -> Result<Self, StartError> {
        let asks_for_certificates = options.tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        let access =
            Access::open(options.access.clone(), asks_for_certificates, options.tls_client_san.as_deref())
                .map_err(StartError::Access)?;
        let tls = options.tls.clone().map(Tls::open).transpose()?;
        Ok(Self {
            tls: tls.map(Arc::new),
            access: Arc::new(access),
            descriptors: Arc::default(),
            tls_listeners: options.tls_listeners.clone().into(),
            insecure: options.insecure,
        })
    }

    /// The protection of the listener of this option.
    pub fn of(&self, option: &str) -> Self {
        let has_tls = self.tls_listeners.is_empty() || self.tls_listeners.iter().any(|name| name == option);
        Self { tls: self.tls.clone().filter(|_| has_tls), ..self.clone() }
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
    ) -> Result<Door, StartError> {
        let is_local = address.ip().to_canonical().is_loopback();
        let lacks = match (self.of(option).tls.is_none(), !self.access.asks_for_something() && !has_password)
        {
            (false, false) => None,
            (true, false) => Some(Lacks::Tls),
            (false, true) => Some(Lacks::Credentials),
            (true, true) => Some(Lacks::Both),
        };
        match lacks.filter(|_| !is_local && !self.insecure) {
            Some(lacks) => Err(StartError::Exposed { option, address, lacks }),
            None => Ok(Door::new(Arc::clone(&self.access), is_local)),
        }
    }

    /// The access control of a listener whose protocol has neither TLS nor credentials: clients are known by their addresses.
    ///
    /// # Errors
    /// When other machines can reach the listener and no access file protects it.
    pub fn door_by_address(&self, option: &'static str, address: SocketAddr) -> Result<Door, StartError> {
        let is_local = address.ip().to_canonical().is_loopback();
        if !is_local && !self.insecure && self.access.path.is_none() {
            return Err(StartError::Exposed { option, address, lacks: Lacks::Addresses });
        }
        Ok(Door::new(Arc::clone(&self.access), is_local))
    }

    /// The TLS configuration for new connections.
    pub fn config(&self, above: Above) -> Option<Arc<ServerConfig>> {
        self.tls.as_ref().map(|tls| tls.config(above))
    }
}
