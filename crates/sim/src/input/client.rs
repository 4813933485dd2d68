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
    let found = parsed(bare(text)).or_else(|| parsed(without_port(text)?));
    found.map(|address| address.to_canonical())
}

/// Whether the text is an address, with or without brackets.
pub(super) fn is_address(text: &[u8]) -> bool {
    parsed(bare(text)).is_some()
}

/// The address of a text that ends with a port: `192.0.2.7:80`, `[2001:db8::1]:80`, or
/// `2001:db8::1:80`, which could also be an address without a port. `None` for any other text.
pub(super) fn without_port(text: &[u8]) -> Option<&[u8]> {
    let colon = text.iter().rposition(|&byte| byte == b':')?;
    let (address, port) = (bare(&text[..colon]), &text[colon + 1..]);
    let is_port = !port.is_empty() && port.len() <= 5 && port.iter().all(u8::is_ascii_digit);
    (is_port && parsed(address).is_some()).then_some(address)
}

/// Whether the text is an address with a port, and cannot be one without.
pub(super) fn has_port(text: &[u8]) -> bool {
    !is_address(text) && without_port(text).is_some()
}

/// The text without brackets around it.
fn bare(text: &[u8]) -> &[u8] {
    text.strip_prefix(b"[")
        .and_then(|rest| rest.strip_suffix(b"]"))
        .unwrap_or(text)
}

/// An address. A link-local one may name the interface on which it is one (`fe80::1%eth0`), which
/// is no part of it.
fn parsed(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let address = match text.split_once('%') {
        Some((address, zone)) if address.contains(':') && !zone.is_empty() => address,
        _ => text,
    };
    address.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_of_an_address_is_no_part_of_it() {
        for text in ["fe80::1%eth0", "[fe80::1%eth0]:80", "fe80::2"] {
            assert_eq!(&*client(text.as_bytes()), b"fe80::/64", "{text}");
        }
        assert!(is_address(b"fe80::1%3"));
        for text in ["fe80::1%", "10.0.0.1%eth0", "%eth0"] {
            assert!(!is_address(text.as_bytes()), "{text}");
        }
    }
}
