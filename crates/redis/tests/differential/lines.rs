//! Lines, against a naive oracle: a list of tickets for each key, and when each group of requests at
//! a server asked last. A group waits for one key, or for two together.

use std::collections::{BTreeMap, HashSet};

use call::{Front, Turn, TurnReply};
use tidegate_core::Priority;

use super::*;

/// How long the tickets of a group stay, in microseconds.
const STAY: u64 = 5_000_000;
const SERVERS: u64 = 3;

/// A policy's index, and one of its keys.
type Line = (usize, u64);
/// A ticket: the group's number, its number there, and the cost.
type Ticket = (u64, u64, u64);
/// How many microseconds later a caller may come for each level, to overtake another one.
const LEVEL: u64 = 10_000_000;

#[derive(Default)]
struct Naive {
    state: Vec<u64>,
    last: Nanos,
    tickets: Vec<Ticket>,
    /// When each came, and its level.
    came: HashMap<Ticket, (u64, u64)>,
    /// When the last came. It does not go back while there are others.
    arrival: u64,
    /// Until when the tickets of each group stay.
    ends: HashMap<u64, u64>,
}

impl Naive {
    /// What has expired does not come back if the clock goes back.
    fn expire(&mut self, now: u64) {
        self.ends.retain(|_, end| *end > now);
        let ends = &self.ends;
        self.tickets.retain(|ticket| ends.contains_key(&ticket.0));
    }

    /// The place of a caller that comes now: in front of those of a lower level who came less than
    /// ten seconds before for each level between them.
    fn place(&self, arrival: u64, level: u64) -> usize {
        let passes = |ticket: &Ticket| {
            let (came, other) = self.came[ticket];
            level > other && arrival - came < LEVEL * (level - other)
        };
        let place = self.tickets.iter().position(passes);
        place.unwrap_or(self.tickets.len())
    }

    /// Forgets all about a line without tickets, as the store does when it is written.
    fn close(&mut self) {
        if self.tickets.is_empty() {
            self.ends.clear();
            self.came.clear();
            self.arrival = 0;
        }
    }

    fn cost(&self) -> u64 {
        self.tickets.iter().map(|ticket| ticket.2).sum()
    }
}

/// What a server knows of a group.
#[derive(Default)]
struct Asker {
    id: u64,
    next: u64,
    calls: u64,
    /// Those that it believes to be in line.
    tickets: Vec<call::GroupTicket>,
    /// All must be sent again.
    is_lost: bool,
    /// The last call, and the first tickets if it took anything.
    last: Option<(Turn, Option<Vec<Front>>)>,
}

struct Model {
    policies: Vec<Policy>,
    plans: Vec<Plan>,
    lines: HashMap<Line, Naive>,
    /// By the server and the lines.
    askers: BTreeMap<(u64, Vec<Line>), Asker>,
    groups: u64,
    served: usize,
    together: usize,
    overtaken: usize,
    repeated: usize,
    lost: usize,
    /// Tickets that went in front of others, and those that stayed behind a lower level that was
    /// too long there.
    passed: usize,
    stayed: usize,
}

fn policies() -> Vec<Policy> {
    vec![
        Policy::fixed_window(quota("6/1s")),
        FixedWindow::new(quota("6/1s")).first_hit().into(),
        Policy::sliding_window(quota("6/1s")),
        Policy::sliding_counter(quota("6/1s")),
        Policy::token_bucket(quota("7/1s")),
        Policy::leaky_bucket(quota("6/1s")),
        Policy::sliding_log(quota("6/1s")).expect("the log is short"),
        Policy::sliding_log(quota("200/1s")).expect("the log is short"),
        Concurrency::new(5)
            .hold(Duration::from_secs(1))
            .expect("the hold is short")
            .into(),
        calendar("fixed-window:burst=9 6/1s"),
        calendar("token-bucket:oversize-wait=1s 7/1s"),
        calendar("fixed-window:burst=9:oversize-wait=2s 6/1s"),
    ]
}

