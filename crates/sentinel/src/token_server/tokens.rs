//! The rules for tokens, and their decisions.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use arc_swap::ArcSwapOption;
use parking_lot::{Mutex, RwLock};
use rapidhash::RapidHashMap;
use tidegate_core::{Decision, Nanos, Quota, Standing, algorithm::SlidingWindow};
use tidegate_limiter::KeyedLimiter;
use tidegate_listen::access::Rights;
use tidegate_service::{
    decide::{
        limits::{Act, Limit},
        service::{InForce, Part, Service},
    },
    rules::MAX_KEY_BYTES,
};

use super::{
    frames::{Answer, Asks, Status},
    namespaces::Namespaces,
};
use crate::cluster::{TokenRule, TokenRules};

/// The maximum number of limits that a rule keeps for its numbers of connections. Their states are
/// those of the rule's limit.
const MOST_KEPT: usize = 256;
/// The maximum number of namespaces whose requests are counted: as many as rules can have.
const MOST_NAMESPACES: usize = 10_000;

/// The rules for tokens, as they are in force.
pub(super) struct Tokens {
    pub service: Arc<Service>,
    pub namespaces: Arc<Namespaces>,
    /// The requests of each namespace in a second.
    allowed: KeyedLimiter<()>,
    table: ArcSwapOption<TokenTable>,
}

/// The rules by their ids.
struct TokenTable {
    of: Weak<InForce>,
    /// By the id, and whether the rule counts values. The hash is fast but not safe against chosen
    /// collisions, because the operator chooses the ids.
    rules: RapidHashMap<(i64, bool), Arc<RuleInForce>>,
}

/// A rule in force.
struct RuleInForce {
    token: TokenRule,
    limit: Arc<Limit>,
    /// Until when prioritized requests have taken what there will be. A request that takes from the
    /// slot after this one holds it alone; all others hold it together.
    taken_ahead: Arc<RwLock<Nanos>>,
    /// The limit with the quotas that connections add up to, by their units.
    by_units: Mutex<HashMap<u64, Arc<Limit>>>,
}

/// A request that a rule decides.
pub(super) struct Question {
    rule: Arc<RuleInForce>,
    count: u64,
    is_prioritized: bool,
    /// Empty for a rule without values.
    values: Vec<Vec<u8>>,
    /// Of the rule's namespace.
    connections: usize,
}

impl Tokens {
    /// Allows each namespace at most `max_qps` requests a second, counted over ten slots.
    pub fn new(service: Arc<Service>, max_qps: u32) -> Self {
        let policy = SlidingWindow::new(Quota::per_second(max_qps.into())).balanced();
        let builder = KeyedLimiter::builder(policy)
            .max_keys(MOST_NAMESPACES)
            .clock(());
        let allowed = builder.build().expect("there is memory for a small table");
        Self {
            service,
            namespaces: Arc::default(),
            allowed,
            table: ArcSwapOption::empty(),
        }
    }

    /// The question of a request that a rule decides.
    ///
    /// # Errors
    /// The answer, if none does.
    pub fn question(&self, rights: &Rights, asks: Asks, now: Nanos) -> Result<Question, Answer> {
        let (flow_id, count, is_prioritized, values) = match asks {
            Asks::Flow {
                flow_id,
                count,
                is_prioritized,
            } => (flow_id, count, is_prioritized, Vec::new()),
            Asks::Params {
                flow_id,
                count,
                values,
            } => (flow_id, count, false, values),
            Asks::Ping(_) | Asks::Bad | Asks::Unknown => return Err(Status::BadRequest.into()),
        };
        if values.iter().any(|value| value.len() > MAX_KEY_BYTES) {
            return Err(Status::BadRequest.into());
        }
        let table = self.table();
        let rule = table
            .rules
            .get(&(flow_id, !values.is_empty()))
            .ok_or(Status::NoRule)?;
        let namespace = &rule.token.namespace;
        if !rights.concern(rule.token.limit.as_bytes()) {
            return Err(Status::Fail.into());
        }
        if self.allowed.at(now).acquire(&**namespace, 1).is_denied() {
            return Err(Status::TooManyRequests.into());
        }
        let connections = match &rule.token.per_connection {
            Some(_) => self.namespaces.connections(namespace),
            None => 0,
        };
        Ok(Question {
            rule: Arc::clone(rule),
            count: count.into(),
            is_prioritized,
            values,
            connections,
        })
    }

    /// The rules in force.
    fn table(&self) -> Arc<TokenTable> {
        let in_force = self.service.in_force();
        let known = self.table.load_full();
        if let Some(known) = known
            .as_ref()
            .filter(|known| known.of.as_ptr() == Arc::as_ptr(&in_force))
        {
            return Arc::clone(known);
        }
        // Several threads may do this at once, with the same result.
        let table = Arc::new(TokenTable::new(&in_force, known.as_deref()));
        self.table.store(Some(Arc::clone(&table)));
        table
    }
}

