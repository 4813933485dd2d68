//! A request of a log by its fields, in any format.

use std::{borrow::Cow, str::FromStr};

use tidegate_headers::{Forwarded, Networks};

use super::{
    client::{address, client, is_address},
    line::LineError,
};
use crate::workload::{By, Field};

/// Field names for the address of the client; the first one present counts. Those of nginx, Caddy,
/// Envoy, Traefik, W3C logs (IIS), Google Cloud, AWS, Cloudflare, Azure and Elastic, and common
/// ones.
pub(super) const IP: &str = "ip client_ip remote_addr request.client_ip request.remote_ip downstream_remote_address_without_port \
    downstream_remote_address remote_ip ClientHost c-ip httpRequest.remoteIp httpRequest.clientIp ClientIP \
    properties.clientIp client.ip source.ip req.remoteAddress client remote";

/// The moment of a request that the time of its line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// The request's arrival.
    Start,
    /// The end of the answer.
    End,
}

impl FromStr for Stamp {
    type Err = StampError;

    fn from_str(text: &str) -> Result<Self, StampError> {
        match text {
            "start" => Ok(Self::Start),
            "end" => Ok(Self::End),
            _ => Err(StampError),
        }
    }
}

/// A text names no moment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose start or end")]
pub struct StampError;

/// The value of `X-Forwarded-For` or `Forwarded`.
pub(super) type AddressList<'a> = (Forwarded, Cow<'a, [u8]>);

/// The contents of a line about a request.
pub(super) trait LogRequest {
    /// The time of the line, in nanoseconds since 1970.
    fn time(&self) -> u64;

    /// How long the request took, in nanoseconds, if the format says so.
    fn took(&self) -> Option<u64>;

    /// The moment that the time of the line is; `None` if the format does not say.
    fn stamp(&self) -> Option<Stamp>;

    /// Whether the client sent a request, and not only opened a connection.
    fn is_http(&self) -> bool;

    /// The text of a field, as in the log.
    fn field(&self, field: &Field) -> Result<Cow<'_, [u8]>, LineError>;

    /// The list of addresses that proxies wrote; `None` if the request has none.
    fn forwarded(&self) -> Result<Option<AddressList<'_>>, LineError>;

    /// The client behind these proxies. A line without its peer's address, as Envoy's, has it at
    /// the end of the list.
    fn client(&self, trusted: &Networks) -> Result<String, LineError> {
        let list = self.forwarded()?;
        let mut before = list.iter().flat_map(|(field, list)| field.addresses(list));
        let peer = match self.field(&Field::Ip) {
            Ok(peer) if !self.has_no_peer() => address(&peer),
            _ => before.next().flatten(),
        };
        let client = peer.and_then(|peer| trusted.client(peer, before));
        Ok(tidegate_core::address_key(
            client.ok_or(LineError::NotForwarded)?,
            64,
        ))
    }

    /// Whether the client of the line is the last address of the list.
    fn has_no_peer(&self) -> bool {
        false
    }

    /// Composes the request's key. Addresses become [clients](client).
    fn key(&self, by: &By, trusted: &Networks, key: &mut Vec<u8>) -> Result<(), LineError> {
        for field in by.fields() {
            if *field == Field::Forwarded {
                by.push(key, self.client(trusted)?.as_bytes());
                continue;
            }
            let text = self.field(field)?;
            // A field with any other name may have an address, but its port may matter.
            let is_client = match field {
                Field::Ip => true,
                Field::Named(name) => IP.split(' ').any(|ip| ip == name) || is_address(&text),
                _ => false,
            };
            by.push(key, &if is_client { client(&text) } else { text });
        }
        Ok(())
    }
}
