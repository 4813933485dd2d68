//! `TOP`: the keys of a limit with the most requests and the most denials.

use tidegate_service::observe::heavy::TopKey;

use crate::{
    limiting::{number, refuse, refuse_number},
    session::Context,
};

/// The default number of keys.
const USUAL: usize = 10;

/// `limit [count]` → a map: the seconds counted, the sampling rate, and the two lists. Each key
/// comes with its count and the bounds of the true count.
pub(super) fn top(context: &mut Context<'_>, args: &[&[u8]]) {
    let most = match args.get(1) {
        None => USUAL,
        Some(text) => match number(text).and_then(|most| usize::try_from(most).ok()) {
            Some(most @ 1..=100_000) => most,
            _ => return refuse_number(context, "count", text, "a whole number from 1 to 100000"),
        },
    };
    let top = match context.shared.service.top(args[0], most, context.now) {
        Ok(top) => top,
        Err(refusal) => return refuse(context, "top", &refusal),
    };
    let mut replies = context.replies();
    replies.map(4);
    replies.bulk(b"seconds");
    replies.count(top.span.get() / 1_000_000_000);
    replies.bulk(b"one_in");
    replies.count(top.one_in);
    for (name, keys) in [("asked_most", &top.asked), ("denied_most", &top.denied)] {
        replies.bulk(name.as_bytes());
        replies.array(keys.len());
        for TopKey {
            key,
            count,
            at_least,
            at_most,
            ..
        } in keys
        {
            replies.array(4);
            replies.bulk(key);
            for number in [count, at_least, at_most] {
                replies.count(*number);
            }
        }
    }
}
