//! The Lua scripts that decide in Redis, assembled from the pieces in `lua/`.
//!
//! A script translates an algorithm of `tidegate-core` only as far as it needs to admit or deny and
//! to write the state. The algorithm itself computes the caller's decision here, from the state
//! before the call. The tests compare each script with its algorithm, step by step, on a real
//! server.

pub mod call;
mod kind;
mod plan;
mod runner;

use std::sync::{Arc, OnceLock, atomic::AtomicU64};

pub use kind::ScriptKind;
#[cfg(feature = "servers")]
pub use plan::TEST_TIME;
pub use plan::{Plan, PlanError, ShareSeen};
use plan::{block_words, line_seen, share_seen};
use redis::Value;
pub use runner::Runner;
use tidegate_core::Nanos;

const VALUE: &str = include_str!("lua/value.lua");
const SPAN: &str = include_str!("lua/span.lua");
/// The values of a batch's keys. `rest` has the keys that are still to be decided, `nil` for all, and
/// `fresh` the parts of the reply for those that were decided and had no value.
const STATES: &str = "local rest, fresh\nlocal states = redis.call('MGET', unpack(KEYS))\n";
const QUICK: &str = include_str!("lua/quick.lua");
const BATCH: &str = include_str!("lua/batch.lua");
/// The algorithms of a script for several kinds, by their letters. A call makes those that it needs.
const ALGORITHMS: &str = include_str!("lua/algorithms.lua");
const LOG: &str = include_str!("lua/log.lua");
const BATCH_LOG: &str = include_str!("lua/batch_log.lua");
const JOINT: &str = include_str!("lua/joint.lua");
const PERMITS: &str = include_str!("lua/permits.lua");
const SETTLE: &str = include_str!("lua/settle.lua");
const LEASE: &str = include_str!("lua/lease.lua");
const LEASE_LOG: &str = include_str!("lua/lease_log.lua");
const CHANGE: &str = include_str!("lua/change.lua");
const REFUND_LOG: &str = include_str!("lua/refund_log.lua");
const CHARGE_LOG: &str = include_str!("lua/charge_log.lua");
const REFUND_PERMITS: &str = include_str!("lua/refund_permits.lua");
const GIVE_BACK_LOG: &str = include_str!("lua/give_back_log.lua");
const RESERVE: &str = include_str!("lua/reserve.lua");
const RECORD: &str = include_str!("lua/record.lua");
const GIVEN: &str = include_str!("lua/given.lua");
const FITS: &str = include_str!("lua/fits.lua");
const UP_TO: &str = include_str!("lua/up_to.lua");
const ALLOT: &str = include_str!("lua/allot.lua");
const ANY: &str = include_str!("lua/any.lua");
const ONCE: &str = include_str!("lua/once.lua");
const KEEP_ANSWER: &str = include_str!("lua/keep_answer.lua");
const CORRECT: &str = include_str!("lua/correct.lua");
const DUE: &str = include_str!("lua/due.lua");
const OLDEST: &str = include_str!("lua/oldest.lua");
const BLOCK: &str = include_str!("lua/block.lua");
const LINE: &str = include_str!("lua/line.lua");
const SHARES: &str = include_str!("lua/shares.lua");
const SHARE_CHANGE: &str = include_str!("lua/share_change.lua");
const TURN: &str = include_str!("lua/turn.lua");
const KEPT_ANSWER: &str = include_str!("lua/kept_answer.lua");
const TURN_TAKEN: &str = include_str!("lua/turn_taken.lua");
const UNBLOCK: &str = include_str!("lua/unblock.lua");
const RESET: &str = include_str!("lua/reset.lua");
/// The reply of joint decisions and reservations.
const REPLY: &str = "return {time[1], time[2], replies}\n";
/// The reply of a reservation of units that were taken before.
const REPLY_TAKEN: &str = "return {time[1], time[2], 'kept'}\n";
/// The reply of a decision that takes what fits.
const REPLY_UP_TO: &str = "return {time[1], time[2], replies, granted}\n";
/// The reply of a decision by the first limit that admits.
const REPLY_ANY: &str = "return {time[1], time[2], replies, chosen}\n";

/// A script's text, and the SHA by which Redis knows it.
#[derive(Debug)]
pub struct Script {
    pub text: String,
    pub sha: String,
    /// Whether its reply promises the server's time.
    is_timed: bool,
    /// The number of the connection on which it last ran: the server behind it knows the SHA.
    known_on: AtomicU64,
    after_step: OnceLock<Arc<Self>>,
}

