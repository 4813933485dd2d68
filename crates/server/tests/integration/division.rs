//! Limits that share the memory of a server: it moves to those in use, and no key gets a fresh
//! allowance.

use crate::harness;

use std::{ops::Range, time::Duration};

use harness::{Resp, Running, frame, replace, scratch};
use tidegate_redis_servers::eventually;
use tidegate_server::{Options, Order};

const MEMORY: u64 = 8 << 20;

/// A server whose limits `l0`, `l1`... share [`MEMORY`], and its rules file.
fn sharing(name: &str, limits: usize) -> (Running, std::path::PathBuf) {
    let path = scratch(name).join("rules.yaml");
    let limit = |at| format!("  - {{name: l{at}, limit: 1/1h, algorithm: fixed-window}}\n");
    std::fs::write(
        &path,
        format!("limits:\n{}", (0..limits).map(limit).collect::<String>()),
    )
    .unwrap();
    let options = Options {
        rules: Some(path.clone()),
        max_memory: Some(MEMORY),
        ..Options::default()
    };
    (Running::start(options), path)
}

/// A number of each limit.
fn numbers(server: &Running, name: &str) -> Vec<(String, u64)> {
    let text = server.get("/metrics").body;
    let start = format!("tidegate_{name}{{limit=\"");
    let of_limit = text
        .lines()
        .filter_map(|line| line.strip_prefix(&start)?.split_once("\"} "));
    of_limit
        .map(|(limit, number)| (limit.to_owned(), number.parse().unwrap()))
        .collect()
}

fn number(server: &Running, name: &str, limit: &str) -> u64 {
    numbers(server, name)
        .into_iter()
        .find(|(named, _)| named == limit)
        .unwrap()
        .1
}

fn bytes_are_bounded(server: &Running) {
    let bytes: u64 = numbers(server, "store_bytes")
        .into_iter()
        .map(|(_, bytes)| bytes)
        .sum();
    assert!(bytes <= MEMORY, "{bytes} bytes are reserved");
}

/// Asks once for each key, and expects replies that begin so.
fn ask(server: &Running, limit: &str, keys: Range<u32>, begins: &str) {
    let mut client = Resp::connect(server.resp);
    for first in keys.clone().step_by(100) {
        let some = first..keys.end.min(first + 100);
        client.send(
            &some
                .clone()
                .flat_map(|key| frame(&format!("ACQUIRE {limit} {key}")))
                .collect::<Vec<_>>(),
        );
        for key in some {
            let reply = client.reply();
            assert!(reply.starts_with(begins), "{limit}, key {key}: {reply}");
        }
    }
}

/// Uses up many keys of a limit, whose table may grow meanwhile.
fn use_up(server: &Running, limit: &str, keys: u32) {
    for first in (0..keys).step_by(100) {
        ask(server, limit, first..first + 100, "[0 ");
        eventually("there is room for more keys", || {
            bytes_are_bounded(server);
            4 * number(server, "keys", limit) <= 3 * number(server, "keys_max", limit)
        });
    }
    ask(server, limit, 0..keys, "[1 ");
}

#[test]
fn memory_moves_to_the_limits_in_use_and_no_key_gets_a_fresh_allowance() {
    let (server, _) = sharing("division-moves", 8);
    let most = |limit| number(&server, "keys_max", limit);
    let first = most("l0");
    use_up(&server, "l0", 20_000);
    assert!(most("l0") >= 4 * first, "{} of {first}", most("l0"));
    server.advance(Duration::from_hours(2));
    use_up(&server, "l1", 20_000);
    assert!(
        most("l1") >= 4 * first && most("l0") < most("l1"),
        "{} and {}",
        most("l0"),
        most("l1")
    );
}

#[test]
fn a_change_of_the_rules_under_load_never_admits_a_key_twice() {
    let (mut server, path) = sharing("division-rules", 4);
    use_up(&server, "l0", 3_000);
    let orders = server.orders();
    for text in [
        "limits: [{name: l0, limit: 1/1h, algorithm: fixed-window, max_keys: 5000}, {name: l1, limit: 1/1h}]",
        "limits: [{name: l0, limit: 1/1h, algorithm: fixed-window}, {name: new, limit: 1/1h}]",
    ] {
        server.reloading(|| {
            replace(&path, text);
            orders.blocking_send(Order::Reload).unwrap();
        });
        bytes_are_bounded(&server);
        ask(&server, "l0", 0..3_000, "[1 ");
    }
}
