//! Runs the same random steps of check, report, reserve and commit through Tidegate's gRPC service
//! and through the crate `limitador`, and lists each difference with its reason. It fails if a
//! difference has none.

mod messages;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use tidegate_envoy::pb::{
    envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{RateLimitRequest, RateLimitResponse, rate_limit_response::Code},
    },
    google::protobuf,
};
use limitador::{
    RateLimiter, RateLimiterBuilder,
    limit::{Context, Limit, Namespace},
    reservation::{ReservationId, ReservationLimits},
    storage::{Storage, in_memory::InMemoryStorage},
};
use messages::{Commit, Committed, Reserve, Reserved};
use prost::Message;
use tidegate_core::{Nanos, clock::ManualTimer};
use tidegate_server::{Options, Order, Server};
use tokio::{runtime::Runtime, sync::mpsc};
use tonic::{Request, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};
use tonic_prost::ProstCodec;

const DAY: u64 = 86_400;
const USER: u64 = 1_000;
const TEAM: u64 = 5_000;
/// Ten users of two teams each.
const USERS: u64 = 10;

/// A reservation that both granted.
struct Known {
    user: u64,
    ours: String,
    theirs: ReservationId,
    amount: u64,
    is_open: bool,
}

/// A server whose clock stands, and a connection to it.
struct Ours {
    client: Grpc<Channel>,
    runtime: Runtime,
    _orders: mpsc::Sender<Order>,
}

impl Ours {
    fn start() -> Self {
        let config = format!(
            "domain: d\ndescriptors:\n  - {{key: user, rate_limit: {{unit: day, requests_per_unit: {USER}}}}}\n  \
             - {{key: team, rate_limit: {{unit: day, requests_per_unit: {TEAM}}}}}\n"
        );
        let file =
            std::env::temp_dir().join(format!("tidegate-limitador-{}.yaml", std::process::id()));
        std::fs::write(&file, config).expect("a file");
        let options = Options {
            envoy_config: Some(file.clone()),
            grpc: Some("127.0.0.1:0".to_owned()),
            resp: None,
            ..Options::default()
        };
        let runtime = Runtime::new().expect("a runtime");
        let clock = Arc::new(ManualTimer::new(Nanos::from_secs(1_700_049_600)));
        let server = runtime
            .block_on(Server::start_on(options, clock))
            .expect("a server");
        let _ = std::fs::remove_file(file);
        let address = server.address("grpc").expect("it listens");
        let (orders, receiver) = mpsc::channel(1);
        runtime.spawn(server.run(receiver));
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address");
        let client = Grpc::new(
            runtime
                .block_on(channel.connect())
                .expect("the server accepts"),
        );
        Self {
            client,
            runtime,
            _orders: orders,
        }
    }

    fn call<Q, A>(&mut self, method: &str, message: Q) -> A
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let path = format!("/kuadrant.service.ratelimit.v1.RateLimitService/{method}");
        let path: PathAndQuery = path.parse().expect("a path");
        let answer = self.runtime.block_on(async {
            self.client.ready().await.expect("the server is there");
            self.client
                .unary(Request::new(message), path, ProstCodec::<Q, A>::default())
                .await
        });
        answer
            .unwrap_or_else(|status| panic!("{method} fails: {status}"))
            .into_inner()
    }
}

struct Comparison<'a> {
    ours: &'a mut Ours,
    /// In the values of its users and teams, because all comparisons ask one server.
    number: u64,
    theirs: RateLimiter,
    namespace: Namespace,
    known: Vec<Known>,
    /// How often each reason occurred.
    differences: BTreeMap<&'static str, u64>,
    /// The sum of the open reservations of each user.
    held: HashMap<u64, u64>,
    /// The use of each user.
    used: HashMap<u64, u64>,
    random: u64,
}

fn team(user: u64) -> u64 {
    user % 2
}

fn context(user: u64) -> Context<'static> {
    let values = [
        ("user".to_owned(), user.to_string()),
        ("team".to_owned(), team(user).to_string()),
    ];
    HashMap::from(values).into()
}

