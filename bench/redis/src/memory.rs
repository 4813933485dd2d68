//! The memory of a log of a thousand admissions in Redis.

use std::time::Duration;

use tidegate_core::{Policy, Quota};
use tidegate_redis::Store;
use tidegate_redis_servers::Server;

pub async fn log_of_a_thousand(server: &Server) {
    let quota: Quota = "1000/1h".parse().expect("the quota is well formed");
    let store = Store::open(&server.address()).expect("the address is well formed");
    let policy = Policy::sliding_log(quota).expect("the log is not too long");
    let limit = store
        .limit("log", policy)
        .deadline(Duration::from_secs(1))
        .build();
    let limit = limit.expect("the policy can be shared");
    for entry in 0..1_000 {
        assert!(limit.acquire("alice", 1).await.is_allowed());
        // As the scripts in common use do: time as the score, and a member that is unique.
        server.ask(&[
            "ZADD",
            "sorted",
            &format!("1763000000{entry:06}"),
            &format!("1763000000{entry:06}-{entry}"),
        ]);
    }
    let usage = |key: &str| {
        server
            .ask(&["MEMORY", "USAGE", key, "SAMPLES", "0"])
            .text()
            .to_owned()
    };
    let key = String::from_utf8(limit.redis_key("alice")).expect("the key is text");
    println!(
        "log of 1,000: {} bytes; the same in a sorted set: {}",
        usage(&key),
        usage("sorted")
    );
}
