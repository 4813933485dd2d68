//! The limits of descriptors in a store that servers share.

use tidegate_redis_servers::{Server, eventually};

use std::time::Duration;

use envoy_types::pb::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::RateLimitOverride},
    r#type::v3::RateLimitUnit,
};

use crate::{
    client::{Client, one, refund},
    harness::Running,
    rls::{CONFIG, START, options},
};

fn on_store(name: &str, address: &str, config: &str) -> Running {
    let mut options = options(name, config);
    options.store = Some(address.to_owned());
    options.store_deadline = Duration::from_secs(5).into();
    let server = Running::start_at(options, START);
    eventually("the store has been reached", || server.get("/readyz").json()["status"] == "ready");
    server
}

#[test]
fn servers_share_the_limits_of_descriptors_over_a_store() {
    let config = CONFIG.replace("unit: minute", "unit: year").replace("unit: hour", "unit: year");
    let redis = Server::start(&[]);
    let [one_server, other] =
        ["one", "other"].map(|name| on_store(&format!("grpc-store-{name}"), &redis.address(), &config));
    let (mut here, mut there) = (Client::of(one_server.grpc), Client::of(other.grpc));
    let both = || vec![one("user", "ada"), one("path", "/cart")];
    assert_eq!(here.told(both()), "OK: OK/2 OK/1");
    assert_eq!(there.told(both()), "OK: OK/1 OK/0");
    assert_eq!(here.told(both()), "OVER: OK/1 OVER/0");
    assert_eq!(there.told(vec![one("user", "ada")]), "OK: OK/0");
    assert_eq!(here.told(vec![refund(one("user", "ada"))]), "OK: OK/1");
    let year = vec![RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 1, unit: RateLimitUnit::Year.into() }),
        ..one("user", "ada")
    }];
    assert_eq!(here.told(year.clone()), "OK: OK/0");
    assert_eq!(there.told(year), "OVER: OVER/0");
}
