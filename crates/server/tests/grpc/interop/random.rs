//! Random requests: every status of every answer agrees, or differs as the list says.

use std::{collections::HashMap, thread};

use tidegate_envoy::pb::envoy::{
    extensions::common::ratelimit::v3::{
        RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride,
    },
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus},
    },
    r#type::v3::RateLimitUnit,
};
use tidegate_server::descriptors::Consume;

use super::{both, seconds, shown};
use crate::client::{Client, hits, one, request};

/// Each lane is a separate domain with its own client.
const LANES: u64 = 4;
/// In all lanes together.
const REQUESTS: u64 = 20_000;

/// Limits small enough for many requests to be denied. No test runs long enough to see two windows
/// of a day, except around midnight; then it runs again.
fn config(lane: u64) -> String {
    format!("domain: mix-{lane}")
        + "
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 15, name: users}}
  - {key: user, value: vip, rate_limit: {unlimited: true}}
  - {key: user, value: none, rate_limit: {unit: day, requests_per_unit: 0}}
  - key: tenant
    descriptors:
      - {key: path, value: /api, rate_limit: {unit: day, requests_per_unit: 90}}
      - {key: path, value: /static*, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 60}}
      - {key: path, value: /st*, rate_limit: {unit: week, requests_per_unit: 20}}
      - {key: path, rate_limit: {unit: week, requests_per_unit: 40}}
      - key: region
        value: eu*
        descriptors: [{key: path, value: /api*, rate_limit: {unit: month, requests_per_unit: 30}}]
  - key: tenant
    value: big
    rate_limit: {unit: day, requests_per_unit: 300}
    descriptors:
      - {key: path, rate_limit: {unit: month, requests_per_unit: 200}}
  - {key: base, rate_limit: {unit: day, requests_per_unit: 70, name: base}}
  - {key: gold, rate_limit: {unit: day, requests_per_unit: 200, name: gold, replaces: [{name: base}]}}
  - {key: quiet, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 30}}
  - {key: pool, value: a, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 100}}
  - {key: pool, value: b, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 400}}
  - {key: spend, rate_limit: {unit: day, requests_per_unit: 60}}
"
}

/// splitmix64: the same requests in every run.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn of<'a>(&mut self, values: &[&'a str]) -> &'a str {
        let at = self.below(values.len() as u64);
        values[usize::try_from(at).unwrap()]
    }

    fn request(&mut self, domain: &str) -> RateLimitRequest {
        let count = 1 + self.below(4);
        let descriptors = (0..count).map(|_| self.descriptor()).collect();
        let mut request = request(domain, descriptors);
        request.hits_addend = u32::try_from(self.below(4)).unwrap();
        request
    }

    fn descriptor(&mut self) -> RateLimitDescriptor {
        let descriptor = match self.below(13) {
            0 | 1 => one("user", &format!("u{}", self.below(120))),
            2 => one("user", self.of(&["vip", "none"])),
            3 | 4 => {
                let tenant = format!("t{}", self.below(12));
                let tenant = self.of(&["big", &tenant, &tenant, &tenant]).to_owned();
                let path = format!("/other{}", self.below(9));
                let path = self
                    .of(&["/api", "/static/a", "/static/b", "/st", "/stop", &path])
                    .to_owned();
                chain(&[("tenant", &tenant), ("path", &path)])
            }
            5 => {
                let tenant = format!("t{}", self.below(12));
                let (region, path) = (
                    self.of(&["eu1", "eu2", "us"]),
                    self.of(&["/api", "/api/x", "/no"]),
                );
                chain(&[("tenant", &tenant), ("region", region), ("path", path)])
            }
            6 => one("base", &format!("b{}", self.below(9))),
            7 => one("gold", &format!("g{}", self.below(9))),
            8 => one("quiet", &format!("q{}", self.below(9))),
            9 => one("pool", self.of(&["a", "b", "c"])),
            10 => {
                let number = self.below(60);
                // The rule that it replaces has another unit, or never counts: number 5 of the
                // list.
                let unit = [RateLimitUnit::Month, RateLimitUnit::Year]
                    [usize::from(number.is_multiple_of(2))];
                let limit = RateLimitOverride {
                    requests_per_unit: 10 + u32::try_from(number).unwrap() % 20,
                    unit: unit.into(),
                };
                let (key, value) = (self.of(&["user", "nothing"]), format!("o{number}"));
                RateLimitDescriptor {
                    limit: Some(limit),
                    ..one(key, &value)
                }
            }
            11 => chain(&[("user", "u1"), ("beyond", "x")]),
            _ => one("spend", &format!("s{}", self.below(90))),
        };
        match self.below(8) {
            0 => hits(0, descriptor),
            1 => hits(1 + self.below(9), descriptor),
            2 if self.below(30) == 0 => hits(1_000, descriptor),
            _ => descriptor,
        }
    }
}