impl Script {
    /// A script whose reply has any form, so that no time is read from it.
    pub fn new(text: String) -> Self {
        Self::with_reply(text, false)
    }

    /// A script whose reply promises the server's time, in one of the two forms that
    /// [`call::time`] reads.
    pub fn timed(text: String) -> Self {
        Self::with_reply(text, true)
    }

    fn with_reply(text: String, is_timed: bool) -> Self {
        let sha = sha1_smol::Sha1::from(&text).digest().to_string();
        Self {
            text,
            sha,
            is_timed,
            known_on: AtomicU64::new(0),
            after_step: OnceLock::new(),
        }
    }

    /// The same script for a server whose clock went back: it moves values from the clock's future
    /// to now. Only these scripts check for such values, so that the usual ones do not pay for it.
    pub fn after_step(&self) -> &Arc<Self> {
        const FLAG: &str = "local went_back = ";
        self.after_step.get_or_init(|| {
            let text = self
                .text
                .replacen(&format!("{FLAG}false"), &format!("{FLAG}true"), 1);
            Arc::new(Self::with_reply(text, self.is_timed))
        })
    }

    /// The server's time in a reply, if the script promises one.
    pub fn time(&self, reply: &Value) -> Option<Nanos> {
        call::time(reply).filter(|_| self.is_timed)
    }
}

/// All scripts.
#[derive(Debug)]
pub struct Scripts {
    batches: [Arc<Script>; 8],
    leases: [Option<Arc<Script>>; 8],
    refunds: [Arc<Script>; 8],
    charges: [Option<Arc<Script>>; 8],
    pub joint: Arc<Script>,
    /// A joint decision that takes what fits.
    pub up_to: Arc<Script>,
    /// A decision about a tenant, with units that a node takes ahead.
    pub allot: Arc<Script>,
    /// A decision by the first of several limits that admits.
    pub any: Arc<Script>,
    /// A joint decision that is safe to repeat.
    pub once: Arc<Script>,
    /// A server's line at a key: its tickets, and the decision on the first of all.
    pub turn: Arc<Script>,
    /// Gives back or renews the permits of one holder.
    pub settle: Arc<Script>,
    /// A joint decision whose units are recorded.
    pub reserve: Arc<Script>,
    /// Records units that were taken before.
    pub reserve_taken: Arc<Script>,
    /// Corrects the units of a reservation.
    pub correct: Arc<Script>,
    /// Lists the reservations whose time is over.
    pub due: Arc<Script>,
    /// Takes out the oldest reservation of a key.
    pub oldest: Arc<Script>,
    /// Reads the text of a reservation.
    pub record: Arc<Script>,
    /// Forgets what a key has used.
    pub reset: Arc<Script>,
    /// Ends the block of a key by its rule.
    pub unblock: Arc<Script>,
    /// Changes what a tenant has used of the shares of a limit.
    pub share_change: Arc<Script>,
}

impl Scripts {
    /// Scripts that use the server's time.
    pub fn new() -> Self {
        Self::on_clock(include_str!("lua/clock.lua"))
    }

    /// Scripts that take the time as an extra argument. Only tests have them.
    #[cfg(feature = "servers")]
    pub fn on_manual_clock() -> Self {
        Self::on_clock(include_str!("lua/manual_clock.lua"))
    }

