//! The bytes of keys.

use std::{
    borrow::Cow,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use tidegate_core::{Key, address_key};

fn bytes(key: impl Key) -> Vec<u8> {
    key.with_bytes(<[u8]>::to_vec)
}

#[test]
fn a_key_has_the_same_bytes_in_every_container() {
    let text = String::from("alice");
    assert_eq!(bytes("alice"), b"alice");
    assert_eq!(bytes(b"alice"), bytes(&text));
    assert_eq!(
        bytes(Box::<str>::from("alice")),
        bytes(Arc::<[u8]>::from(*b"alice"))
    );
    assert_eq!(bytes(Cow::Borrowed("alice")), bytes(text.into_bytes()));
}

#[test]
fn numbers_and_addresses_are_keys_of_their_width() {
    assert_eq!(
        (bytes(7_u32), bytes(-1_i16)),
        (Vec::from([7, 0, 0, 0]), Vec::from([0xFF, 0xFF]))
    );
    assert_eq!(bytes(7_usize), bytes(7_u64));
    let v4 = Ipv4Addr::new(192, 0, 2, 1);
    assert_eq!(bytes(v4), [192, 0, 2, 1]);
    assert_eq!(bytes(IpAddr::from(v4)), bytes(v4));
    let v6 = v4.to_ipv6_mapped();
    assert_eq!(
        (bytes(v6).len(), bytes(IpAddr::from(v6).to_canonical())),
        (16, bytes(v4))
    );
}

#[test]
fn every_octet_is_written_in_decimal() {
    for octet in 0..=u8::MAX {
        let address = Ipv4Addr::new(octet, 0, 255 - octet, octet / 2);
        assert_eq!(address_key(address.into(), 64), address.to_string());
    }
}