fn keys((at, key): Line) -> [Vec<u8>; 2] {
    [format!("{at}:{key}"), format!("line:{at}:{key}")].map(String::into_bytes)
}

impl Model {
    /// A server adds and removes tickets, and takes the first one if it is its own and fits.
    fn turn(&mut self, bench: &mut Bench, server: u64, group: Vec<Line>) {
        let groups = &mut self.groups;
        let mut fresh = || {
            *groups += 1;
            *groups
        };
        let asker = self.askers.entry((server, group.clone())).or_default();
        if asker.id == 0 {
            asker.id = fresh();
        }
        let mut turn = Turn {
            id: asker.id,
            ..Turn::default()
        };
        let mut again = None;
        if bench.random.below(8) == 0
            && let Some((last, fronts)) = &asker.last
            // One that took nothing would be decided anew.
            && fronts.is_some()
        {
            (turn, again) = (last.clone(), fronts.clone());
            self.repeated += 1;
        } else {
            let room = 4_u64.saturating_sub(asker.tickets.len() as u64);
            for _ in 0..bench.random.below(3).min(room) {
                let cost = |line: &Line| {
                    let most = self.policies[line.0].limit().min(9);
                    1 + bench.random.below(most)
                };
                let costs = group.iter().map(cost).collect();
                let level = bench.random.below(10);
                turn.joins.push(call::GroupTicket {
                    number: asker.next,
                    priority: Priority::try_from(level).expect("it is a level"),
                    costs,
                });
                asker.next += 1;
            }
            turn.is_all = asker.is_lost || asker.tickets.is_empty();
            if asker.is_lost {
                turn.joins.splice(0..0, asker.tickets.iter().cloned());
            } else if !asker.tickets.is_empty() && bench.random.below(4) == 0 {
                let left = bench.random.below(asker.tickets.len() as u64) as usize;
                turn.leaves.push(asker.tickets.remove(left));
            }
        }
        let takes = again.is_some() || bench.random.below(8) > 0;
        self.send(bench, (server, group), turn, takes, again);
    }

