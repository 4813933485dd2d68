//! A key in a page: its link, and the buttons that act on it.

use maud::{Markup, html};
use serde_json::{Value, json};
use tidegate_chart::Mark;
use tidegate_core::{DenialReason, Nanos};
use tidegate_service::{
    decide::limits::Limit,
    observe::{
        history::OUTCOMES,
        trace::{Event, Verdict},
    },
};

use super::{
    layout::{Action, Terms, Undo, post},
    shown,
};
use crate::{control::chart, edges::http::App};

/// A key of a limit, which buttons act on.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub limit: &'a str,
    pub key: &'a str,
}

/// A key as it is shown, with a link to its page; and as a request can name it, if it is displayed
/// unchanged.
pub(super) fn linked<'k>(name: &str, key: &'k [u8]) -> (Markup, Option<&'k str>) {
    let shown = shown::text(&String::from_utf8_lossy(key));
    let named = str::from_utf8(key).ok().filter(|text| *text == shown);
    let link = html! {
        @if named.is_some() {
            a href={ "/limit?name=" (shown::encoded(name)) "&key=" (shown::encoded(&shown)) } { (shown) }
        } @else { (shown) }
    };
    (link, named)
}

/// The button that helps against a key whose next request has this result, or why none does.
pub(super) fn against(app: &App, limit: &Limit, key: &str, reason: Option<DenialReason>) -> Markup {
    let named = Named {
        limit: &limit.spec().name,
        key,
    };
    let why = match reason {
        _ if app.service.refuses_orders(limit) => "the store is down",
        Some(DenialReason::StoreDown) => "the store is down",
        Some(DenialReason::DenyListed) => "it is on the deny list",
        Some(DenialReason::TableFull) => "the table is full",
        Some(DenialReason::Blocked) => {
            return html! { div class="buttons" { (named.unblock(&Value::Null, Nanos::ZERO)) } };
        }
        _ => return html! { div class="buttons" { (named.block(&Value::Null, Nanos::ZERO)) } },
    };
    html! { small { "a block does not help: " (why) } }
}

/// The requests of a key over the last 15 minutes, from the trace.
pub(super) fn history(app: &App, limit: &Limit, key: &str, marks: &[Mark]) -> Markup {
    const BAR: u64 = 5;
    const BARS: usize = 180;
    let now = app.service.now().get() / 1_000_000_000;
    let end = now - now % BAR;
    let from = end.saturating_sub(BAR * BARS as u64);
    let events = app.service.trace().and_then(|trace| {
        let from = from.saturating_mul(1_000_000_000);
        trace.since(&limit.spec().name, key.as_bytes(), from)
    });
    let Some(events) = events else {
        return html! {
            p { small { "The history of a key needs a trace in which it is: start the server with --trace-keys 100%, or a part of all keys." } }
        };
    };
    let mut bars = vec![[0; OUTCOMES.len()]; BARS];
    for event in &events {
        let at = (event.time / 1_000_000_000).saturating_sub(from) / BAR;
        if let Some(bar) = bars.get_mut(at as usize) {
            count(bar, event);
        }
    }
    let title = format!("{}, last 15 minutes", shown::text(key));
    let line = chart::rate_of(&limit.policy_of(key.as_bytes()));
    chart::drawn(&bars, (end, BAR), &title, line, marks)
}

/// Counts a request of the trace as the history counts it.
fn count(bar: &mut [u64; OUTCOMES.len()], event: &Event) {
    let [allowed, delayed, denied, shadow, _, blocked, full, store] = bar;
    match event.verdict {
        Verdict::Admitted => *allowed += 1,
        Verdict::Delayed => *delayed += 1,
        Verdict::ShadowDenied => *shadow += 1,
        Verdict::Refunded | Verdict::Charged => {}
        Verdict::Denied => {
            *denied += 1;
            match event.reason {
                Some(DenialReason::Blocked | DenialReason::DenyListed) => *blocked += 1,
                Some(DenialReason::TableFull) => *full += 1,
                Some(DenialReason::StoreDown) => *store += 1,
                _ => {}
            }
        }
    }
}

