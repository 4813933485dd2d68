//! Cluster slots.

/// The number of slots in a cluster.
pub const SLOTS: usize = 16_384;

/// CRC-16 (XMODEM), with one entry for each value of the top byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut crc, mut bit) = ((at as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

/// The part of a key that determines its slot: the text between the first `{` and the next `}` if
/// it is not empty, otherwise the whole key.
pub fn hashed(key: &[u8]) -> &[u8] {
    let tag = || {
        let open = key.iter().position(|&byte| byte == b'{')? + 1;
        let length = key[open..].iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &key[open..open + length])
    };
    tag().unwrap_or(key)
}

/// The slot of a key.
pub fn slot(key: &[u8]) -> u16 {
    let crc = hashed(key).iter().fold(0, |crc: u16, &byte| {
        crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]
    });
    crc % SLOTS as u16
}

/// An auxiliary key in the same slot as `key`. It begins with `text` (without braces) and ends with
/// `name`.
pub fn beside(key: &[u8], text: &str, name: &str) -> Vec<u8> {
    let tag = hashed(key);
    if !tag.is_empty() && !tag.contains(&b'}') {
        return [text.as_bytes(), b"{", tag, b"}", name.as_bytes()].concat();
    }
    // A tag with braces in it would not work, so search for a number that leads to the slot; one of
    // 16,384 keys does.
    let slot = slot(key);
    let other = |number: u64| format!("{text}{number}:{name}").into_bytes();
    (0..1 << 32)
        .map(other)
        .find(|other| self::slot(other) == slot)
        .unwrap_or_default()
}
