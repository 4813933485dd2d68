//! Keys of clients, from addresses and from the header fields of proxies.

use std::net::IpAddr;

use http::{Request, request::Parts};
use tidegate_tower::key::{Client, KeySource, Networks, address_key};

fn parts(peer: &str, lines: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder();
    for (name, value) in lines {
        request = request.header(*name, *value);
    }
    let mut parts = request
        .body(())
        .expect("the request is well formed")
        .into_parts()
        .0;
    if !peer.is_empty() {
        let peer: IpAddr = peer.parse().expect("the address is well formed");
        parts.extensions.insert(peer);
    }
    parts
}

fn found(client: &Client, parts: &Parts) -> Option<String> {
    client
        .key(parts)
        .map(|key| String::from_utf8_lossy(&key).into_owned())
}

fn xff(value: &str) -> Parts {
    parts("10.0.0.1", &[("x-forwarded-for", value)])
}

#[test]
fn what_a_client_writes_into_x_forwarded_for_does_not_change_its_key() {
    let one = Client::behind(1);
    for forged in [
        "",
        "1.1.1.1, ",
        "\"1.1.1.1, ",
        "unknown, ,",
        "[::1]:9, 1.1.1.1,",
    ] {
        assert_eq!(
            found(&one, &xff(&format!("{forged}192.0.2.7"))).as_deref(),
            Some("192.0.2.7"),
            "{forged}"
        );
    }
    let two = Client::behind(2);
    assert_eq!(
        found(&two, &xff("1.1.1.1, 192.0.2.7, 10.0.0.2")).as_deref(),
        Some("192.0.2.7")
    );
    // The proxy may add a separate line.
    let lines = [
        ("x-forwarded-for", "1.1.1.1, 192.0.2.7"),
        ("x-forwarded-for", "10.0.0.2"),
    ];
    assert_eq!(
        found(&two, &parts("", &lines)).as_deref(),
        Some("192.0.2.7")
    );
    assert_eq!(found(&two, &xff("192.0.2.7")), None);
    assert_eq!(
        found(&Client::behind(0), &xff("1.1.1.1")).as_deref(),
        Some("10.0.0.1")
    );
}

#[test]
fn only_trusted_proxies_are_believed() {
    let trusting = Client::trusting(
        "10.0.0.0/8 2001:db8::/32"
            .parse()
            .expect("these are networks"),
    );
    let ask = |peer, value| found(&trusting, &parts(peer, &[("x-forwarded-for", value)]));
    // A client that bypasses the proxies cannot forge its address.
    assert_eq!(ask("192.0.2.9", "1.1.1.1").as_deref(), Some("192.0.2.9"));
    assert_eq!(
        ask("10.0.0.1", "1.1.1.1, 192.0.2.7, 10.9.9.9").as_deref(),
        Some("192.0.2.7")
    );
    assert_eq!(
        ask("::ffff:10.0.0.1", "192.0.2.7").as_deref(),
        Some("192.0.2.7")
    );
    assert_eq!(
        ask("10.0.0.1", "10.0.0.3, [2001:db8::1]:443").as_deref(),
        Some("10.0.0.3")
    );
    assert_eq!(ask("10.0.0.1", "192.0.2.7, unknown"), None);
    assert_eq!(
        found(&trusting, &parts("10.0.0.1", &[])).as_deref(),
        Some("10.0.0.1")
    );
    assert_eq!(
        found(&trusting, &parts("", &[("x-forwarded-for", "192.0.2.7")])),
        None
    );
}

#[test]
fn quotes_further_left_do_not_change_how_forwarded_is_read() {
    let one = Client::behind(1).forwarded();
    let ask = |value| found(&one, &parts("", &[("forwarded", value)]));
    assert_eq!(
        ask("for=1.1.1.1, For=192.0.2.60;proto=http;by=203.0.113.43").as_deref(),
        Some("192.0.2.60")
    );
    assert_eq!(
        ask("for=\"[2001:db8:cafe::17]:4711\"").as_deref(),
        Some("2001:db8:cafe::/64")
    );
    // An unclosed quote hides no entry, and a comma within quotes separates none.
    assert_eq!(
        ask("for=\"evil, for=192.0.2.60").as_deref(),
        Some("192.0.2.60")
    );
    assert_eq!(
        ask("for=192.0.2.60;ext=\"a, for=1.1.1.1\"").as_deref(),
        Some("192.0.2.60")
    );
    assert_eq!(ask("for=192.0.2.60, for=_hidden"), None);
    assert_eq!(ask("proto=http"), None);
    // `X-Forwarded-For` is ignored.
    assert_eq!(found(&one, &xff("192.0.2.7")), None);
}

#[test]
fn a_list_of_networks_reports_an_invalid_entry() {
    let error = "10.0.0.0/8, 10.0.0.0/33"
        .parse::<Networks>()
        .expect_err("no network has 33 bits");
    assert!(
        error
            .to_string()
            .starts_with("\"10.0.0.0/33\" is not a network"),
        "{error}"
    );
}

#[test]
fn an_address_counts_as_the_client_that_has_it() {
    let key = |address: &str| String::from_utf8(address_key(address.parse().unwrap())).unwrap();
    assert_eq!(key("192.0.2.7"), "192.0.2.7");
    assert_eq!(key("::ffff:192.0.2.7"), "192.0.2.7");
    assert_eq!(key("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
    assert_eq!(key("2001:db8:1:2::9"), "2001:db8:1:2::/64");
}

#[test]
fn any_prefix_of_an_ipv6_address_can_name_a_client() {
    let lines = [("x-forwarded-for", "2001:db8:1:2:3:4:5:6")];
    let key = |prefix| found(&Client::behind(1).ipv6_prefix(prefix), &parts("", &lines)).unwrap();
    assert_eq!(key(0), "::/0");
    assert_eq!(key(48), "2001:db8:1::/48");
    assert_eq!(key(127), "2001:db8:1:2:3:4:5:6/127");
    assert_eq!([128, 255].map(key), ["2001:db8:1:2:3:4:5:6"; 2]);
}