    fn on_clock(clock: &str) -> Self {
        let script = |text: String| Arc::new(Script::timed(text));
        let of = |kind: ScriptKind, rest: &str| script(format!("{clock}{}{rest}", functions(kind)));
        let batch = |kind| {
            let functions = functions(kind);
            script(match kind {
                ScriptKind::Log | ScriptKind::Permits => format!("{clock}{functions}{BATCH_LOG}"),
                _ => format!("{clock}{STATES}{}{functions}{BATCH}", quick(kind)),
            })
        };
        let lease = |kind: ScriptKind| {
            let rest = match (kind, kind.ahead()) {
                (ScriptKind::Log, _) => format!("{GIVE_BACK_LOG}{LEASE_LOG}"),
                (ScriptKind::LeakyBucket, _) | (_, None) => return None,
                (_, Some(ahead)) => {
                    format!(
                        "local room, alike, give_back, charge = (function()\n{ahead}end)()\n{LEASE}"
                    )
                }
            };
            Some(of(kind, &rest))
        };
        let refund = |kind: ScriptKind| match kind {
            ScriptKind::Log => of(kind, REFUND_LOG),
            ScriptKind::Permits => of(kind, REFUND_PERMITS),
            _ => {
                let refund = kind.refund();
                let change =
                    format!("local change = (function()\n{refund}end)()\nlocal charges = false\n");
                of(kind, &format!("{change}{CHANGE}"))
            }
        };
        let charge = |kind: ScriptKind| {
            if kind == ScriptKind::Log {
                return Some(of(kind, CHARGE_LOG));
            }
            let ahead = kind.ahead()?;
            let change = format!(
                "local _, _, _, change = (function()\n{ahead}end)()\nlocal charges = true\n"
            );
            Some(of(kind, &format!("{change}{CHANGE}")))
        };
        let several = |of_value: fn(ScriptKind) -> String| {
            let values: String = ScriptKind::VALUES.into_iter().map(of_value).collect();
            format!(
                "{clock}{VALUE}{SPAN}{ALGORITHMS}{values}makers.g = function()\n{LOG}end\n\
                 makers.p = function()\n{PERMITS}end\n"
            )
        };
        let deciding = several(algorithm);
        let deciding = format!(
            "{deciding}makers.b = function()\n{BLOCK}end\n\
             makers.q = function()\n{LINE}end\n\
             makers.o = function()\nlocal common\n\
             common, algorithms.h = (function()\n{SHARES}end)()\nreturn common end\n\
             makers.h = function() algorithm('o') return algorithms.h end\n\
             local wants_more\n"
        );
        let joint = format!("{deciding}local count = #KEYS\n{JOINT}{REPLY}");
        let up_to = format!("{deciding}{FITS}{UP_TO}{JOINT}{REPLY_UP_TO}");
        let allot = format!("{deciding}{FITS}{ALLOT}{JOINT}{REPLY_UP_TO}");
        let any = format!("{deciding}{FITS}{ANY}{JOINT}{REPLY_ANY}");
        let once = format!("{deciding}{ONCE}{JOINT}{KEPT_ANSWER}{KEEP_ANSWER}{REPLY}");
        let turn = format!("{deciding}{FITS}{TURN}{JOINT}{KEPT_ANSWER}{TURN_TAKEN}");
        let reserve = format!("{deciding}{RESERVE}{JOINT}{RECORD}{REPLY}");
        let correct = format!(
            "{}local log_of = algorithm('g')\n{GIVE_BACK_LOG}{CORRECT}",
            several(algorithm_ahead)
        );
        Self {
            batches: ScriptKind::ALL.map(batch),
            leases: ScriptKind::ALL.map(lease),
            refunds: ScriptKind::ALL.map(refund),
            charges: ScriptKind::ALL.map(charge),
            joint: script(joint),
            up_to: script(up_to),
            allot: script(allot),
            any: script(any),
            once: script(once),
            turn: script(turn),
            settle: of(ScriptKind::Permits, SETTLE),
            reserve: script(reserve),
            reserve_taken: script(format!("{clock}{RESERVE}{GIVEN}{RECORD}{REPLY_TAKEN}")),
            correct: script(correct),
            due: script(format!("{clock}{DUE}")),
            oldest: script(format!("{clock}{OLDEST}")),
            record: Arc::new(Script::new(
                "return redis.call('HGET', KEYS[1], 'p')".to_owned(),
            )),
            reset: Arc::new(Script::new(format!("{clock}{RESET}"))),
            unblock: Arc::new(Script::new(format!("{clock}{UNBLOCK}"))),
            share_change: script(format!(
                "{clock}local common, tenant, charge, refund, close = (function()\n{SHARES}end)()\n\
                 {SHARE_CHANGE}"
            )),
        }
    }

    /// The script that decides many requests of one limit.
    pub const fn batch(&self, kind: ScriptKind) -> &Arc<Script> {
        &self.batches[kind as usize]
    }

    /// The script for allotments and reports; `None` for the leaky bucket.
    pub const fn lease(&self, kind: ScriptKind) -> Option<&Arc<Script>> {
        self.leases[kind as usize].as_ref()
    }

    /// The script that refunds one key of a limit.
    pub const fn refund(&self, kind: ScriptKind) -> &Arc<Script> {
        &self.refunds[kind as usize]
    }

