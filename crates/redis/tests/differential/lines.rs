//! Lines, against a naive oracle: a list of tickets for each key, and when each server asked last.

use call::{Front, Turn, TurnReply};

use super::*;

/// How long the tickets of a server stay, in microseconds.
const STAY: u64 = 5_000_000;
const SERVERS: usize = 3;

/// A ticket: the server, its number there, and the cost.
type Ticket = (usize, u64, u64);

#[derive(Default)]
struct Naive {
    state: Vec<u64>,
    last: Nanos,
    tickets: Vec<Ticket>,
    /// Until when the tickets of each server stay.
    ends: [u64; SERVERS],
}

impl Naive {
    /// What has expired does not come back if the clock goes back.
    fn expire(&mut self, now: u64) {
        for end in self.ends.iter_mut().filter(|end| **end <= now) {
            *end = 0;
        }
        self.tickets.retain(|ticket| self.ends[ticket.0] > 0);
    }

    fn cost(&self) -> u64 {
        self.tickets.iter().map(|ticket| ticket.2).sum()
    }
}

/// What a server knows of its tickets at a key.
#[derive(Default)]
struct Asker {
    next: u64,
    calls: u64,
    /// Those that it believes to be in line.
    tickets: Vec<(u64, u64)>,
    /// All must be sent again.
    is_lost: bool,
    /// The last call, and whether it took anything.
    last: Option<(Turn, Option<Front>)>,
}

struct Model {
    policies: Vec<Policy>,
    plans: Vec<Plan>,
    keys: HashMap<(usize, u64), (Naive, [Asker; SERVERS])>,
    served: u64,
    overtaken: u64,
    repeated: u64,
    lost: u64,
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

fn keys(at: usize, key: u64) -> [Vec<u8>; 2] {
    [format!("{at}:{key}"), format!("line:{at}:{key}")].map(String::into_bytes)
}

impl Model {
    /// A server adds and removes tickets, and takes the first one if it is its own and fits.
    fn turn(&mut self, bench: &mut Bench, at: usize, key: u64) {
        let (policy, plan) = (self.policies[at], &self.plans[at]);
        let server = bench.random.below(SERVERS as u64) as usize;
        let (naive, askers) = self.keys.entry((at, key)).or_default();
        naive.state.resize(policy.words(), 0);
        let asker = &mut askers[server];
        let mut turn = Turn {
            id: 7 + server as u64,
            ..Turn::default()
        };
        let mut again = None;
        if bench.random.below(8) == 0
            && let Some((last, front)) = &asker.last
            // One that took nothing would be decided anew.
            && front.is_some()
        {
            (turn, again) = (last.clone(), *front);
            self.repeated += 1;
        } else {
            asker.calls += 1;
            for _ in 0..bench.random.below(3) {
                let cost = 1 + bench.random.below(policy.limit().min(9));
                turn.joins.push((asker.next, cost));
                asker.next += 1;
            }
            turn.is_all = asker.is_lost || asker.tickets.is_empty();
            if asker.is_lost {
                turn.joins.splice(0..0, asker.tickets.iter().copied());
            } else if !asker.tickets.is_empty() && bench.random.below(4) == 0 {
                let left = bench.random.below(asker.tickets.len() as u64) as usize;
                turn.leaves.push(asker.tickets.remove(left));
            }
            turn.number = asker.calls;
        }
        let takes = again.is_some() || bench.random.below(8) > 0;
        let mut asked = keys(at, key).to_vec();
        asked.push(format!("answer:{at}:{key}:{server}").into_bytes());
        let arguments = call::turn_arguments(std::iter::once(plan), &turn, takes);
        let script = std::sync::Arc::clone(&bench.scripts.turn);
        let reply = bench.reply(&script, &asked, &arguments);
        let reply = call::turn_reply(reply, turn.number, 1).expect("the reply is well formed");
        let micros = bench.now;
        let what = format!("{policy} {key}, server {server} at {micros}: {turn:?}");
        if let Some(first) = again {
            assert!(
                matches!(reply, TurnReply::Front(front, ..) if front == first),
                "{what}: {reply:?}, not {first:?}"
            );
            return;
        }
        naive.expire(micros);
        if !turn.is_all && naive.ends[server] == 0 {
            assert!(matches!(reply, TurnReply::Lost), "{what}: {reply:?}");
            asker.is_lost = true;
            asker.tickets.extend(&turn.joins);
            self.lost += 1;
            return;
        }
        if asker.is_lost {
            asker.tickets.clear();
        }
        asker.is_lost = false;
        asker.tickets.extend(&turn.joins);
        naive.ends[server] = micros + STAY;
        for &(number, cost) in &turn.joins {
            if !naive.tickets.contains(&(server, number, cost)) {
                naive.tickets.push((server, number, cost));
            }
        }
        naive
            .tickets
            .retain(|ticket| ticket.0 != server || !turn.leaves.contains(&(ticket.1, ticket.2)));
        asker.last = Some((turn, None));
        let Some(&(owner, number, cost)) = naive.tickets.first() else {
            assert!(matches!(reply, TurnReply::Empty), "{what}: {reply:?}");
            naive.ends = [0; SERVERS];
            return;
        };
        let TurnReply::Front(front, now, values) = reply else {
            panic!("{what}: {reply:?}");
        };
        let own = policy.peek(&naive.state, now, cost);
        let is_taken = takes && owner == server && own.is_allowed();
        let mine = naive.tickets.iter().position(|ticket| ticket.0 == server);
        let ahead = naive
            .tickets
            .iter()
            .take(mine.map_or(64, |at| at + 1).min(64));
        let expected = Front {
            is_own: owner == server,
            is_taken,
            number,
            cost,
            ahead: ahead.map(|ticket| ticket.2).sum(),
            tickets: naive.tickets.len() as u64,
        };
        assert_eq!(front, expected, "{what}");
        let found =
            call::found_in_turn(std::iter::once(plan), values).expect("the value is a state");
        let (told, _) = plan
            .decision_on(&found[0], now, (cost, is_taken))
            .expect("the value is a state");
        assert!(
            same(&policy, cost, &told, &own),
            "{what}: {told:?}, not {own:?}"
        );
        if is_taken {
            let taken = moment(&policy, &mut naive.last, now);
            policy.record(&mut naive.state, taken, cost);
            naive.tickets.remove(0);
            asker.tickets.retain(|ticket| ticket.0 != number);
            if naive.tickets.is_empty() {
                naive.ends = [0; SERVERS];
            }
            asker.last = asker.last.take().map(|(turn, _)| (turn, Some(front)));
            self.served += 1;
        }
    }

