//! Random requests with ids at two servers that share a store, with answers that get lost, against
//! an oracle in which each id counts once.
#![cfg(feature = "servers")]

use crate::harness;

use std::collections::{HashMap, HashSet};

use harness::{Resp, Running, frame, on_store};
use serde_json::{Value, json};
use tidegate_redis_servers::{Proxy, Reply, Server, eventually};

const RULES: &str = "
limits:
  - {name: window, limit: 20/300h, algorithm: fixed-window, first_hit: true, on_error: closed}
  - {name: log, limit: 20/300h, algorithm: sliding-log, on_error: closed}
  - {name: leased, limit: 20/300h, algorithm: fixed-window, first_hit: true, sharing: leased, on_error: closed}
  - {name: lax, limit: 20/300h, algorithm: sliding-log, on_error: open}
";
const LIMIT: u64 = 20;
/// The limits of most requests. The others are about `lax`, while the store is away.
const NAMES: [&str; 3] = ["window", "log", "leased"];
const KEYS: u64 = 4;
/// After this many requests the ids are forgotten, and the requests have other keys. On a slow
/// machine, too, that takes less than the minute for which the store keeps an answer.
const GENERATION: usize = 300;

/// Lets all ids expire.
const FORGET: &str =
    "for _, key in ipairs(redis.call('KEYS', 'tidegate:once:*')) do redis.call('DEL', key) end";

/// A request: its id, the limits, the key, the cost, and whether it is sent over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asked {
    id: String,
    limits: Vec<&'static str>,
    key: String,
    cost: u64,
    over_http: bool,
}

impl Asked {
    fn command(&self) -> String {
        let Self { id, key, cost, .. } = self;
        format!("ACQUIRE {} {key} {cost} ID {id}", self.limits[0])
    }

    fn body(&self) -> String {
        let Self { id, key, cost, .. } = self;
        let part = |limit: &&str| json!({"limit": limit, "key": key, "cost": cost});
        let mut body = match &self.limits[..] {
            [limit] => part(limit),
            several => json!({"all": several.iter().map(part).collect::<Vec<_>>()}),
        };
        body["id"] = id.as_str().into();
        body.to_string()
    }

    /// Sends the request on a new connection. The reply is not read.
    fn send(&self, server: &Running) -> Late {
        let mut client = Resp::connect(server.resp);
        client.send(&frame(&self.command()));
        Late(client)
    }

    fn ask(&self, server: &Running) -> String {
        if !self.over_http {
            return server.resp(&self.command());
        }
        let response = server.post("/v1/acquire", &self.body());
        assert!(
            [200, 429].contains(&response.status),
            "{self:?}: {response:?}"
        );
        format!("{} {}", response.status, response.body)
    }

    /// Whether an answer admits.
    fn is_admitted(&self, answer: &str) -> bool {
        let [yes, no] = if self.over_http {
            ["200 ", "429 "]
        } else {
            ["[0 ", "[1 "]
        };
        assert!(
            answer.starts_with(yes) || answer.starts_with(no),
            "{self:?}: {answer}"
        );
        answer.starts_with(yes)
    }

    /// What an answer about one limit says is left.
    fn left(&self, answer: &str) -> Option<u64> {
        if self.limits.len() > 1 {
            return None;
        }
        if self.over_http {
            let body: Value = serde_json::from_str(&answer[4..]).unwrap();
            return body["remaining"].as_u64();
        }
        answer.split(' ').nth(2)?.parse().ok()
    }
}

/// A client that has not read its reply.
struct Late(Resp);

