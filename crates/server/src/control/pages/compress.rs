//! Pages, their files and their updates in gzip, for clients that accept it.

use std::io::Write;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};

/// Whether a client accepts gzip.
pub(super) fn accepted(headers: &HeaderMap) -> bool {
    let fields = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = fields
        .filter_map(|field| field.to_str().ok())
        .flat_map(|field| field.split(','));
    codings.any(|coding| {
        let (name, quality) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = quality
            .trim()
            .strip_prefix("q=")
            .and_then(|q| q.parse().ok())
            == Some(0.0);
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

/// A whole text.
pub(super) fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to a `Vec` does not fail.
    let _ = encoder.write_all(text);
    encoder.finish().unwrap_or_default()
}

/// A text that goes on: each part is compressed with what was before it.
pub(super) struct Compressor(GzEncoder<Vec<u8>>);

impl Default for Compressor {
    fn default() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::default()))
    }
}

impl Compressor {
    /// The next part, complete for a client that has all parts before it.
    pub fn flushed(&mut self, text: &[u8]) -> Bytes {
        // Writing to a `Vec` does not fail.
        let _ = self.0.write_all(text).and_then(|()| self.0.flush());
        std::mem::take(self.0.get_mut()).into()
    }
}
