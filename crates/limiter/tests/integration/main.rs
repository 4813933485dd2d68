//! The promises of limiters in memory. Programs of their own have the tests that measure their process.

mod any;
mod at;
mod charges;
mod fair;
mod fair_snapshot;
mod full_together;
mod holds;
mod lines;
mod never_back;
mod numbers;
mod one_law;
mod oversize;
mod penalties;
mod policies;
mod priorities;
mod reserve;
mod reserve_all;
mod wait_all;
mod waiting;