/// The first answers, what they took, and what operators ordered.
#[derive(Default)]
struct Oracle {
    /// The first answer that counts, and the orders about the request's limits until then.
    first: HashMap<Asked, (String, u64)>,
    used: HashMap<(&'static str, String), u64>,
    quotas: HashMap<(&'static str, String), u64>,
    blocked: HashSet<(&'static str, String)>,
    /// How many overrides each key has seen: they change what is left of a limit, and so the text of a
    /// first answer, which stays admitted or denied.
    changes: HashMap<String, u64>,
    repeats: u32,
    denied: u32,
    blocked_repeats: u32,
}

impl Oracle {
    fn of(name: &'static str, key: &str) -> (&'static str, String) {
        (name, key.to_owned())
    }

    /// Checks an answer of a server that reaches the store.
    fn check(&mut self, asked: &Asked, answer: &str, step: usize) {
        let admitted = asked.is_admitted(answer);
        let changes = self.changes.get(&asked.key).copied().unwrap_or(0);
        let all: Vec<_> = asked
            .limits
            .iter()
            .map(|name| Self::of(name, &asked.key))
            .collect();
        let is_blocked = all.iter().any(|one| self.blocked.contains(one));
        if let Some((first, before)) = self.first.get(asked) {
            self.repeats += 1;
            self.blocked_repeats += u32::from(is_blocked);
            if changes == *before {
                assert_eq!(answer, first, "step {step}: {asked:?}");
            }
            assert_eq!(
                admitted,
                asked.is_admitted(first),
                "step {step}: {asked:?}: {answer}, and first {first}"
            );
            return;
        }
        if is_blocked {
            // It takes nothing, and may be admitted once the block has ended.
            assert!(!admitted, "step {step}: {asked:?}: {answer}");
            return;
        }
        let limit = |one| self.quotas.get(one).copied().unwrap_or(LIMIT);
        let used = |one| self.used.get(one).copied().unwrap_or(0);
        let fits = all.iter().all(|one| used(one) + asked.cost <= limit(one));
        assert_eq!(admitted, fits, "step {step}: {asked:?}: {answer}");
        if fits {
            for one in &all {
                *self.used.entry(one.clone()).or_default() += asked.cost;
            }
        } else {
            self.denied += 1;
        }
        let used = |one| self.used.get(one).copied().unwrap_or(0);
        if let Some(left) = asked.left(answer) {
            let expected = limit(&all[0]).saturating_sub(used(&all[0]));
            assert_eq!(left, expected, "step {step}: {asked:?}: {answer}");
        }
        self.first
            .insert(asked.clone(), (answer.to_owned(), changes));
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % most
    }
}

fn ready(server: &Running) -> bool {
    server.get("/readyz").json()["status"] == "ready"
}

fn kept(store: &Server) -> usize {
    match store.ask(&["KEYS", "tidegate:once:*"]) {
        Reply::Array(keys) => keys.len(),
        other => panic!("{other:?}"),
    }
}

/// Orders something of one server, and waits until both follow it, which their replies to a look show.
fn order(
    servers: [&Running; 2],
    at: usize,
    command: &str,
    looks: &str,
    follows: impl Fn(&str) -> bool,
) {
    let reply = servers[at].resp(command);
    assert!(!reply.starts_with("ERR"), "{command}: {reply}");
    for server in servers {
        eventually(command, || follows(&server.resp(looks)));
    }
}

#[test]
#[allow(clippy::too_many_lines, reason = "one loop over the kinds of steps")]
fn each_id_counts_once_at_two_servers_in_random_steps() {
    let is_long = std::env::var_os("TIDEGATE_LONG").is_some();
    let steps = if is_long { 100_000 } else { 3_000 };
    // How many steps lie between two disturbances of a kind, which take a second or so.
    let rare = steps as u64 / if is_long { 100 } else { 10 };
    let store = Server::start(&[]);
    let proxy = Proxy::before(store.port());
    // Only the way from the first server to the store is disturbed.
    let one = on_store("random-1", &proxy.address(), RULES);
    let two = on_store("random-2", &store.address(), RULES);
    let servers = [&one, &two];
    let mut random = Random(0x5EED);
    let mut oracle = Oracle::default();
    let mut recent: Vec<Asked> = Vec::new();
    let mut late: Vec<(Asked, Late)> = Vec::new();
    let mut disturbed = [0_u32; 4];
    for step in 0..steps {
        let generation = step / GENERATION;
        if step % GENERATION == 0 {
            // What is still on its way has the first answer, too. Then all ids may be forgotten.
            for (asked, Late(mut client)) in late.drain(..) {
                oracle.check(&asked, &client.reply(), step);
            }
            store.ask(&["EVAL", FORGET, "0"]);
            oracle.first.clear();
            recent.clear();
        }
        let key = |number: u64| format!("g{generation}-{number}");
        if random.below(rare) == 0 {
            let (name, key) = (NAMES[random.below(3) as usize], key(random.below(KEYS)));
            let (of, at) = ((name, key.clone()), random.below(2) as usize);
            let looks = format!("PEEK {name} {key} 0 REASON");
            if oracle.blocked.remove(&of) {
                order(
                    servers,
                    at,
                    &format!("UNBLOCK {name} {key}"),
                    &looks,
                    |reply| !reply.ends_with(" blocked]"),
                );
            } else {
                order(
                    servers,
                    at,
                    &format!("BLOCK {name} {key}"),
                    &looks,
                    |reply| reply.ends_with(" blocked]"),
                );
                oracle.blocked.insert(of);
            }
            disturbed[0] += 1;
        }
        if random.below(rare) == 0 {
            let (name, key) = (NAMES[random.below(2) as usize], key(random.below(KEYS)));
            let (of, at) = ((name, key.clone()), random.below(2) as usize);
            let looks = format!("PEEK {name} {key} 0 REASON");
            if !oracle.blocked.contains(&of) {
                let limit = 5 + random.below(30);
                let command = format!("OVERRIDE {name} {key} {limit}/300h");
                order(servers, at, &command, &looks, |reply| {
                    reply.split(' ').nth(1) == Some(&limit.to_string())
                });
                oracle.quotas.insert(of, limit);
                *oracle.changes.entry(key).or_default() += 1;
                disturbed[1] += 1;
            }
        }
        let is_new = recent.is_empty() || random.below(3) > 0;
        let asked = if is_new {
            let over_http = random.below(2) == 0;
            let limits = if over_http && random.below(3) == 0 {
                vec!["window", "log"]
            } else {
                vec![NAMES[random.below(3) as usize]]
            };
            let asked = Asked {
                // Some clients use one id for several questions.
                id: match random.below(10) {
                    0 => format!("shared-{over_http}"),
                    _ => format!("id-{step}"),
                },
                limits,
                key: key(random.below(KEYS)),
                cost: random.below(4),
                over_http,
            };
            recent.push(asked.clone());
            asked
        } else {
            recent[random.below(recent.len() as u64) as usize].clone()
        };
        let is_alone = !asked.over_http;
        let is_known = oracle.first.contains_key(&asked);
        let blocked = |oracle: &Oracle| {
            asked
                .limits
                .iter()
                .any(|name| oracle.blocked.contains(&Oracle::of(name, &asked.key)))
        };
        let decided = is_known || !blocked(&oracle);
        if is_alone && decided && random.below(10) == 0 {
            // The answer is lost, and the client asks again on another connection, here or there.
            late.push((asked.clone(), asked.send(servers[random.below(2) as usize])));
        } else if is_alone && !is_known && !blocked(&oracle) && random.below(rare / 4) == 0 {
            // The store decides, and its reply to the server is lost; the client goes away.
            let before = kept(&store);
            proxy.silence();
            let client = asked.send(&one);
            eventually("the store has decided", || kept(&store) == before + 1);
            drop(client);
            proxy.cut();
            eventually("the store is reached again", || ready(&one));
            disturbed[2] += 1;
        } else if random.below(rare) == 0 {
            // The first server has lost the store, and decides alone.
            proxy.refuse(true);
            proxy.cut();
            eventually("the store is missed", || !ready(&one));
            let lax = Asked {
                id: format!("lax-{step}"),
                limits: vec!["lax"],
                key: format!("g{step}"),
                cost: LIMIT,
                over_http: random.below(2) == 0,
            };
            let first = lax.ask(&one);
            assert!(lax.is_admitted(&first), "{first}");
            assert_eq!(lax.ask(&one), first, "it is remembered here");
            let lost = Asked {
                id: format!("lost-{step}"),
                key: key(random.below(KEYS)),
                ..asked.clone()
            };
            for _ in 0..2 {
                let denied = lost.ask(&one);
                assert!(!lost.is_admitted(&denied), "step {step}: {denied}");
            }
            // The client goes to the other server, whose answer is the first one then.
            oracle.check(&lost, &lost.ask(&two), step);
            proxy.refuse(false);
            eventually("the store is reached again", || ready(&one));
            assert_eq!(lax.ask(&one), first, "it is remembered with the store");
            for server in servers {
                oracle.check(&lost, &lost.ask(server), step);
            }
            disturbed[3] += 1;
        }
        let answer = asked.ask(servers[random.below(2) as usize]);
        oracle.check(&asked, &answer, step);
        if step % 50 == 0 {
            for name in ["window", "log"] {
                let of = Oracle::of(name, &asked.key);
                if oracle.blocked.contains(&of) {
                    continue;
                }
                let used = oracle.used.get(&of).copied().unwrap_or(0);
                let limit = oracle.quotas.get(&of).copied().unwrap_or(LIMIT);
                let looked = two.resp(&format!("PEEK {name} {} 0", asked.key));
                let left = limit.saturating_sub(used).to_string();
                assert_eq!(
                    looked.split(' ').nth(2),
                    Some(&*left),
                    "step {step}: {of:?}"
                );
            }
        }
    }
    let Oracle {
        repeats,
        denied,
        blocked_repeats,
        ..
    } = oracle;
    assert!(
        repeats > steps as u32 / 5 && denied > 100 && blocked_repeats > 0,
        "{repeats} repeats, {denied} denied, {blocked_repeats} of blocked keys"
    );
    assert!(disturbed.iter().all(|&times| times > 2), "{disturbed:?}");
}
