//! Any bytes are a frame, the beginning of one, or an error; a frame never reaches beyond the
//! input.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::resp::{Args, MAX_ARGS, MAX_FRAME, parse};

fuzz_target!(|input: &[u8]| {
    let mut rest = input;
    let mut args = Args::default();
    while let Ok(Some(length)) = parse(rest, &mut args) {
        assert!(length > 0 && length <= rest.len() && length <= MAX_FRAME);
        assert!(args.get().len() <= MAX_ARGS);
        rest = &rest[length..];
    }
});
