//! The client to which an address belongs, for a limit by `ip`.

use std::{borrow::Cow, net::IpAddr};

/// The client of an address in a log, with the same key as in `tidegate_tower`: an IPv4 address in
/// full, or the first 64 bits of an IPv6 address (`2001:db8:1:2::/64`), because one client has all
/// of them. An IPv4-mapped IPv6 address is treated as the IPv4 address. A port after the address is
/// removed. Other text (a host's name) is kept as it is.
pub(super) fn client(text: &[u8]) -> Cow<'_, [u8]> {
    // The common case: an IPv4 address without a port, or a name.
    if !text.contains(&b':') {
        return text.into();
    }
    match address(text) {
        Some(address) => tidegate_core::address_key(address, 64).into_bytes().into(),
        None => text.into(),
    }
}

/// Parses an address, with or without brackets and a port.
pub(super) fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
        .map(|(inside, _)| inside);
    let found = bare.unwrap_or(text).parse().ok();
    let found = found.or_else(|| {
        let (host, port) = text.rsplit_once(':')?;
        port.bytes()
            .all(|digit| digit.is_ascii_digit())
            .then(|| host.parse().ok())?
    });
    found.map(|address: IpAddr| address.to_canonical())
}

/// Whether the text is an address.
pub(super) fn is_address(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<IpAddr>().is_ok())
}