    /// A request that does not wait.
    fn ask(&mut self, bench: &mut Bench, at: usize, key: u64) {
        let (policy, plan) = (self.policies[at], &self.plans[at]);
        let (naive, _) = self.keys.entry((at, key)).or_default();
        naive.state.resize(policy.words(), 0);
        let (cost, takes) = (bench.cost(policy.limit()), bench.random.below(4) > 0);
        let arguments = call::joint_arguments(std::iter::once((plan, cost)), takes);
        let script = std::sync::Arc::clone(&bench.scripts.joint);
        let (now, found) = bench.call(&script, &keys(at, key), &arguments);
        let found = call::found(std::iter::once(plan), found).expect("the value is a state");
        naive.expire(bench.now);
        let line = found[0].line.expect("the limit has a line");
        assert_eq!(
            (line.tickets, line.cost),
            (naive.tickets.len() as u64, naive.cost())
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
            self.overtaken += u64::from(own.is_allowed());
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
fn the_first_to_come_at_any_server_is_the_first_to_be_served() {
    let mut bench = Bench::new(61);
    let plan = |policy: &Policy| Plan::new(*policy).expect("it can be shared").with_line();
    let mut model = Model {
        plans: policies().iter().map(plan).collect(),
        policies: policies(),
        keys: HashMap::new(),
        served: 0,
        overtaken: 0,
        repeated: 0,
        lost: 0,
    };
    for _ in 0..STEPS {
        match bench.random.below(400) {
            0 => bench.set(bench.now + STAY),
            _ => bench.move_time(1_000_000),
        }
        let at = bench.random.below(model.policies.len() as u64) as usize;
        let key = bench.random.below(2);
        if bench.random.below(5) == 0 {
            model.ask(&mut bench, at, key);
        } else {
            model.turn(&mut bench, at, key);
        }
    }
    let Model {
        served,
        overtaken,
        repeated,
        lost,
        ..
    } = model;
    assert!(
        served > 2_000 && overtaken > 50 && repeated > 500 && lost > 50,
        "{served} served, {overtaken} held up, {repeated} repeated, {lost} lost"
    );
}