/// The sums for both limits of a user.
fn both(of: &HashMap<u64, u64>, user: u64) -> [u64; 2] {
    let one = |user: u64| of.get(&user).copied().unwrap_or_default();
    [
        one(user),
        (0..USERS)
            .filter(|other| team(*other) == team(user))
            .map(one)
            .sum(),
    ]
}

impl<'a> Comparison<'a> {
    fn new(ours: &'a mut Ours, number: u64) -> Self {
        let limits = ReservationLimits {
            max_fraction: 1.0,
            max_ttl: Duration::from_secs(DAY),
        };
        let storage = Storage::with_counter_storage(Box::new(InMemoryStorage::new(10_000)));
        let theirs = RateLimiterBuilder::with_storage(storage)
            .reservation_limits(limits)
            .build();
        let none: [limitador::limit::Predicate; 0] = [];
        for (name, most) in [("user", USER), ("team", TEAM)] {
            let variable = name.try_into().expect("an expression");
            theirs.add_limit(Limit::new("d", most, DAY, none.clone(), [variable]));
        }
        Self {
            ours,
            number,
            theirs,
            namespace: "d".into(),
            known: Vec::new(),
            differences: BTreeMap::new(),
            held: HashMap::new(),
            used: HashMap::new(),
            random: 0x9E37_79B9_7F4A_7C15 ^ number << 20,
        }
    }

    /// Marsaglia's xorshift.
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn descriptors(&self, user: u64) -> Vec<RateLimitDescriptor> {
        let one = |key: &str, value: u64| RateLimitDescriptor {
            entries: vec![Entry {
                key: key.to_owned(),
                value: format!("{}-{value}", self.number),
            }],
            ..RateLimitDescriptor::default()
        };
        vec![one("user", user), one("team", team(user))]
    }

    fn differs(&mut self, reason: &'static str) {
        *self.differences.entry(reason).or_default() += 1;
    }

