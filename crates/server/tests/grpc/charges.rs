//! Limits that count every hit, as in envoyproxy/ratelimit: the default.

use std::time::Duration;

use tidegate_server::descriptors::Consume;

use crate::{
    client::{Client, hits, one, refund, request},
    harness::Running,
    rls::{START, options},
};

const CONFIG: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 3}}
  - {key: path, rate_limit: {unit: minute, requests_per_unit: 2}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: kept, rate_limit: {unit: day, requests_per_unit: 10, charge: admitted}}
  - {key: all, rate_limit: {unit: day, requests_per_unit: 10, charge: always}}
  - {key: soft, rate_limit: {unit: day, requests_per_unit: 2, soft: true}}
  - {key: window, rate_limit: {unit: day, requests_per_unit: 10, algorithm: sliding-window}}
";

fn serving(name: &str, consume: Consume) -> Running {
    let mut options = options(name, CONFIG);
    options.envoy_consume = consume;
    Running::start_at(options, START)
}

#[test]
fn every_limit_of_a_request_is_charged_whatever_the_answer() {
    let server = serving("grpc-each", Consume::default());
    let mut client = Client::of(server.grpc);
    let both = || vec![one("user", "ada"), one("path", "/cart")];
    assert_eq!(client.told(both()), "OK: OK/2 OK/1");
    assert_eq!(client.told(both()), "OK: OK/1 OK/0");
    assert_eq!(client.told(both()), "OVER: OK/0 OVER/0");
    assert_eq!(client.told(vec![one("user", "ada")]), "OVER: OVER/0");
    // A hit that does not fit is charged, too: nothing smaller fits afterwards.
    assert_eq!(
        client.told(vec![hits(5, one("user", "eve"))]),
        "OVER: OVER/0"
    );
    assert_eq!(
        client.told(vec![hits(0, one("user", "eve"))]),
        "OVER: OVER/0",
        "a look says so"
    );
    server.advance(Duration::from_mins(1));
    assert_eq!(
        client.told(vec![one("user", "eve")]),
        "OK: OK/2",
        "a new minute"
    );
}

/// A request with an id is charged once, in both ways to charge, at either of two servers.
pub fn an_id_counts_once(consume: Consume, here: &mut Client, there: &mut Client) {
    let both = || vec![one("user", "ivy"), one("all", "ivy"), one("user", "ivy")];
    let is_each = consume == Consume::Each;
    let first = here.once("id-1", both());
    assert_eq!(first.split(' ').nth(2), Some("OK/9"), "{first}");
    for client in [&mut *there, here] {
        assert_eq!(client.once("id-1", both()), first, "{consume:?}");
    }
    let all = |client: &mut Client| client.told(vec![hits(0, one("all", "ivy"))]);
    assert_eq!(all(there), "OK: OK/9");
    let user = vec![hits(0, one("user", "ivy"))];
    assert_eq!(here.told(user), "OK: OK/1", "{first}");
    // Another id, and a denial, whose hits are charged once where denials are.
    let large = || vec![hits(9, one("all", "ivy")), hits(3, one("user", "ivy"))];
    let denied = here.once("id-2", large());
    assert!(denied.starts_with("OVER: "), "{denied}");
    let rest = all(here);
    assert_eq!(rest, "OK: OK/0", "{denied}");
    for client in [&mut *there, here] {
        assert_eq!(client.once("id-2", large()), denied, "{consume:?}");
        assert_eq!(all(client), rest);
    }
    let user = there.told(vec![hits(0, one("user", "ivy"))]);
    assert_eq!(user, if is_each { "OVER: OVER/0" } else { "OK: OK/1" });
    // What fits is charged, and what a limit that counts all denied, too: once.
    let over = || vec![hits(4, one("all", "joe")), hits(9, one("user", "joe"))];
    let denied = here.once("id-3", over());
    assert_eq!(there.once("id-3", over()), denied);
    assert_eq!(here.told(vec![hits(0, one("all", "joe"))]), "OK: OK/6");
}

#[test]
fn a_request_with_an_id_is_charged_once() {
    for consume in [Consume::Each, Consume::AllOrNone] {
        let server = serving(&format!("grpc-once-{consume:?}"), consume);
        let mut clients = [Client::of(server.grpc), Client::of(server.grpc)];
        let [here, there] = &mut clients;
        an_id_counts_once(consume, here, there);
        let refunds = vec![one("user", "eve"), refund(one("user", "eve"))];
        let refused = here.try_once("id-4", refunds).unwrap_err();
        assert_eq!(
            (refused.code(), refused.message()),
            (
                tonic::Code::InvalidArgument,
                "a refund cannot be repeated: leave out the metadata `tidegate-id`"
            )
        );
        let long = "x".repeat(129);
        let refused = here.try_once(&long, vec![one("user", "eve")]).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert_eq!(here.told(vec![hits(0, one("user", "eve"))]), "OK: OK/3");
    }
}

