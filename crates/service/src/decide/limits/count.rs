//! What is counted of a limit's decisions.

use tidegate_core::{Decision, DenialReason, Nanos};

use super::{Act, Limit, memory::Memory};
use crate::observe::{
    reached::Reached,
    trace::Verdict,
    usage::{Ledger, Use},
};

impl Limit {
    /// Counts what takes units, and every denial. Units that are charged count as admitted: the
    /// work was done.
    #[inline]
    pub fn count(&self, act: Act, key: &[u8], cost: u64, decision: &Decision, now: Nanos) {
        if cost == 0 && (!matches!(act, Act::Take | Act::TakeAnyway) || decision.is_allowed()) {
            return;
        }
        if let Some(ledger) = &self.observers.usage {
            self.keep_usage(ledger, act, key, cost, decision, now);
        }
        match act {
            Act::Take | Act::TakeAnyway => {
                self.count_taken(key, decision, now);
                if decision.reason() == Some(DenialReason::Blocked) {
                    self.note_rule_block(key, decision, now);
                } else if self.store.as_ref().is_some_and(|store| store.blocks) {
                    // Another server has ended the block.
                    self.memory.rule_blocks.forget(key);
                }
                if let Some(tap) = &self.tap {
                    tap.see(key, cost, decision, self.spec.shadow, now);
                }
            }
            Act::Charge => {
                let done = Decision::allow(decision.standing());
                self.count_taken(key, &done, now);
                if let Some(tap) = &self.tap {
                    tap.add(key, cost, Verdict::Charged, None, now);
                }
            }
            Act::Peek | Act::Refund => {}
        }
    }

    /// Counts the correction of an estimate: units beyond it as charged, units that were returned
    /// as refunded.
    pub fn count_settled(&self, key: &[u8], estimated: u64, actual: u64, now: Nanos) {
        let actual = if self.spec.policy.algorithm.limits_rate() {
            actual
        } else {
            0
        };
        if actual > estimated {
            let standing = self.standing(key, 0, now);
            self.count(Act::Charge, key, actual - estimated, &standing, now);
        } else {
            self.see_refund(key, estimated - actual, now);
        }
    }

    #[cold]
    fn keep_usage(
        &self,
        ledger: &Ledger,
        act: Act,
        key: &[u8],
        cost: u64,
        decision: &Decision,
        now: Nanos,
    ) {
        let denied = decision.is_denied() && act != Act::Charge;
        let used = match act {
            Act::Take if denied => 0,
            Act::Take | Act::TakeAnyway | Act::Charge => i64::try_from(cost).unwrap_or(i64::MAX),
            Act::Peek | Act::Refund => return,
        };
        let more = Use {
            used,
            requests: u64::from(!denied),
            denied: u64::from(denied),
        };
        ledger.add(&self.spec.name, key, more, now);
    }

    #[inline]
    fn count_taken(&self, key: &[u8], decision: &Decision, now: Nanos) {
        let counts = &self.memory.counts;
        let sampled = if self.spec.shadow {
            counts.add_shadow(decision)
        } else {
            counts.add(decision)
        };
        if sampled {
            self.sample(key, decision, now);
        }
        if !self.spec.thresholds.is_empty() {
            self.see_thresholds(key, decision, now);
        }
    }

    #[cold]
    fn see_thresholds(&self, key: &[u8], decision: &Decision, now: Nanos) {
        let tag = self.limiter().hash_keys().tag(key);
        self.memory.thresholds.see(
            &self.spec.thresholds,
            tag,
            decision,
            now,
            |percent, used| {
                let (limit, key) = (self.spec.name.as_str(), String::from_utf8_lossy(key));
                if let Some(left_out) = self.memory.reached.due(now) {
                    tracing::info!(
                        limit,
                        key = &*key,
                        used,
                        of = decision.limit(),
                        left_out,
                        "a key has used {percent}% of its limit; at most one line a minute"
                    );
                }
                if let Some(tell) = &self.observers.on_threshold {
                    let (limit, key, of) = (limit.to_owned(), key.into_owned(), decision.limit());
                    tell(Reached {
                        limit,
                        key,
                        percent,
                        used,
                        of,
                        time_ms: now.get() / 1_000_000,
                    });
                }
            },
        );
    }

    /// Looks at one of the sample: who asked, and how long it took since its edge had it.
    #[cold]
    fn sample(&self, key: &[u8], decision: &Decision, now: Nanos) {
        let Memory {
            counts,
            heavy,
            latency,
            ..
        } = &*self.memory;
        heavy.record(self.who(key), decision.is_denied(), &counts.sampling, now);
        if let Some(clock) = &self.observers.clock {
            latency.observe(clock.now().saturating_since(now), 1);
        }
    }

    #[inline]
    pub(super) fn see_refund(&self, key: &[u8], cost: u64, now: Nanos) {
        if let Some(ledger) = &self.observers.usage {
            let used = -i64::try_from(cost).unwrap_or(i64::MAX);
            ledger.add(
                &self.spec.name,
                key,
                Use {
                    used,
                    ..Use::default()
                },
                now,
            );
        }
        if let Some(tap) = &self.tap
            && cost > 0
        {
            tap.add(key, cost, Verdict::Refunded, None, now);
        }
    }
}