impl TokenTable {
    fn new(in_force: &Arc<InForce>, before: Option<&Self>) -> Self {
        let rule = |token: &TokenRule| {
            let limit = Arc::clone(in_force.limits.limit(token.limit.as_bytes())?);
            let id = (token.flow_id, token.is_of_values);
            let known = before.and_then(|before| before.rules.get(&id));
            let taken_ahead =
                known.map_or_else(Arc::default, |known| Arc::clone(&known.taken_ahead));
            let rule = RuleInForce {
                token: token.clone(),
                limit,
                taken_ahead,
                by_units: Mutex::default(),
            };
            Some((id, Arc::new(rule)))
        };
        Self {
            of: Arc::downgrade(in_force),
            rules: TokenRules::of(in_force).iter().filter_map(rule).collect(),
        }
    }
}

impl Question {
    /// Decides if the counts are in this server's memory. `None` if only the store can decide.
    pub fn decide_here(&self, service: &Service, now: Nanos) -> Option<Answer> {
        if self.rule.limit.store().is_some() {
            return None;
        }
        Some(match &*self.values {
            [] => self.take(now),
            [value] => {
                let limit = self.limit(value);
                answer(&[limit.decide_in_memory(Act::Take, value, self.count, now)?])
            }
            _ => futures_util::FutureExt::now_or_never(self.take_all(service, now))?,
        })
    }

    /// Decides over the store. A prioritized request is as any other there.
    pub async fn decide_in_store(&self, service: &Service, now: Nanos) -> Answer {
        if !self.values.is_empty() {
            return self.take_all(service, now).await;
        }
        let decided = self
            .rule
            .limit
            .decide(Act::Take, &[], self.count, now)
            .await;
        decided.map_or(Status::Fail.into(), |decision| answer(&[decision]))
    }

    /// Takes from a rule without values, in memory.
    fn take(&self, now: Nanos) -> Answer {
        let limit = self.limit(&[]);
        let taken_ahead = &self.rule.taken_ahead;
        if !self.is_prioritized {
            let until = taken_ahead.read();
            let decision = if now < *until {
                denied_until(&limit, self.count, *until, now)
            } else {
                limit.take_in_memory(&[], self.count, now)
            };
            limit.count(Act::Take, &[], self.count, &decision, now);
            return answer(&[decision]);
        }
        let mut until = taken_ahead.write();
        let slot = self.rule.token.slot.as_nanos() as u64;
        let next = Nanos::new((now.get() / slot + 1).saturating_mul(slot));
        let mut decision = denied_until(&limit, self.count, next, now);
        if now >= *until {
            decision = limit.take_in_memory(&[], self.count, now);
        }
        // The units of a client that waits are counted in the next slot. Until then no other
        // request may use the room that the end of this slot makes.
        let mut must_wait = false;
        if decision.is_denied() {
            let ahead = limit.take_in_memory(&[], self.count, next);
            must_wait = ahead.is_allowed();
            if must_wait {
                (*until, decision) = (next, ahead);
            }
        }
        drop(until);
        limit.count(Act::Take, &[], self.count, &decision, now);
        if must_wait {
            let wait_ms = i32::try_from(self.rule.token.slot.as_millis()).unwrap_or(i32::MAX);
            return Answer {
                wait_ms,
                ..Status::ShouldWait.into()
            };
        }
        answer(&[decision])
    }

    /// Takes for all values, or for none.
    async fn take_all(&self, service: &Service, now: Nanos) -> Answer {
        let parts: Vec<Part<'_>> = self
            .values
            .iter()
            .map(|value| Part::new(self.limit(value), value, self.count))
            .collect();
        match service.take_all(&parts, now).await {
            Ok(decisions) => answer(&decisions),
            Err(_) => Status::Fail.into(),
        }
    }

    /// The limit with the quota of a key: its own, or what the connections add up to.
    fn limit(&self, key: &[u8]) -> Arc<Limit> {
        let rule = &self.rule;
        let Some(per_connection) = &rule.token.per_connection else {
            return Arc::clone(&rule.limit);
        };
        let policy = per_connection.policy(key, self.connections);
        let mut by_units = rule.by_units.lock();
        if let Some(limit) = by_units.get(&policy.limit) {
            return Arc::clone(limit);
        }
        if by_units.len() >= MOST_KEPT {
            by_units.clear();
        }
        let units = policy.limit;
        let limit = rule
            .limit
            .with_numbers(policy)
            .expect("only the number differs from a valid policy");
        Arc::clone(by_units.entry(units).or_insert(Arc::new(limit)))
    }
}

fn answer(decisions: &[Decision]) -> Answer {
    if decisions.iter().any(Decision::is_denied) {
        return Status::Blocked.into();
    }
    let remaining = match decisions {
        [one] => i32::try_from(one.remaining()).unwrap_or(i32::MAX),
        _ => -1,
    };
    Answer {
        remaining,
        ..Status::Ok.into()
    }
}

/// The denial of a request whose units were taken ahead by others.
fn denied_until(limit: &Limit, cost: u64, until: Nanos, now: Nanos) -> Decision {
    let (most, wait) = (limit.spec().policy.limit, until.saturating_since(now).get());
    if cost > most {
        Decision::deny_for_good(Standing {
            limit: most,
            room: 0,
            unit: 1,
            reset_after: wait,
        })
    } else {
        Decision::deny(
            Standing {
                limit: most,
                room: 0,
                unit: 1,
                reset_after: wait,
            },
            wait,
        )
    }
}
