//! The middleware with a shared store: services of several processes behind one limit.
#![cfg(feature = "servers")]
#![cfg(all(feature = "redis", feature = "tower"))]

use std::{convert::Infallible, time::Duration};

use http::{Request, Response};
use tidegate::{
    Policy,
    middleware::{RateLimitLayer, key::Header},
    redis::Store,
};
use tidegate_redis_servers::Server;
use tower::{Layer, ServiceExt, service_fn};

#[tokio::test]
async fn services_of_two_processes_share_a_limit() {
    let server = Server::start(&[]);
    // Each service has its own store, as another process would.
    let services = [(); 2].map(|()| {
        let store = Store::open(&server.address()).expect("the address is well formed");
        let policy = Policy::sliding_log("3/1h".parse().expect("the quota is well formed"))
            .expect("it is short");
        // The deadline is long, so that a busy machine does not make the test fail.
        let limit = store
            .limit("calls", policy)
            .deadline(Duration::from_mins(1))
            .build()
            .expect("it can be shared");
        let hello = async |_: Request<()>| Ok::<_, Infallible>(Response::new(String::new()));
        RateLimitLayer::new(limit, Header::named("x-api-key")).layer(service_fn(hello))
    });
    let mut told = Vec::new();
    for at in 0..5 {
        let request = Request::builder()
            .header("x-api-key", "alice")
            .body(())
            .expect("it is a request");
        let response = services[at % 2]
            .clone()
            .oneshot(request)
            .await
            .expect("it never fails");
        told.push((
            response.status().as_u16(),
            response.headers()["ratelimit"].clone(),
        ));
    }
    let statuses: Vec<u16> = told.iter().map(|(status, _)| *status).collect();
    assert_eq!(statuses, [200, 200, 200, 429, 429]);
    assert!(
        told[2]
            .1
            .to_str()
            .is_ok_and(|state| state.starts_with("\"default\";r=0;t=")),
        "{told:?}"
    );
}