    /// The script that charges one key of a limit, whether the cost fits or not; `None` for
    /// permits.
    pub const fn charge(&self, kind: ScriptKind) -> Option<&Arc<Script>> {
        self.charges[kind as usize].as_ref()
    }
}

/// The functions of an algorithm, for scripts about one limit.
fn functions(kind: ScriptKind) -> String {
    let source = kind.source();
    match kind {
        ScriptKind::Log | ScriptKind::Permits => {
            format!("local log_of = (function()\n{source}end)()\n")
        }
        _ => format!(
            "{VALUE}{SPAN}local prepare, decide, adopt, weight = (function()\n{source}end)()\n"
        ),
    }
}

/// The short loop of a batch, if the kind has one.
fn quick(kind: ScriptKind) -> String {
    kind.quick().map_or_else(String::new, |(prepare, decide)| {
        QUICK
            .replacen("PREPARE\n", prepare, 1)
            .replacen("DECIDE\n", decide, 1)
    })
}

/// An algorithm that decides from a value, for `joint.lua`.
fn algorithm(kind: ScriptKind) -> String {
    let (source, letter) = (kind.source(), kind.letter());
    format!(
        "makers.{letter} = function() local prepare, decide, adopt = (function()\n{source}end)()\n\
         return {{prepare = prepare, decide = decide, adopt = adopt}} end\n"
    )
}

/// An algorithm that gives back to a value and charges it, for `correct.lua`.
fn algorithm_ahead(kind: ScriptKind) -> String {
    let (source, letter, ahead) = (
        kind.source(),
        kind.letter(),
        kind.ahead().unwrap_or_default(),
    );
    // A leaky bucket gives up the last start time at most.
    let (refund, back) = if kind == ScriptKind::LeakyBucket {
        (kind.refund(), "refund = refund")
    } else {
        ("", "give_back = give_back")
    };
    format!(
        "makers.{letter} = function()\n\
         local prepare, decide, adopt, weight = (function()\n{source}end)()\n\
         local _, _, give_back, charge = (function()\n{ahead}end)()\n\
         local refund = (function()\n{refund}end)()\n\
         return {{prepare = prepare, adopt = adopt, {back}, charge = charge}} end\n"
    )
}

#[cfg(all(test, feature = "servers"))]
mod tests {
    use tidegate_core::fair::Terms;
    use tidegate_core::lease::{Mode, Request};
    use tidegate_core::{Clock, Policy};
    use tidegate_limiter::SystemClock;
    use tidegate_redis_servers::Server;

    use super::*;

    const DAY: Nanos = Nanos::from_secs(86_400);

    /// A policy of each kind, in the order of [`ScriptKind::ALL`].
    fn plans() -> [Plan; 8] {
        [
            "fixed-window 9/1h",
            "fixed-window:burst=12 9/1h",
            "sliding-window 9/1h",
            "sliding-counter 9/1h",
            "token-bucket 9/1h",
            "leaky-bucket 9/1h",
            "sliding-log 9/1h",
            "concurrency:hold=1h 9",
        ]
        .map(|text| {
            let policy: Policy = text.parse().expect("the policy is well formed");
            Plan::new(policy).expect("the scripts can decide it")
        })
    }

    /// The connection to a server on which scripts run.
    struct Runs(redis::Connection);

    impl Runs {
        fn run(&mut self, script: &Script, keys: &[&str], arguments: &[Vec<u8>]) -> Value {
            call::command(script, true, keys, arguments)
                .query(&mut self.0)
                .unwrap_or_else(|error| panic!("{error}\n{}", script.text))
        }

        /// Runs a script whose reply promises a time.
        fn timed(&mut self, script: &Script, keys: &[&str], arguments: &[Vec<u8>]) -> Value {
            let before = SystemClock::new().now();
            let reply = self.run(script, keys, arguments);
            let time = script.time(&reply);
            let time = time.unwrap_or_else(|| panic!("no time in {reply:?}\n{}", script.text));
            // The same machine's clock, in whole microseconds.
            let apart = before.get().abs_diff(time.get());
            assert!(apart < DAY.get(), "{time:?} in {reply:?}\n{}", script.text);
            reply
        }

