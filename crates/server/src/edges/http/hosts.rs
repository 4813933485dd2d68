//! Which names the control plane answers to.
//!
//! A foreign page can make its own name resolve to this machine after it was loaded (DNS
//! rebinding). The browser then takes the server for the page's own, so it sends no origin and lets
//! the page read every answer. The Host field still has the page's name.

use axum::http::Request;

/// The names that the operator gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts(Vec<String>);

impl Hosts {
    pub fn new(names: &[String]) -> Self {
        Self(names.iter().map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Whether this host, with a port or without, is an IP address, `localhost`, or one that the
    /// operator named.
    pub fn know(&self, host: &str) -> bool {
        let name = host
            .rsplit_once(':')
            .filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
        let name = name.map_or(host, |(name, _)| name).to_ascii_lowercase();
        let in_brackets = name
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        in_brackets.is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok())
            || name.parse::<std::net::Ipv4Addr>().is_ok()
            || name == "localhost"
            || self.0.contains(&name)
    }
}

/// The host that a request is for. Browsers always send it.
pub(super) fn host_of<B>(request: &Request<B>) -> Option<&str> {
    let field = request.headers().get(axum::http::header::HOST);
    match (request.uri().authority(), field) {
        // HTTP/2 has `:authority`.
        (Some(authority), _) => Some(authority.as_str()),
        // A Host that is not UTF-8 matches no known name.
        (None, Some(host)) => Some(host.to_str().unwrap_or_default()),
        (None, None) => None,
    }
}
