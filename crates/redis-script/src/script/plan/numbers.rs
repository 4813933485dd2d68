//! Numbers for Lua, which has only doubles. None exceeds 2⁵³, so none is rounded.

/// The length of six numbers.
pub(super) const SIX: usize = 48;

/// Packs six numbers for `struct.unpack('<dddddd')`; missing ones are zero.
pub(super) fn pack(numbers: &[u64]) -> Vec<u8> {
    debug_assert!(numbers.len() <= 6 && numbers.iter().all(|&number| number <= 1 << 53));
    let padded = numbers.iter().chain([&0; 6]).take(6);
    padded
        .flat_map(|&number| (number as f64).to_le_bytes())
        .collect()
}

/// Packs four fractions in the same form.
pub(super) fn fractions(numbers: [f64; 4]) -> Vec<u8> {
    let padded = numbers.into_iter().chain([0.0; 2]);
    padded.flat_map(f64::to_le_bytes).collect()
}

/// These numbers with boundaries in place of the last three.
pub(super) fn with_edges(numbers: &[u8], edges: [u64; 3]) -> Vec<u8> {
    [&numbers[..24], &pack(&edges)[..24]].concat()
}

/// The numbers of a bucket whose interval is `step / parts` nanoseconds and which holds `bound` (in
/// `1/parts` ns).
///
/// Spans are whole microseconds and a fraction in `1 / (1000 × parts)` of one, which is exact for
/// every rate. The fraction's unit is at least 2⁻⁴² µs, and spans are at most 73 years.
///
/// Also returns the number of bytes of the fraction in a value.
pub(super) fn bucket(limit: u64, step: u64, parts: u64, bound: u128) -> (Vec<u8>, usize) {
    let scale = 1_000 * parts;
    let part = |ticks: u128| (ticks % u128::from(scale)) as u64;
    let whole = |ticks: u128| (ticks / u128::from(scale)) as u64;
    let step = u128::from(step);
    let numbers = pack(&[
        limit,
        whole(step),
        part(step),
        whole(bound),
        part(bound),
        scale,
    ]);
    let part_bytes = match part(step) {
        0 => 0,
        _ if scale <= 1 << 40 => 5,
        _ => 6,
    };
    (numbers, part_bytes)
}

/// The additional numbers of a leased bucket's full burst: how much later than they count units may
/// be used, in microseconds, and the burst of the leased bucket.
pub(super) fn held(micros: u64, burst: u64) -> Vec<u8> {
    pack(&[micros, burst])[..16].to_vec()
}

/// The additional numbers of a bucket in which a cost above the burst may wait: the highest one,
/// marked as such by its sign, and the burst.
pub(super) fn oversize(most: u64, burst: u64) -> Vec<u8> {
    [(-(most as f64)).to_le_bytes(), (burst as f64).to_le_bytes()].concat()
}

/// The longest debt of a bucket in `tidegate-core`, in nanoseconds.
const MAX_OWED: u128 = (1 << 61) / 2 * 3 - 1 - 0xFF;

/// The maximum debt when use is charged afterwards: units, their span, and its fraction.
pub(super) fn most_owed(step: u64, parts: u64) -> Vec<u8> {
    let ticks = MAX_OWED * u128::from(parts);
    let units = ticks.div_ceil(u128::from(step)).min(1 << 53) as u64;
    let scale = u128::from(1_000 * parts);
    pack(&[units, (ticks / scale) as u64, (ticks % scale) as u64])
}