        /// Runs the scripts about the shares of tenants.
        fn shares(&mut self, plan: &Plan, joint: &Script, share_change: &Script) {
            let shared = plan.clone().with_shares();
            let of_tenant = shared.map(|plan| plan.of_tenant(b"a", Terms::new()));
            let plan = of_tenant.expect("the policy can be shared");
            for cost in [1, 1_000] {
                let arguments = call::joint_arguments([(&plan, cost)].into_iter(), true);
                self.timed(joint, &["shared", "common", "tenant"], &arguments);
            }
            for change in [
                call::ShareChange::Charge(1),
                call::ShareChange::Refund(1),
                call::ShareChange::Reset,
            ] {
                let arguments = call::share_change_arguments(&plan, change);
                let arguments = arguments.expect("the plan has a tenant");
                self.timed(share_change, &["common", "tenant"], &arguments);
            }
        }

        /// Runs a script whose reply has no time.
        fn without_time(&mut self, script: &Script, keys: &[&str], arguments: &[Vec<u8>]) -> Value {
            let reply = self.run(script, keys, arguments);
            assert_eq!(script.time(&reply), None, "{}", script.text);
            assert_eq!(script.after_step().time(&reply), None, "{}", script.text);
            reply
        }
    }

    /// A request of a lease.
    const ASKED: Request = Request {
        cost: 1,
        ahead: 2,
        spent: 1,
        back: None,
        sent: Nanos::ZERO,
    };