pub fn chain(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries
        .iter()
        .flat_map(|(key, value)| one(key, value).entries)
        .collect();
    RateLimitDescriptor {
        entries,
        ..RateLimitDescriptor::default()
    }
}

/// The hits that one state was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    asked: u64,
    /// Whether a joint decision denied some of them.
    is_denied: bool,
}

/// How many statuses agree, and how many differ as the list says.
#[derive(Debug, Default)]
struct Compared {
    agree: u64,
    denied_hits: u64,
    quotas: u64,
    counters: HashMap<String, Counter>,
}

impl Compared {
    /// Compares the answers to a request when each limit is charged separately.
    fn compare(
        &mut self,
        request: &RateLimitRequest,
        ours: &RateLimitResponse,
        theirs: &RateLimitResponse,
    ) {
        let what = || {
            format!(
                "{request:?}\nours: {}\ntheirs: {}",
                shown(ours),
                shown(theirs)
            )
        };
        assert_eq!(ours.statuses.len(), request.descriptors.len(), "{}", what());
        assert_eq!(
            theirs.statuses.len(),
            request.descriptors.len(),
            "{}",
            what()
        );
        let (mut plain_over, mut quotas, mut quotas_over, mut they_over) = (false, 0, 0, false);
        for ((descriptor, ours), theirs) in request
            .descriptors
            .iter()
            .zip(&ours.statuses)
            .zip(&theirs.statuses)
        {
            they_over |= is_over(theirs.code);
            let asked = descriptor
                .hits_addend
                .map_or(u64::from(request.hits_addend.max(1)), |hits| hits.value);
            let key = descriptor.entries[0].key.as_str();
            let (is_quota, is_shadow) = (key == "pool", key == "quiet");
            assert_eq!(ours.current_limit, theirs.current_limit, "{}", what());
            let Some(limit) = &theirs.current_limit else {
                assert_eq!(same(ours), same(theirs), "{}", what());
                self.agree += 1;
                continue;
            };
            let limit = u64::from(limit.requests_per_unit);
            let counter = self.counters.entry(state(descriptor)).or_default();
            counter.asked += asked;
            let (fits, left) = (counter.asked <= limit, limit.saturating_sub(counter.asked));
            assert_eq!(
                same(theirs),
                expected(fits, left, is_shadow || is_quota),
                "{}",
                what()
            );
            assert_eq!(same(ours), expected(fits, left, is_shadow), "{}", what());
            if is_quota {
                quotas += 1;
                quotas_over += u64::from(!fits);
            } else {
                plain_over |= is_over(ours.code);
            }
            match (same(ours) == same(theirs), is_quota) {
                (true, _) => self.agree += 1,
                (false, true) => self.quotas += 1,
                (false, false) => panic!("not on the list: {}", what()),
            }
        }
        assert_eq!(
            is_over(ours.overall_code),
            plain_over || (quotas > 0 && quotas == quotas_over),
            "{}",
            what()
        );
        assert_eq!(is_over(theirs.overall_code), they_over, "{}", what());
    }

    /// Compares the answers to a request when a denial charges nothing. Once a denied request has
    /// asked a state, it is charged there but not here.
    fn compare_joint(
        &mut self,
        request: &RateLimitRequest,
        ours: &RateLimitResponse,
        theirs: &RateLimitResponse,
    ) {
        let what = || {
            format!(
                "{request:?}\nours: {}\ntheirs: {}",
                shown(ours),
                shown(theirs)
            )
        };
        let is_known = |descriptor| {
            self.counters
                .get(&state(descriptor))
                .is_none_or(|counter| !counter.is_denied)
        };
        let is_comparable = request.descriptors.iter().all(is_known);
        let is_denied = is_over(ours.overall_code);
        for ((descriptor, ours), theirs) in request
            .descriptors
            .iter()
            .zip(&ours.statuses)
            .zip(&theirs.statuses)
        {
            assert_eq!(ours.current_limit, theirs.current_limit, "{}", what());
            if !is_comparable || theirs.current_limit.is_none() {
                self.denied_hits += u64::from(!is_comparable);
            } else if is_denied || is_over(theirs.code) {
                assert_eq!(ours.code, theirs.code, "{}", what());
                assert!(ours.limit_remaining >= theirs.limit_remaining, "{}", what());
                self.denied_hits += 1;
            } else {
                assert_eq!(same(ours), same(theirs), "{}", what());
                self.agree += 1;
            }
            // In shadow mode a status is never over.
            if is_denied || is_over(theirs.code) || theirs.limit_remaining == 0 {
                self.counters
                    .entry(state(descriptor))
                    .or_default()
                    .is_denied = true;
            }
        }
        if is_comparable {
            assert_eq!(ours.overall_code, theirs.overall_code, "{}", what());
        }
    }
}

