//! The types that can be a key of a limit: text, numbers and addresses.

use alloc::{
    borrow::{Cow, ToOwned},
    boxed::Box,
    rc::Rc,
    string::String,
    sync::Arc,
    vec::Vec,
};
use core::{
    fmt::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// A key of a limit, as bytes. Reading the bytes neither formats nor allocates.
///
/// * Text and bytes are used as they are.
/// * A number is its bytes in little-endian order, as many as its type has: `7_u32` and `7_u64` are
///   different keys. `usize` and `isize` are as wide as `u64`.
/// * An address is its 4 or 16 octets, whether it is an [`IpAddr`] or a more specific type. An
///   IPv4-mapped IPv6 address differs from the IPv4 address; [`IpAddr::to_canonical`] makes them
///   equal.
///
/// Two keys of one limit are equal if their bytes are equal. Use one type for all keys of a limit,
/// or put the kind into the key: `user:7`.
///
/// To implement the trait for your own type, pass bytes that distinguish its values:
///
/// ```
/// use tidegate_core::Key;
///
/// struct Tenant { region: u16, number: u64 }
///
/// impl Key for Tenant {
///     fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
///         let mut bytes = [0; 10];
///         bytes[..2].copy_from_slice(&self.region.to_le_bytes());
///         bytes[2..].copy_from_slice(&self.number.to_le_bytes());
///         read(&bytes)
///     }
/// }
/// assert_eq!(Tenant { region: 1, number: 2 }.with_bytes(<[u8]>::len), 10);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key of a limit",
    note = "keys are text, bytes, integers and IP addresses; for another type implement `Key`, or pass its bytes"
)]
pub trait Key {
    /// Calls `read` once with the key's bytes.
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R;
}

macro_rules! bytes {
    ($($name:ty),*) => {$(
        impl Key for $name {
            #[inline]
            fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                read(self.as_ref())
            }
        }
    )*};
}
bytes!(str, [u8], String, Vec<u8>);

macro_rules! arrays {
    ($array:ident: $($name:ty),*) => {$(
        impl Key for $name {
            #[inline]
            fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                read(&self.$array())
            }
        }
    )*};
}
arrays!(to_le_bytes: u8, u16, u32, u64, u128, i8, i16, i32, i64, i128);
arrays!(octets: Ipv4Addr, Ipv6Addr);

macro_rules! pointers {
    ($($name:ty),*) => {$(
        impl<K: Key + ?Sized> Key for $name {
            #[inline]
            fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
                (**self).with_bytes(read)
            }
        }
    )*};
}
pointers!(&K, &mut K, Box<K>, Rc<K>, Arc<K>);

impl Key for usize {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        (*self as u64).with_bytes(read)
    }
}

impl Key for isize {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        (*self as i64).with_bytes(read)
    }
}

impl<const N: usize> Key for [u8; N] {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        read(self)
    }
}

impl<K: Key + ToOwned + ?Sized> Key for Cow<'_, K> {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        (**self).with_bytes(read)
    }
}

impl Key for IpAddr {
    #[inline]
    fn with_bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Self::V4(address) => address.with_bytes(read),
            Self::V6(address) => address.with_bytes(read),
        }
    }
}

/// The key of a client by its network address, as readable text: an IPv4 address in full, or the
/// first `ipv6_prefix` bits (at most 128) of an IPv6 address, because one client usually has all
/// addresses with the same first 64 bits. An IPv4-mapped IPv6 address is treated as the IPv4
/// address.
///
/// ```
/// use tidegate_core::address_key;
/// assert_eq!(address_key("2001:db8:1:2::9".parse()?, 64), "2001:db8:1:2::/64");
/// assert_eq!(address_key("::ffff:192.0.2.7".parse()?, 64), "192.0.2.7");
/// # Ok::<(), core::net::AddrParseError>(())
/// ```
#[must_use]
pub fn address_key(address: IpAddr, ipv6_prefix: u8) -> String {
    // The length of the longest IPv4 address.
    let mut text = String::with_capacity(15);
    // Writing to a `String` does not fail.
    let _ = match address.to_canonical() {
        // What `write!` would do takes several times as long.
        IpAddr::V4(address) => {
            for (at, octet) in address.octets().into_iter().enumerate() {
                if at > 0 {
                    text.push('.');
                }
                for unit in [100, 10, 1] {
                    if octet >= unit || unit == 1 {
                        text.push(char::from(b'0' + octet / unit % 10));
                    }
                }
            }
            Ok(())
        }
        IpAddr::V6(address) if ipv6_prefix >= 128 => write!(text, "{address}"),
        IpAddr::V6(address) => {
            let network = u128::MAX
                .checked_shl(128 - u32::from(ipv6_prefix))
                .unwrap_or_default();
            write!(
                text,
                "{}/{ipv6_prefix}",
                Ipv6Addr::from(u128::from(address) & network)
            )
        }
    };
    text
}
