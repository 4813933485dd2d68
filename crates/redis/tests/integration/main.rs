//! The promises of a shared limit, with a real server.
#![cfg(feature = "servers")]

mod ad_hoc;
mod blocks;
mod charges;
mod clock;
mod credentials;
mod exact;
mod examinations;
mod examples;
mod faults;
mod in_turn;
mod leased;
mod leased_faults;
mod leased_together;
mod nodes;
mod once;
mod permissions;
mod permits;
mod refunds;
mod reservations;
mod sentinels;
mod sizes;
mod tenants;
mod tls;
mod unserved;
mod up_to;
mod wait_in_line;
mod wait_together;
mod waiting;
