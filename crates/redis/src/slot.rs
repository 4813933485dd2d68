//! The slot of a key in a cluster.

/// How many slots a cluster has.
pub const SLOTS: usize = 16_384;

/// CRC-16 (XMODEM), one entry for each value of the top byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let (mut crc, mut bit) = ((at as u16) << 8, 0);
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
};

/// The slot: of the text between the first `{` and the next `}` where there is any, else of the whole key.
pub fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let open = key.iter().position(|&byte| byte == b'{')? + 1;
        let length = key[open..].iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &key[open..open + length])
    };
    let hashed = tag().unwrap_or(key);
    let crc = hashed.iter().fold(0, |crc: u16, &byte| crc << 8 ^ TABLE[usize::from((crc >> 8) as u8 ^ byte)]);
    crc % SLOTS as u16
}

#[cfg(test)]
mod tests {
    use super::slot;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31C3);
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"{user1000}.following"), slot(b"{user1000}.followers"));
        assert_eq!(slot(b"foo{bar}"), slot(b"bar"));
        assert_ne!(slot(b"{}a"), slot(b"{}b"));
    }
}