    /// The same with a call that is known.
    fn send(
        &mut self,
        bench: &mut Bench,
        (server, group): (u64, Vec<Line>),
        mut turn: Turn,
        takes: bool,
        again: Option<Vec<Front>>,
    ) {
        let what = format!("{group:?}, server {server} at {}: {turn:?}", bench.now);
        let (policies, plans) = (&self.policies, &self.plans);
        let asker = self.askers.entry((server, group.clone())).or_default();
        if again.is_none() {
            asker.calls += 1;
            turn.number = asker.calls;
        }
        let limits = group.iter().enumerate();
        let arguments =
            call::turn_arguments(limits.map(|(at, line)| (&plans[line.0], at)), &turn, takes);
        let asked = group.iter().map(|line| keys(*line)[0].clone());
        let lines = group.iter().map(|line| keys(*line)[1].clone());
        let answer = format!("answer:{}", turn.id).into_bytes();
        let asked: Vec<_> = asked.chain(lines).chain([answer]).collect();
        let script = std::sync::Arc::clone(&bench.scripts.turn);
        let reply = bench.reply(&script, &asked, &arguments);
        let number = turn.number;
        let reply = call::turn_reply(reply, number, group.len(), group.len())
            .expect("the reply is well formed");
        let micros = bench.now;
        if let Some(first) = again {
            assert!(
                matches!(&reply, TurnReply::Fronts(fronts, ..) if *fronts == first),
                "{what}: {reply:?}, not {first:?}"
            );
            return;
        }
        for line in &group {
            let naive = self.lines.entry(*line).or_default();
            naive.state.resize(policies[line.0].words(), 0);
            naive.expire(micros);
            if !turn.is_all && !naive.ends.contains_key(&turn.id) {
                assert!(matches!(reply, TurnReply::Lost), "{what}: {reply:?}");
                asker.is_lost = true;
                asker.tickets.extend(turn.joins);
                self.groups += 1;
                asker.id = self.groups;
                asker.last = None;
                self.lost += 1;
                return;
            }
        }
        if asker.is_lost {
            asker.tickets.clear();
        }
        asker.is_lost = false;
        asker.tickets.extend(turn.joins.iter().cloned());
        let mut expected = Vec::new();
        // A ticket comes after all others in each of its lines, at one time.
        let last = group.iter().map(|line| self.lines[line].arrival).max();
        let last = last.unwrap_or_default();
        for (at, line) in group.iter().enumerate() {
            let naive = self.lines.get_mut(line).expect("it was made above");
            naive.ends.insert(turn.id, micros + STAY);
            let ticket = |ticket: &call::GroupTicket| (turn.id, ticket.number, ticket.costs[at]);
            let mut arrival = last;
            for joins in &turn.joins {
                arrival = micros.max(arrival + 1);
                let (level, joins) = (joins.priority.level().into(), ticket(joins));
                let place = naive.place(arrival, level);
                let overtaken = naive.tickets[place..].len();
                self.passed += usize::from(overtaken > 0);
                let is_lower = |other: &Ticket| naive.came[other].1 < level;
                self.stayed += usize::from(naive.tickets[..place].iter().any(is_lower));
                naive.tickets.insert(place, joins);
                naive.came.insert(joins, (arrival, level));
                naive.arrival = arrival;
            }
            let leaves: HashSet<_> = turn.leaves.iter().map(ticket).collect();
            naive.tickets.retain(|ticket| !leaves.contains(ticket));
            naive.close();
            let mine = naive.tickets.iter().position(|ticket| ticket.0 == turn.id);
            let ahead = mine.map_or(64, |at| at + 1).min(64);
            let ahead = naive.tickets.iter().take(ahead);
            expected.push(naive.tickets.first().map(|&(owner, number, cost)| Front {
                is_own: owner == turn.id,
                is_taken: false,
                number,
                cost,
                ahead: ahead.map(|ticket| ticket.2).sum(),
                tickets: naive.tickets.len() as u64,
            }));
        }
        asker.last = Some((turn, None));
        let Some(mut expected) = expected.into_iter().collect::<Option<Vec<_>>>() else {
            assert!(matches!(reply, TurnReply::Empty), "{what}: {reply:?}");
            return;
        };
        let TurnReply::Fronts(fronts, now, values) = reply else {
            panic!("{what}: {reply:?}");
        };
        let peek = |(line, front): (&Line, &Front)| {
            let policy = &policies[line.0];
            policy.peek(&self.lines[line].state, now, front.cost)
        };
        let own: Vec<_> = group.iter().zip(&expected).map(peek).collect();
        let is_first = expected.iter().all(|front| front.is_own);
        let is_taken = takes && is_first && own.iter().all(Decision::is_allowed);
        for front in &mut expected {
            front.is_taken = is_taken;
        }
        assert_eq!(fronts, expected, "{what}");
        let plans_of = group.iter().map(|line| &plans[line.0]);
        let found = call::found_in_turn(plans_of, values).expect("the value is a state");
        for ((line, front), (found, own)) in group.iter().zip(&fronts).zip(found.iter().zip(&own)) {
            let (told, _) = plans[line.0]
                .decision_on(found, now, (front.cost, is_taken))
                .expect("the value is a state");
            assert!(
                same(&policies[line.0], front.cost, &told, own),
                "{what}: {told:?}, not {own:?}"
            );
        }
        if !is_taken {
            return;
        }
        for (line, front) in group.iter().zip(&fronts) {
            let naive = self.lines.get_mut(line).expect("it was made above");
            let taken = moment(&policies[line.0], &mut naive.last, now);
            policies[line.0].record(&mut naive.state, taken, front.cost);
            naive.tickets.remove(0);
            naive.close();
        }
        let number = fronts[0].number;
        asker.tickets.retain(|ticket| ticket.number != number);
        asker.last = asker.last.take().map(|(turn, _)| (turn, Some(fronts)));
        self.served += 1;
        self.together += usize::from(group.len() > 1);
    }

