//! Whose address it is: what a limit by `ip` counts as one client.

use std::{borrow::Cow, net::IpAddr};

/// The client that an address in a log stands for, as `tidegate_tower` keys it: an IPv4 address in full, of an IPv6
/// address the first 64 bits (`2001:db8:1:2::/64`), since one client has all of them. An IPv4 address written as IPv6
/// is the IPv4 address. A port behind the address is left off. What is no address (a host's name) stands for itself.
pub(super) fn client(text: &[u8]) -> Cow<'_, [u8]> {
    // Almost all: an IPv4 address without a port, or a name.
    if !text.contains(&b':') {
        return text.into();
    }
    match address(text) {
        Some(address) => tidegate_core::address_key(address, 64).into_bytes().into(),
        None => text.into(),
    }
}

/// An address, perhaps in brackets, perhaps with a port behind it.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|rest| rest.split_once(']')).map(|(inside, _)| inside);
    let found = bare.unwrap_or(text).parse().ok();
    let found = found.or_else(|| {
        let (host, port) = text.rsplit_once(':')?;
        port.bytes().all(|digit| digit.is_ascii_digit()).then(|| host.parse().ok())?
    });
    found.map(|address: IpAddr| address.to_canonical())
}

/// Whether it is an address.
pub(super) fn is_address(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<IpAddr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_client_is_its_first_64_bits_however_it_is_written() {
        for text in
            ["2001:db8:1:2::9", "2001:DB8:1:2:3:4:5:6", "[2001:db8:1:2::9]:443", "2001:0db8:0001:0002::1"]
        {
            assert_eq!(client(text.as_bytes()), &b"2001:db8:1:2::/64"[..], "{text}");
        }
        assert_eq!(client(b"::1"), &b"::/64"[..]);
    }

    #[test]
    fn an_ipv4_client_is_its_whole_address_without_a_port() {
        for text in ["10.0.0.1", "10.0.0.1:5678", "::ffff:10.0.0.1", "[::ffff:10.0.0.1]:80"] {
            assert_eq!(client(text.as_bytes()), &b"10.0.0.1"[..], "{text}");
        }
    }

    #[test]
    fn what_is_no_address_stands_for_itself() {
        for text in ["crawler.example.com", "-", "unix:", "a:b:c", ""] {
            assert_eq!(client(text.as_bytes()), text.as_bytes());
        }
    }
}
