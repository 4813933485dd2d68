//! The parts of a request line and of a request's target.

use memchr::memchr;

/// The method and the target of a request line; `-` and the whole text if it has no target.
pub(super) fn split_request(request: &[u8]) -> (&[u8], &[u8]) {
    let mut words = request
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    match (words.next(), words.next()) {
        (Some(method), Some(target)) => (method, target),
        _ => (b"-", request),
    }
}

/// The host of an absolute target, such as `https://host:port/path?query`, and the path of any
/// target, without its query. Clients may send either form.
pub(super) fn split_target(target: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let Some(behind) = behind_scheme(target) else {
        return (None, without_query(target));
    };
    let end = behind.iter().position(|byte| b"/?#".contains(byte));
    let (authority, path) = behind.split_at(end.unwrap_or(behind.len()));
    let at = authority.iter().rposition(|&byte| byte == b'@');
    let host = without_port(&authority[at.map_or(0, |at| at + 1)..]);
    let path = if path.first() == Some(&b'/') {
        without_query(path)
    } else {
        b"/"
    };
    (Some(host), path)
}

/// The text behind `https://` or another scheme.
fn behind_scheme(target: &[u8]) -> Option<&[u8]> {
    if !target.first()?.is_ascii_alphabetic() {
        return None;
    }
    let is_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || b"+.-".contains(byte);
    let end = target.iter().position(|byte| !is_scheme(byte))?;
    target[end..].strip_prefix(b"://")
}

/// A host without its port.
pub(super) fn without_port(host: &[u8]) -> &[u8] {
    match host.iter().rposition(|&byte| byte == b':') {
        Some(colon) if host[colon + 1..].iter().all(u8::is_ascii_digit) => &host[..colon],
        _ => host,
    }
}

fn without_query(target: &[u8]) -> &[u8] {
    &target[..memchr(b'?', target).unwrap_or(target.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_target_that_begins_with_a_scheme_has_a_host() {
        for (target, host, path) in [
            ("/login?next=https://e.org/x", None, "/login"),
            ("/a/https://e.org/b", None, "/a/https://e.org/b"),
            (
                "http://shop.example.com:80/login?a=b",
                Some("shop.example.com"),
                "/login",
            ),
            ("https://u@[2001:db8::1]:443/a", Some("[2001:db8::1]"), "/a"),
            ("HTTP://e.org?x=/y", Some("e.org"), "/"),
            ("http://e.org", Some("e.org"), "/"),
            ("e.org:443", None, "e.org:443"),
            ("*", None, "*"),
            ("", None, ""),
        ] {
            let expected = (host.map(str::as_bytes), path.as_bytes());
            assert_eq!(split_target(target.as_bytes()), expected, "{target}");
        }
    }
}