    fn check(&mut self, user: u64, delta: u64) {
        let request = RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: self.descriptors(user),
            hits_addend: delta as u32,
        };
        let ours: RateLimitResponse = self.ours.call("CheckRateLimit", request);
        let ours = ours.overall_code == i32::from(Code::OverLimit);
        let theirs = self
            .theirs
            .is_rate_limited(&self.namespace, &context(user), delta);
        let theirs = theirs.expect("memory").limited;
        let (held, used) = (both(&self.held, user), both(&self.used, user));
        match (ours, theirs) {
            (true, false)
                if held[0] + used[0] + delta > USER || held[1] + used[1] + delta > TEAM =>
            {
                self.differs("a check sees what is reserved; limitador's does not");
            }
            _ => assert_eq!(
                ours, theirs,
                "check of {delta}: held {held:?}, used {used:?}"
            ),
        }
    }

    fn report(&mut self, user: u64, delta: u64) {
        let request = RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: self.descriptors(user),
            hits_addend: delta as u32,
        };
        let ours: RateLimitResponse = self.ours.call("Report", request);
        assert_eq!(ours.overall_code, i32::from(Code::Ok));
        self.theirs
            .update_counters(&self.namespace, &context(user), delta)
            .expect("memory");
        *self.used.entry(user).or_default() += delta;
    }

    fn reserve(&mut self, user: u64, amount: u64) {
        let request = Reserve {
            domain: "d".to_owned(),
            descriptors: self.descriptors(user),
            amount,
            ttl: Some(protobuf::Duration {
                seconds: DAY as i64,
                nanos: 0,
            }),
        };
        let ours: Reserved = self.ours.call("Reserve", request);
        let day = Some(Duration::from_secs(DAY));
        let theirs = self
            .theirs
            .reserve(&self.namespace, &context(user), amount, day)
            .expect("memory");
        let is_denied = ours.code == i32::from(Code::OverLimit);
        assert_eq!(is_denied, theirs.limited, "a reservation of {amount}");
        match theirs.reservation_id {
            Some(theirs) => {
                *self.held.entry(user).or_default() += amount;
                self.known.push(Known {
                    user,
                    ours: ours.reservation_id,
                    theirs,
                    amount,
                    is_open: true,
                });
            }
            None if !is_denied => {
                self.differs("a reservation of 0 has an id; limitador's has none");
                self.commit_ours(user, &ours.reservation_id, 0);
            }
            None => {}
        }
    }

    fn commit_ours(&mut self, user: u64, id: &str, actual_amount: u64) -> bool {
        let request = Commit {
            domain: "d".to_owned(),
            descriptors: self.descriptors(user),
            reservation_id: id.to_owned(),
            actual_amount,
        };
        self.ours
            .call::<_, Committed>("Commit", request)
            .reservation_released
    }

    fn commit(&mut self, at: usize, actual: u64) {
        let Known {
            user,
            amount,
            is_open,
            ..
        } = self.known[at];
        let (ours, theirs) = (self.known[at].ours.clone(), self.known[at].theirs.clone());
        let released = self.commit_ours(user, &ours, actual);
        let told =
            self.theirs
                .commit_reservation(&self.namespace, &context(user), Some(&theirs), actual);
        assert_eq!(released, told.expect("memory").reservation_released);
        assert_eq!(released, is_open);
        *self.used.entry(user).or_default() += actual;
        if is_open {
            *self.held.entry(user).or_default() -= amount;
            self.known[at].is_open = false;
        } else if actual > 0 {
            self.differs("a second commit counts nothing; limitador adds its amount again");
            // Both continue with the same use.
            let request = RateLimitRequest {
                domain: "d".to_owned(),
                descriptors: self.descriptors(user),
                hits_addend: actual as u32,
            };
            self.ours.call::<_, RateLimitResponse>("Report", request);
        }
    }

    fn commit_unknown(&mut self, user: u64, actual: u64) {
        let unknown = format!("{:032x}", self.below(1 << 60));
        assert!(!self.commit_ours(user, &unknown, actual));
        let id = ReservationId::from(unknown);
        let told =
            self.theirs
                .commit_reservation(&self.namespace, &context(user), Some(&id), actual);
        assert!(!told.expect("memory").reservation_released);
        *self.used.entry(user).or_default() += actual;
    }

    fn step(&mut self) {
        let user = self.below(USERS);
        let amount = match self.below(8) {
            0 => 0,
            1 => 1 + self.below(2 * USER),
            _ => 1 + self.below(USER / 50),
        };
        match self.below(10) {
            0..=2 => self.check(user, amount.max(1)),
            3 => self.report(user, amount.clamp(1, USER / 100)),
            4..=6 => self.reserve(user, amount),
            7 => self.commit_unknown(user, amount.min(5)),
            _ if !self.known.is_empty() => {
                let recent = self.below(self.known.len().min(30) as u64) as usize;
                let at = self.known.len() - 1 - recent;
                let actual = match self.below(4) {
                    0 => 0,
                    1 => self.known[at].amount + self.below(20),
                    _ => self.below(self.known[at].amount + 1),
                };
                self.commit(at, actual);
            }
            _ => {}
        }
    }
}

fn main() {
    let steps: u64 = std::env::args()
        .nth(1)
        .map_or(100_000, |steps| steps.parse().expect("a number of steps"));
    let (mut differences, mut ours) = (BTreeMap::new(), Ours::start());
    // A day is used up after a few hundred steps, so each comparison is short.
    for number in 2..steps.div_ceil(500) + 2 {
        let mut comparison = Comparison::new(&mut ours, number);
        (0..500).for_each(|_| comparison.step());
        for (reason, count) in comparison.differences {
            *differences.entry(reason).or_insert(0) += count;
        }
    }
    println!("{steps} steps; differences, all of them meant:");
    for (reason, count) in differences {
        println!("{count:>7}  {reason}");
    }
}
