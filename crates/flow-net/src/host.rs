//! The machine that the program runs on.

/// The machine's name.
pub(crate) fn name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "host".to_owned()
    } else {
        name.to_owned()
    }
}