    /// All servers ask in turn until nobody waits: no ticket may wait for one that waits for it.
    fn serve_all(&mut self, bench: &mut Bench) {
        for _ in 0..1_000 {
            let groups: Vec<_> = self.askers.keys().cloned().collect();
            let mut waiting = 0;
            for (server, group) in groups {
                let asker = &self.askers[&(server, group.clone())];
                if asker.tickets.is_empty() {
                    continue;
                }
                waiting += 1;
                let turn = Turn {
                    id: asker.id,
                    joins: if asker.is_lost {
                        asker.tickets.clone()
                    } else {
                        Vec::new()
                    },
                    is_all: asker.is_lost,
                    ..Turn::default()
                };
                self.send(bench, (server, group), turn, true, None);
            }
            if waiting == 0 {
                return;
            }
            bench.set(bench.now + 250_000);
        }
        panic!("somebody waits for ever");
    }

    /// A request that does not wait.
    fn ask(&mut self, bench: &mut Bench, at: usize, key: u64) {
        let (policy, mut plan) = (self.policies[at], self.plans[at].clone());
        let level = bench.random.below(10);
        // It looks from the place that it is going to have.
        let joins = bench.random.below(3) == 0;
        if joins {
            let priority = Priority::try_from(level).expect("it is a level");
            plan = plan.joining(priority);
        }
        let plan = &plan;
        let naive = self.lines.entry((at, key)).or_default();
        naive.state.resize(policy.words(), 0);
        let (cost, takes) = (
            bench.cost(policy.limit()),
            !joins && bench.random.below(4) > 0,
        );
        let arguments = call::joint_arguments(std::iter::once((plan, cost)), takes);
        let script = std::sync::Arc::clone(&bench.scripts.joint);
        let (now, found) = bench.call(&script, &keys((at, key)), &arguments);
        let found = call::found(std::iter::once(plan), found).expect("the value is a state");
        naive.expire(bench.now);
        let line = found[0].line.expect("the limit has a line");
        let ahead = if joins {
            let place = naive.place(bench.now.max(naive.arrival + 1), level);
            let is_last = place == naive.tickets.len();
            let ahead = &naive.tickets[..if is_last { place } else { place.min(64) }];
            ahead.iter().map(|ticket| ticket.2).sum()
        } else {
            naive.cost()
        };
        assert_eq!(
            (line.tickets, line.cost),
            (naive.tickets.len() as u64, ahead)
        );
        let own = policy.peek(&naive.state, now, cost);
        let (told, _) = plan
            .decision_on(&found[0], now, (cost, takes))
            .expect("the value is a state");
        let what = format!("{policy} {key}, {cost} at {}: {told:?}, {own:?}", bench.now);
        let waits = cost > 0 && line.tickets > 0;
        assert_eq!(told.is_allowed(), own.is_allowed() && !waits, "{what}");
        if waits && !own.exceeds_limit() {
            // All in front come first.
            assert!(told.retry_after() >= own.retry_after(), "{what}");
            assert!(told.retry_after() > Some(Duration::ZERO), "{what}");
            self.overtaken += usize::from(own.is_allowed());
        } else if !waits {
            assert!(same(&policy, cost, &told, &own), "{what}");
        }
        if told.is_allowed() && takes && cost > 0 {
            let taken = moment(&policy, &mut naive.last, now);
            policy.record(&mut naive.state, taken, cost);
        }
    }
}