fn is_over(code: i32) -> bool {
    code == i32::from(Code::OverLimit)
}

/// What is compared in addition to the limit.
pub fn same(status: &DescriptorStatus) -> (bool, u32) {
    (is_over(status.code), status.limit_remaining)
}

fn expected(fits: bool, left: u64, never_over: bool) -> (bool, u32) {
    (!fits && !never_over, u32::try_from(left).unwrap())
}

/// The state that a descriptor uses; everything below `/static` shares one.
fn state(descriptor: &RateLimitDescriptor) -> String {
    let brought = descriptor.limit.is_some();
    let entries = descriptor.entries.iter().map(|entry| {
        let shares = entry.value.starts_with("/static") && descriptor.entries[0].value != "big";
        format!(
            "{}={} ",
            entry.key,
            if shares { "/static*" } else { &entry.value }
        )
    });
    entries.collect::<String>() + if brought { "brought along" } else { "" }
}

/// Sends the requests to both servers, in all lanes concurrently, and in order within a lane.
fn run(name: &str, requests: u64, consume: Consume) -> Compared {
    loop {
        let files: Vec<String> = (0..LANES).map(config).collect();
        let (our_server, their_server) = both(name, &files, consume);
        let start = seconds();
        let (ours, theirs) = (our_server.grpc, their_server.grpc);
        let lane = |lane: u64| {
            let mut random = Random(lane + 1);
            let (mut ours, mut theirs) = (Client::of(ours), Client::of(theirs));
            let mut answers = Vec::new();
            for _ in 0..requests / LANES {
                let mut request = random.request(&format!("mix-{lane}"));
                if consume == Consume::AllOrNone {
                    // Number 3 of the list would decide everything else.
                    request
                        .descriptors
                        .retain(|descriptor| descriptor.entries[0].key != "pool");
                    if request.descriptors.is_empty() {
                        continue;
                    }
                }
                let here = ours.try_ask(request.clone()).unwrap();
                let there = theirs.try_ask(request.clone()).unwrap();
                answers.push((request, here, there, seconds()));
            }
            answers
        };
        let answers = thread::scope(|scope| {
            let lanes: Vec<_> = (0..LANES).map(|at| scope.spawn(move || lane(at))).collect();
            lanes
                .into_iter()
                .map(|lane| lane.join().unwrap())
                .collect::<Vec<_>>()
        });
        // Their clock continues, and at midnight their windows end.
        if start / 86_400 != seconds() / 86_400 {
            continue;
        }
        let mut all = Compared::default();
        for answers in answers {
            let mut compared = Compared::default();
            for (request, ours, theirs, asked) in answers {
                resets_agree(&ours, &theirs, asked - start);
                match consume {
                    Consume::Each => compared.compare(&request, &ours, &theirs),
                    Consume::AllOrNone => compared.compare_joint(&request, &ours, &theirs),
                }
            }
            all.agree += compared.agree;
            all.denied_hits += compared.denied_hits;
            all.quotas += compared.quotas;
        }
        return all;
    }
}

/// Our clock stands still, while theirs has advanced by this many seconds.
fn resets_agree(ours: &RateLimitResponse, theirs: &RateLimitResponse, gone: u64) {
    for (ours, theirs) in ours.statuses.iter().zip(&theirs.statuses) {
        // Number 3 of the list: a quota that is used up has no reset.
        if let (Some(here), Some(there)) =
            (&ours.duration_until_reset, &theirs.duration_until_reset)
        {
            let later = there.seconds..=there.seconds + i64::try_from(gone).unwrap() + 1;
            assert!(
                later.contains(&here.seconds),
                "{here:?}, {there:?} after {gone} s"
            );
        }
        assert!(
            ours.duration_until_reset.is_some() == ours.current_limit.is_some(),
            "{ours:?}"
        );
    }
}

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn twenty_thousand_random_requests_get_the_same_answers() {
    let compared = run("interop-each", REQUESTS, Consume::Each);
    println!(
        "{} statuses agree; on the list: {} quotas",
        compared.agree, compared.quotas
    );
    assert!(
        compared.agree > 20 * compared.quotas && compared.denied_hits == 0,
        "{compared:?}"
    );
}

#[test]
#[ignore = "needs envoyproxy/ratelimit: scripts/test.sh --interop"]
fn requests_that_no_limit_denies_get_the_same_answers_with_joint_decisions() {
    let compared = run("interop-joint", REQUESTS / 5, Consume::AllOrNone);
    assert!(compared.agree > 1_000, "{compared:?}");
}
