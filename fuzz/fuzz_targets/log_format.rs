//! A good line of a log in which a few bytes are changed is read as its format or refused, never as
//! a line of another format.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_sim::input::{Format, Options, read_lines};

include!("../../crates/sim/tests/good_lines/mod.rs");

fuzz_target!(|input: &[u8]| {
    let Some((&line, edits)) = input.split_first() else {
        return;
    };
    let (format, line) = GOOD[usize::from(line) % GOOD.len()];
    let edits: Vec<_> = edits.chunks_exact(4).take(3).map(edit_of).collect();
    assert!(is_read_as(format, &edited(line, &edits)));
});
