//! Addresses from which clients give wrong credentials.

use std::{net::IpAddr, time::Duration};

use tidegate_core::{Policy, Quota, address_key, algorithm::TokenBucket};
use tidegate_limiter::KeyedLimiter;
use tidegate_service::observe::once_a_minute::OnceAMinute;

/// How many wrong credentials an address may give at once, and in each minute after that.
const BURST: u64 = 20;
const PER_MINUTE: u64 = 10;
/// How many addresses are remembered.
const ADDRESSES: usize = 10_000;

/// Limits the wrong credentials of each IPv4 address, and of each /64 of IPv6. Right ones are
/// always accepted, also from an address with too many wrong ones, so an attacker cannot lock a
/// client out.
pub struct Strangers {
    failures: KeyedLimiter,
    warning: OnceAMinute,
    listener: &'static str,
}

impl Strangers {
    /// # Panics
    /// If the system does not provide the 1 MiB for the addresses.
    pub fn new(listener: &'static str) -> Self {
        let policy: Policy = TokenBucket::new(Quota::per_minute(PER_MINUTE))
            .burst(BURST)
            .expect("a burst of two minutes fits")
            .into();
        let failures = KeyedLimiter::builder(policy).max_keys(ADDRESSES).build();
        Self {
            failures: failures.expect("there is a mebibyte of memory"),
            warning: OnceAMinute::default(),
            listener,
        }
    }

    /// Counts wrong credentials. Returns how long the address must wait if it has given too many.
    pub fn failed(&self, address: IpAddr) -> Option<Duration> {
        let wait = self
            .failures
            .check(address_key(address, 64).as_bytes())
            .retry_after();
        if self
            .warning
            .is_due(tidegate_core::Clock::now(self.failures.clock()))
        {
            tracing::warn!(
                listener = self.listener,
                client = %address,
                "a client gave wrong credentials; logged once a minute"
            );
        }
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_guesses_waits_and_others_do_not() {
        let strangers = Strangers::new("test");
        let one = "10.0.0.1".parse().unwrap();
        let failed = (0..100).filter(|_| strangers.failed(one).is_none()).count();
        assert!((20..=21).contains(&failed), "{failed}");
        assert!(strangers.failed(one) > Some(Duration::from_secs(4)));
        assert_eq!(strangers.failed("10.0.0.2".parse().unwrap()), None);
        // All addresses of a /64 belong to one client.
        let of = |last: u16| format!("2001:db8::{last:x}").parse().unwrap();
        assert!(
            (0..100)
                .filter(|last| strangers.failed(of(*last)).is_none())
                .count()
                <= 21
        );
    }
}