#[cfg(feature = "servers")]
#[test]
fn a_request_with_an_id_is_charged_once_at_servers_that_share_a_store() {
    for consume in [Consume::Each, Consume::AllOrNone] {
        let store = tidegate_redis_servers::Server::start(&[]);
        let servers = ["one", "other"].map(|name| {
            let mut options = options(&format!("grpc-once-{name}-{consume:?}"), CONFIG);
            options.envoy_consume = consume;
            options.store = Some(store.address());
            options.store_deadline = Duration::from_secs(5).into();
            let server = Running::start_at(options, START);
            let ready = || server.get("/readyz").json()["status"] == "ready";
            tidegate_redis_servers::eventually("the store has been reached", ready);
            server
        });
        let [mut here, mut there] = servers.each_ref().map(|server| Client::of(server.grpc));
        an_id_counts_once(consume, &mut here, &mut there);
    }
}

#[test]
fn tokens_that_are_reported_after_the_answer_end_the_next_questions() {
    for consume in [Consume::Each, Consume::AllOrNone] {
        let server = serving(&format!("grpc-tokens-{consume:?}"), consume);
        let mut client = Client::of(server.grpc);
        for (tokens, most) in [(100, 11), (300, 4), (1_200, 1)] {
            let key = tokens.to_string();
            let of = |count| {
                vec![hits(
                    count,
                    one(
                        if consume == Consume::Each {
                            "tokens"
                        } else {
                            "all"
                        },
                        &key,
                    ),
                )]
            };
            // The rule `all` allows 10.
            let scale = if consume == Consume::Each { 1 } else { 100 };
            let passed = (0..200)
                .filter(|_| {
                    let passes = client.told(of(0)).starts_with("OK");
                    if passes {
                        client.told(of(tokens / scale));
                    }
                    passes
                })
                .count();
            assert_eq!(passed, most, "{consume:?}: {tokens} tokens an answer");
        }
    }
}

#[test]
fn a_rule_says_whether_it_counts_denied_requests() {
    for (consume, kept, window) in [
        (Consume::Each, "OK/4", "OK/4"),
        (Consume::AllOrNone, "OK/4", "OK/4"),
    ] {
        let server = serving(&format!("grpc-rule-{consume:?}"), consume);
        let mut client = Client::of(server.grpc);
        let told = |client: &mut Client, name: &str| {
            assert_eq!(
                client.told(vec![hits(6, one(name, "a"))]),
                "OK: OK/4",
                "{name}"
            );
            assert_eq!(
                client.told(vec![hits(6, one(name, "a"))]),
                "OVER: OVER/0",
                "{name}"
            );
            client.told(vec![hits(0, one(name, "a"))])
        };
        assert_eq!(
            told(&mut client, "kept"),
            format!("OK: {kept}"),
            "{consume:?}"
        );
        assert_eq!(
            told(&mut client, "window"),
            format!("OK: {window}"),
            "{consume:?}"
        );
        assert_eq!(told(&mut client, "all"), "OVER: OVER/0", "{consume:?}");
    }
}

#[test]
fn what_a_denied_request_charged_can_be_given_back() {
    let server = serving("grpc-back", Consume::default());
    let mut client = Client::of(server.grpc);
    assert_eq!(
        client.told(vec![hits(1_500, one("tokens", "a"))]),
        "OVER: OVER/0"
    );
    let back = request("shop", vec![refund(hits(900, one("tokens", "a")))]);
    client.try_ask(back).unwrap();
    assert_eq!(client.told(vec![hits(0, one("tokens", "a"))]), "OK: OK/400");
}

#[test]
fn a_soft_rule_admits_counts_and_says_so() {
    for consume in [Consume::Each, Consume::AllOrNone] {
        let server = serving(&format!("grpc-soft-{consume:?}"), consume);
        let mut client = Client::of(server.grpc);
        for (used, left) in [(1, 1), (2, 0), (3, 0), (4, 0)] {
            let answer = client.ask(vec![one("soft", "ada")]);
            assert_eq!(crate::client::shown(&answer), format!("OK: OK/{left}"));
            let header = answer
                .response_headers_to_add
                .iter()
                .find(|header| header.key == "x-tidegate-soft-exceeded");
            assert_eq!(
                header.map(|header| header.value.as_str()),
                (used > 2).then_some("shop.soft"),
                "{used}"
            );
            let metadata = answer
                .dynamic_metadata
                .is_some_and(|told| told.fields.contains_key("soft_exceeded"));
            assert_eq!(metadata, used > 2);
        }
    }
}
