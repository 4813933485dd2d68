//! wip
/// The longest key that a request may carry, in bytes (the library takes any).
pub const MAX_KEY_BYTES: usize = 1024;
/// name
pub const THROTTLE: &str = "CL.THROTTLE";
