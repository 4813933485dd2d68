#[cfg(not(loom))]
mod bounded;
#[cfg(loom)]
mod loom_table;
