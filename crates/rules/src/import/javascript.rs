//! The options of rate-limiter-flexible and express-rate-limit.

use std::time::Duration;

use tidegate_config::{Complaints, Fields, Node};
use tidegate_core::MAX_LIMIT;

use super::{FIRST_HIT, Made, note, refuse};

pub(super) fn flexible(
    node: &Node,
    number: usize,
    complaints: &Complaints,
    made: &mut Made,
) -> Option<()> {
    const KNOWN: [&str; 10] = [
        "keyPrefix",
        "points",
        "duration",
        "blockDuration",
        "execEvenly",
        "execEvenlyMinDelayMs",
        "inMemoryBlockOnConsumed",
        "inMemoryBlockDuration",
        "rejectIfRedisNotReady",
        "useRedisPackage",
    ];
    let fields = Fields::open(node, "rate-limiter-flexible", &KNOWN, complaints)?;
    let seconds = |name| fields.units(name, 0..=MAX_LIMIT);
    let points = match fields.get("points") {
        Some(_) => fields.units("points", 0..=MAX_LIMIT)?,
        None => 4,
    };
    let duration = match fields.get("duration") {
        Some(_) => seconds("duration")?,
        None => 1,
    };
    if duration == 0 {
        let what = "`duration: 0` has no equal rule: its counts never end";
        complaints.at(fields.line_of("duration"), what, "give it an end");
    }
    let block = match fields.get("blockDuration") {
        Some(_) => seconds("blockDuration")?,
        None => 0,
    };
    if block > 0 && block < duration {
        let what = "`blockDuration` below `duration` has no equal rule: after the block theirs begins with a fresh count, and Tidegate's window goes on";
        complaints.at(
            fields.line_of("blockDuration"),
            what,
            "make it at least the duration",
        );
    }
    refuse(
        &fields,
        "execEvenly",
        "false",
        "it delays a client that keeps to the rate; `leaky-bucket` with `max_wait` delays only early requests",
    );
    refuse(
        &fields,
        "inMemoryBlockDuration",
        "0",
        "it blocks in one process alone",
    );
    note(
        &fields,
        &[
            "execEvenlyMinDelayMs",
            "inMemoryBlockOnConsumed",
            "rejectIfRedisNotReady",
            "useRedisPackage",
        ],
        "changes no decision, and was left out",
        &mut made.notes,
    );
    let name = fields.get("keyPrefix").and_then(Node::text);
    let name = name.map_or_else(|| format!("limit-{number}"), ToOwned::to_owned);
    let algorithm = if block > 0 {
        format!("{FIRST_HIT}:block-for={block}s")
    } else {
        FIRST_HIT.to_owned()
    };
    let amount = (points, Some(Duration::from_secs(duration)));
    let comment = "rate-limiter-flexible; points are the cost of a request";
    made.add(comment, name, &algorithm, amount, (node.line, complaints));
    Some(())
}

pub(super) fn express(
    node: &Node,
    number: usize,
    complaints: &Complaints,
    made: &mut Made,
) -> Option<()> {
    const ANSWER: [&str; 7] = [
        "message",
        "statusCode",
        "legacyHeaders",
        "standardHeaders",
        "identifier",
        "requestPropertyName",
        "validate",
    ];
    let known: Vec<&str> = [
        "windowMs",
        "limit",
        "max",
        "ipv6Subnet",
        "passOnStoreError",
        "skipFailedRequests",
        "skipSuccessfulRequests",
    ]
    .into_iter()
    .chain(ANSWER)
    .collect();
    let fields = Fields::open(node, "express-rate-limit", &known, complaints)?;
    let window = match fields.get("windowMs") {
        Some(_) => fields.units("windowMs", 1..=MAX_LIMIT)?,
        None => 60_000,
    };
    let limit = match (fields.get("limit"), fields.get("max")) {
        (Some(_), Some(node)) => {
            let what = "`max` is the former name of `limit`";
            complaints.at(node.line, what, "keep one of them");
            return Some(());
        }
        (Some(_), None) => fields.units("limit", 0..=MAX_LIMIT)?,
        (None, Some(_)) => fields.units("max", 0..=MAX_LIMIT)?,
        (None, None) => 5,
    };
    for name in ["skipFailedRequests", "skipSuccessfulRequests"] {
        let why = "it takes a request back by its outcome; reserve a unit before the work, and cancel the reservation";
        refuse(&fields, name, "false", why);
    }
    note(
        &fields,
        &ANSWER,
        "concerns the answer, not the decision",
        &mut made.notes,
    );
    note(
        &fields,
        &["ipv6Subnet"],
        "concerns the key, which the caller gives: the address's network",
        &mut made.notes,
    );
    note(
        &fields,
        &["passOnStoreError"],
        "is `on_error: open` of a limit that servers share",
        &mut made.notes,
    );
    let amount = (limit, Some(Duration::from_millis(window)));
    let name = format!("limit-{number}");
    made.add(
        "express-rate-limit",
        name,
        FIRST_HIT,
        amount,
        (node.line, complaints),
    );
    Some(())
}