impl Named<'_> {
    fn of(self) -> String {
        format!("{} in {}", shown::text(self.key), shown::text(self.limit))
    }

    fn fields(self) -> Value {
        json!({"limit": self.limit, "key": self.key})
    }

    /// The fields of a request that gives an order again, as it is now.
    fn again(self, order: &Value, now: Nanos) -> Value {
        let mut fields = self.fields();
        if let Some(until) = order["until_ms"].as_u64() {
            let left = until.saturating_sub(now.get() / 1_000_000).max(1);
            fields["for"] = json!(format!("{left}ms"));
        }
        for name in ["quota", "note"] {
            if let Some(text) = order[name].as_str() {
                fields[name] = json!(text);
            }
        }
        fields
    }

    /// A button for the key, which posts to a path: `verb` begins its question, `past` the text that says that it is done.
    pub fn action(
        self,
        (path, button): (&str, &str),
        [verb, past]: [&str; 2],
        terms: Terms<'_>,
        more: &[(&str, &str)],
        inputs: Option<&Markup>,
        undo: Option<&Undo>,
    ) -> Markup {
        let (question, done) = (
            format!("{verb} {}?", self.of()),
            format!("{past} {}", self.of()),
        );
        let fields: Vec<_> = [("limit", self.limit), ("key", self.key)]
            .into_iter()
            .chain(more.iter().copied())
            .collect();
        let action = Action {
            path,
            button,
            question: &question,
            done: &done,
            terms,
        };
        post(action, &fields, inputs, undo)
    }

    /// Blocks the key for a time. `block` is the one in force.
    pub fn block(self, block: &Value, now: Nanos) -> Markup {
        let undo = if block.is_object() {
            Undo {
                path: "/v1/block",
                fields: self.again(block, now),
                done: format!("The former block of {} is in force again", self.of()),
            }
        } else {
            Undo {
                path: "/v1/unblock",
                fields: self.fields(),
                done: format!("Unblocked {}", self.of()),
            }
        };
        let words = ["Block", "Blocked"];
        let terms = Terms::SpanAndNote("1h");
        self.action(("/v1/block", "Block"), words, terms, &[], None, Some(&undo))
    }

    /// Ends the block of the key.
    pub fn unblock(self, block: &Value, now: Nanos) -> Markup {
        let undo = block.is_object().then(|| Undo {
            path: "/v1/block",
            fields: self.again(block, now),
            done: format!("Blocked {} again", self.of()),
        });
        let words = ["Unblock", "Unblocked"];
        self.action(
            ("/v1/unblock", "Unblock"),
            words,
            Terms::Note,
            &[],
            None,
            undo.as_ref(),
        )
    }

    /// Ends the key's own quota.
    pub fn end_override(self, own: &Value, now: Nanos) -> Markup {
        let undo = Undo {
            path: "/v1/override",
            fields: self.again(own, now),
            done: format!("{} has its own quota again", self.of()),
        };
        let words = ["End own quota of", "Ended own quota of"];
        let end = [("end", "true")];
        self.action(
            ("/v1/override", "End own quota"),
            words,
            Terms::Note,
            &end,
            None,
            Some(&undo),
        )
    }

    /// Gives the key a quota. `own` is the one that it has.
    fn override_quota(self, own: &Value, now: Nanos) -> Markup {
        let quota = html! {
            label for="quota" { "Own quota" }
            input id="quota" name="quota" placeholder="1000/1m" autocomplete="off" required;
        };
        let (fields, done) = if own.is_object() {
            let done = format!("{} has its former quota again", self.of());
            (self.again(own, now), done)
        } else {
            let mut fields = self.fields();
            fields["end"] = json!(true);
            (fields, format!("Ended own quota of {}", self.of()))
        };
        let undo = Undo {
            path: "/v1/override",
            fields,
            done,
        };
        let words = ["Override the quota of", "Overrode the quota of"];
        self.action(
            ("/v1/override", "Override"),
            words,
            Terms::SpanAndNote(""),
            &[],
            Some(&quota),
            Some(&undo),
        )
    }

    /// All actions that help, by what is known about the key. Without orders, there are none.
    pub fn actions(self, explained: &Value, now: Nanos, refuses_orders: bool) -> Markup {
        if refuses_orders {
            return html! { p { "No action is possible: the store, which has the orders about keys, is down." } };
        }
        let units = html! {
            label for="cost" { "Units" }
            input id="cost" name="cost" type="number" min="1" max="9007199254740991" value="1" required;
        };
        let (block, own) = (&explained["block"], &explained["override"]);
        let reset = ["Reset what was used by", "Reset what was used by"];
        let refund = ["Refund", "Refunded"];
        html! {
            div class="buttons" {
                @if explained["block_helps"] == true { (self.block(block, now)) }
                @if block.is_object() { (self.unblock(block, now)) }
                (self.action(("/v1/reset", "Reset"), reset, Terms::Note, &[], None, None))
                @if own.is_object() { (self.end_override(own, now)) }
                (self.action(("/v1/refund", "Refund"), refund, Terms::Nothing, &[], Some(&units), None))
                // Tenants share their limit, so a key cannot have a quota.
                @if explained["tenant"].is_null() { (self.override_quota(own, now)) }
            }
        }
    }
}
