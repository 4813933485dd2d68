//! SHA-256 of tokens and of other texts.

use ring::digest;

/// A SHA-256.
pub type Digest = [u8; 32];

/// The digest of a token, as it is stored, or of another text.
pub fn digest_of(text: &[u8]) -> Digest {
    let mut bytes = Digest::default();
    bytes.copy_from_slice(digest::digest(&digest::SHA256, text).as_ref());
    bytes
}

/// The bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a `String` does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