#[test]
fn the_first_of_a_priority_to_come_at_any_server_is_the_first_to_be_served() {
    let mut bench = Bench::new(61);
    let plan = |policy: &Policy| Plan::new(*policy).expect("it can be shared").with_line();
    let mut model = Model {
        plans: policies().iter().map(plan).collect(),
        policies: policies(),
        lines: HashMap::new(),
        askers: BTreeMap::new(),
        groups: 0,
        served: 0,
        together: 0,
        overtaken: 0,
        repeated: 0,
        lost: 0,
        passed: 0,
        stayed: 0,
    };
    let steps = if std::env::var_os("TIDEGATE_LONG").is_some() {
        100_000
    } else {
        least_steps()
    };
    for _ in 0..steps {
        match bench.random.below(400) {
            0 => bench.set(bench.now + STAY),
            _ => bench.move_time(1_000_000),
        }
        let at = bench.random.below(model.policies.len() as u64) as usize;
        let key = bench.random.below(2);
        if bench.random.below(5) == 0 {
            model.ask(&mut bench, at, key);
        } else {
            let mut group = vec![(at, key)];
            // A few pairs, so that they come again.
            if at.is_multiple_of(2) && bench.random.below(2) == 0 {
                group.push(((at + 3) % model.policies.len(), 1 - key));
                if bench.random.below(2) == 0 {
                    group.reverse();
                }
            }
            let server = bench.random.below(SERVERS);
            model.turn(&mut bench, server, group);
        }
    }
    model.serve_all(&mut bench);
    let Model {
        served,
        together,
        overtaken,
        repeated,
        lost,
        passed,
        stayed,
        ..
    } = model;
    let least = least_steps() / 400;
    assert!(
        served > 40 * least
            && together > 10 * least
            && overtaken > least
            && repeated > 6 * least
            && lost > least
            && passed > 20 * least,
        "{served} served, {together} of them at two keys, {overtaken} held up, {repeated} repeated, {lost} lost, {passed} passed others, {stayed} did not"
    );
}

/// A ticket is overtaken by one of a higher level that comes less than ten seconds a level later,
/// by the store's clock, also if that goes back.
#[test]
fn a_ticket_is_overtaken_only_within_ten_seconds_a_level() {
    let policy = Policy::fixed_window(quota("1/1h"));
    let plan = Plan::new(policy).expect("it can be shared").with_line();
    for (gap, back, is_first) in [
        (4 * LEVEL - 1, 0, true),
        (4 * LEVEL, 0, false),
        (4 * LEVEL + 1, 0, false),
        // The clock's last time counts, so the second comes a moment after it.
        (4 * LEVEL - 3, 60_000_000, true),
        (4 * LEVEL, 60_000_000, false),
    ] {
        let mut bench = Bench::new(62);
        bench.set(START);
        let key = b"jobs".to_vec();
        let turn = |bench: &mut Bench, id: u64, number: u64, level: Option<u64>| {
            let joins = level.map(|level| call::GroupTicket {
                number,
                priority: Priority::try_from(level).expect("it is a level"),
                costs: [1].into(),
            });
            let turn = Turn {
                id,
                number,
                is_all: joins.is_some(),
                joins: joins.into_iter().collect(),
                ..Turn::default()
            };
            let arguments = call::turn_arguments(std::iter::once((&plan, 0)), &turn, false);
            let answer = format!("answer:{id}").into_bytes();
            let keys = [key.clone(), b"line".to_vec(), answer];
            let script = std::sync::Arc::clone(&bench.scripts.turn);
            let reply = bench.reply(&script, &keys, &arguments);
            call::turn_reply(reply, number, 1, 1).expect("the reply is well formed")
        };
        turn(&mut bench, 1, 1, Some(3));
        let mut calls = 1;
        while bench.now + STAY / 2 < START + gap {
            calls += 1;
            bench.set(bench.now + STAY / 2);
            turn(&mut bench, 1, calls, None);
        }
        bench.set(START + gap);
        if back > 0 {
            // A third one notes the time, and leaves.
            turn(&mut bench, 3, 1, Some(0));
            bench.set(bench.now - back);
        }
        let reply = turn(&mut bench, 2, 1, Some(7));
        let TurnReply::Fronts(fronts, ..) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(fronts[0].is_own, is_first, "{gap} µs, {back} µs back");
    }
}