    #[test]
    fn a_time_is_read_only_from_replies_that_promise_one_and_each_of_those_has_it() {
        let server = Server::start(&[]);
        let client = redis::Client::open(server.address()).expect("the address is well formed");
        let mut runs = Runs(client.get_connection().expect("the server replies"));
        // Without `..`, so that a new script comes with its line here.
        let Scripts {
            batches,
            leases,
            refunds,
            charges,
            joint,
            up_to,
            allot,
            any,
            once,
            turn,
            settle,
            reserve,
            reserve_taken,
            correct,
            due,
            oldest,
            record,
            reset,
            unblock,
            share_change,
        } = Scripts::new();
        for (at, plan) in plans().iter().enumerate() {
            assert_eq!(plan.kind() as usize, at);
            let names = [format!("fresh-{at}"), format!("used-{at}")];
            let keys = names.each_ref().map(|name| &**name);
            let take = call::Batch {
                keys: vec![Vec::new()],
                costs: vec![2],
                counts: vec![1],
            };
            let lease = call::lease_arguments(plan, Mode::Leased, [ASKED].iter(), [1].into_iter());
            for key in keys {
                // The second time round the key has a value.
                for _ in 0..2 {
                    runs.timed(&refunds[at], &[key], &call::refund_arguments(plan, 1));
                    if let Some(charge) = &charges[at] {
                        runs.timed(charge, &[key], &call::charge_arguments(plan, 1));
                    }
                    if let Some(script) = &leases[at] {
                        runs.timed(script, &[key], &lease);
                        runs.timed(script.after_step(), &[key], &lease);
                    }
                    runs.timed(&batches[at], &[key], &take.arguments(plan));
                }
                // A denial, and a key of another type.
                runs.timed(&batches[at], &[key], &take.arguments(plan));
            }
        }
        let (hold, holder) = (Nanos::from_secs(60), SystemClock::new().now());
        runs.timed(
            &settle,
            &["used-7"],
            &call::settle_arguments(hold, false, holder),
        );
        let keys: Vec<String> = (0..8).map(|at| format!("used-{at}")).collect();
        let mut keys: Vec<&str> = keys.iter().map(|key| &**key).collect();
        let plans = plans();
        let all = || plans.iter().map(|plan| (plan, 1));
        runs.timed(&joint, &keys, &call::joint_arguments(all(), true));
        runs.timed(&joint, &keys, &call::joint_arguments(all(), false));
        for script in [&up_to, &any] {
            let mut reply = runs.timed(script, &keys, &call::joint_arguments(all(), true));
            call::pop_number(&mut reply).expect("a number is behind the reply");
        }
        let arguments = call::allot_arguments(&plans[0], &ASKED);
        let mut reply = runs.timed(&allot, &keys[..1], &arguments);
        call::pop_number(&mut reply).expect("the units are behind the reply");
        let mut asked = keys.clone();
        asked.push("answer");
        let arguments = |keep| {
            let parts = plans.iter().map(|plan| (plan, 1, false));
            call::once_arguments(parts, keep)
        };
        let none = runs.timed(&once, &asked, &arguments(call::Keep::Nothing));
        assert_eq!(call::word_bytes(&none), Some(&b""[..]));
        let arguments = arguments(call::Keep::All);
        let first = runs.timed(&once, &asked, &arguments);
        assert!(call::word_bytes(&first).is_none());
        let again = runs.timed(&once, &asked, &arguments);
        let kept = call::word_bytes(&again).and_then(call::kept);
        assert_eq!(kept.map(|kept| kept.parts.len()), Some(plans.len()));
        let lines = [plans[0].clone().with_line()];
        let one = || lines.iter().map(|plan| (plan, 1));
        runs.timed(
            &joint,
            &["used-0", "line"],
            &call::joint_arguments(one(), true),
        );
        let ticket = || call::GroupTicket {
            number: 0,
            priority: tidegate_core::Priority::DEFAULT,
            costs: [1].into(),
        };
        let turn_of = |number, joins, is_all| {
            let turn = call::Turn {
                id: 1,
                number,
                joins,
                is_all,
                ..call::Turn::default()
            };
            call::turn_arguments(lines.iter().map(|plan| (plan, 0)), &turn, true)
        };
        // Lost, an empty line, the first ticket, and the answer that was kept.
        let line_keys = ["fresh-line", "line", "last-answer"];
        for (number, joins, is_all) in [
            (1, Vec::new(), false),
            (2, Vec::new(), true),
            (3, vec![ticket()], true),
            (3, vec![ticket()], true),
        ] {
            runs.timed(&turn, &line_keys, &turn_of(number, joins, is_all));
        }
        // The text of a reservation, which a former version took for a time.
        let text = b"[\"a text of at least eight bytes\"]";
        keys = vec!["fresh-reserved", "record", "open", "by-age"];
        let arguments = |text: &[u8], most| {
            let parts = plans[..1].iter().map(|plan| (plan, 1, false));
            call::reserve_arguments(parts, (text, hold, most), "01")
        };
        let word = |reply: &Value| call::word(reply).map(str::to_owned);
        let unknown = runs.timed(&reserve, &keys, &arguments(b"", 0));
        assert_eq!(word(&unknown).as_deref(), Some("unknown"));
        let full = runs.timed(&reserve, &keys, &arguments(text, 0));
        assert_eq!(word(&full).as_deref(), Some("full"));
        runs.timed(&reserve, &keys, &arguments(text, 9));
        let repeated = runs.timed(&reserve, &keys, &arguments(text, 9));
        assert_eq!(word(&repeated).as_deref(), Some("repeated"));
        runs.timed(&reserve, &keys, &arguments(b"", 0));
        for (most, told) in [(1, "full"), (9, "kept"), (9, "repeated")] {
            let taken = [(1, hold, [0; 8])];
            let arguments = call::reserve_taken_arguments(&taken, (text, hold, most), "02");
            let keys = ["other-record", "open", "open"];
            let reply = runs.timed(&reserve_taken, &keys, &arguments);
            assert_eq!(word(&reply).as_deref(), Some(told));
        }
        runs.timed(&due, &["open"], &[]);
        runs.timed(&oldest, &["by-age"], &[]);
        runs.timed(&oldest, &["by-age"], &[]);
        let found = runs.without_time(&record, &["record"], &[]);
        assert_eq!(found, Value::BulkString(text.to_vec()));
        assert!(call::time(&found).is_some(), "it could be taken for a time");
        runs.without_time(&record, &["none"], &[]);
        keys.pop();
        keys.insert(1, "reset-key");
        for expires in [true, false, false] {
            let parts = plans[..1].iter().map(|plan| (0, plan, 0, false));
            runs.timed(
                &correct,
                &keys,
                &call::correct_arguments(parts, expires, "01"),
            );
        }
        runs.timed(&due, &["open"], &[]);
        runs.without_time(&reset, &["used-0", "reset-key"], &[]);
        runs.shares(&plans[0], &joint, &share_change);
        let policy: Policy = "fixed-window:block-for=1h 1/1h"
            .parse()
            .expect("the policy is well formed");
        let blocking = [Plan::new(policy).expect("the scripts can decide it")];
        let arguments = call::joint_arguments(blocking.iter().map(|plan| (plan, 2)), true);
        runs.timed(&joint, &["blocking", "block"], &arguments);
        for was_blocked in [1, 0] {
            let reply = runs.without_time(&unblock, &["block"], &[]);
            assert_eq!(reply, Value::Int(was_blocked));
        }
    }
}
