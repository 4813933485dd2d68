//! Operators' actions: one log line for each action, a line of JSON in the file of `--audit`, and
//! the last ones for a page.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;
use serde::Serialize;
use tidegate_core::Nanos;

use crate::files::{append, json_line, open_to_append};
use crate::once_a_minute::OnceAMinute;

/// How many actions are kept for the page and `GET /v1/audit`.
const KEPT: usize = 500;
/// How many blocks and overrides are remembered with who gave them and why.
const ORDERS: usize = 20_000;
/// While there is no room, the log looks for those that have ended this often, in milliseconds:
/// the look takes all of them.
const LOOKS_EVERY: u64 = 1_000;
/// How many lines may wait for the file system. Each takes some 300 bytes, and its limit, key and
/// note.
const WAITING: usize = 16_384;

/// An action of an operator, as it took effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Action {
    /// Milliseconds since 1970.
    pub time_ms: u64,
    /// The name of the client in the access file, `local client`, or `this server`.
    pub client: String,
    /// `block`, `unblock`, `override`, `end-override`, `reset`, `refund`, `reload`, `save`, `push`,
    /// `mark` (an event that an operator or a deployment tells the charts), or `restore-orders` after the store had lost blocks and overrides.
    pub action: &'static str,
    /// The limit that it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The key that it concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The quota of an override, the units of a refund, the name of the program that gets rules, or
    /// the file that keeps the rules before a save.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// For how long, in milliseconds; none for no end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub for_ms: Option<u64>,
    /// Why, in the operator's words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Action {
    /// An action of a client.
    pub fn new(client: &str, action: &'static str) -> Self {
        Self {
            client: client.to_owned(),
            action,
            ..Self::default()
        }
    }

    /// The same on a key of a limit.
    pub fn on(self, limit: &[u8], key: Option<&[u8]>) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        Self {
            limit: Some(text(limit)),
            key: key.map(text),
            ..self
        }
    }

    /// The same with a value.
    pub fn with(self, value: &impl ToString) -> Self {
        Self {
            value: Some(value.to_string()),
            ..self
        }
    }

    /// The same for a time.
    pub fn lasting(self, span: Option<Duration>) -> Self {
        let for_ms = span.map(|span| u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
        Self { for_ms, ..self }
    }
}

/// The actions of operators.
#[derive(Debug, Default)]
pub struct Audit {
    recent: Mutex<VecDeque<Arc<Action>>>,
    /// The last block and the last override of each limit and key, unless it was ended.
    orders: Mutex<Orders>,
    writer: Writer,
    lost: OnceAMinute,
}

#[derive(Debug, Default)]
struct Orders {
    known: BTreeMap<Order, Arc<Action>>,
    /// When those that have ended were last looked for.
    looked_ms: u64,
}

impl Orders {
    /// Adds an order, if there is room.
    fn add(&mut self, order: Order, action: &Arc<Action>) {
        let now = action.time_ms;
        if self.known.len() >= ORDERS && now.abs_diff(self.looked_ms) >= LOOKS_EVERY {
            self.looked_ms = now;
            self.known.retain(|_, old| {
                old.for_ms
                    .is_none_or(|span| old.time_ms.saturating_add(span) > now)
            });
        }
        if self.known.len() < ORDERS {
            self.known.insert(order, Arc::clone(action));
        }
    }
}

/// `block` or `override`, the limit, and the key.
type Order = (&'static str, String, String);

/// The thread that writes the file: a file system may hang, and a thread that serves must not.
#[derive(Debug, Default)]
struct Writer(Option<(mpsc::SyncSender<Arc<Action>>, JoinHandle<()>)>);

impl Audit {
    /// Appends to this file, which only its owner may read if it is new. A file that was moved away
    /// is created again.
    ///
    /// # Errors
    /// When the file cannot be opened for appending, or the thread cannot be started.
    pub fn appending_to(path: PathBuf) -> io::Result<Self> {
        // A named pipe that nothing reads would be waited for.
        open_to_append(&path, OFlags::NONBLOCK)?;
        let (lines, waiting) = mpsc::sync_channel::<Arc<Action>>(WAITING);
        let thread = thread::Builder::new().name("audit".to_owned()).spawn(move || {
            for action in waiting {
                if let Err(error) = open_to_append(&path, OFlags::empty()).and_then(|file| append(&file, &json_line(&*action))) {
                    tracing::error!(file = %path.display(), %error, "an operator's action is missing in the audit file");
                }
            }
        })?;
        Ok(Self {
            writer: Writer(Some((lines, thread))),
            ..Self::default()
        })
    }

    /// Records an action at this time.
    pub fn record(&self, now: Nanos, action: Action) {
        let action = Arc::new(Action {
            time_ms: now.get() / 1_000_000,
            ..action
        });
        let Action {
            client,
            action: did,
            limit,
            key,
            value,
            for_ms,
            note,
            ..
        } = &*action;
        tracing::info!(
            client,
            action = did,
            limit,
            key,
            value,
            for_ms,
            note,
            "operator"
        );
        // A thread that serves never waits for a disk. The thread that writes ends only after the
        // sender.
        if let Some((lines, _)) = &self.writer.0
            && lines.try_send(Arc::clone(&action)).is_err()
            && self.lost.is_due(now)
        {
            tracing::error!(
                "the audit file is {WAITING} actions behind: those that follow are only in this log"
            );
        }
        self.remember(&action);
        let mut recent = self.kept();
        recent.truncate(KEPT - 1);
        recent.push_front(action);
    }

    fn remember(&self, action: &Arc<Action>) {
        let Action {
            action: did,
            limit,
            key,
            ..
        } = &**action;
        let order = |kind| {
            (
                kind,
                limit.clone().unwrap_or_default(),
                key.clone().unwrap_or_default(),
            )
        };
        let mut orders = self.orders.lock();
        match *did {
            "unblock" => drop(orders.known.remove(&order("block"))),
            "end-override" => drop(orders.known.remove(&order("override"))),
            "block" | "override" => orders.add(order(did), action),
            _ => {}
        }
    }

    /// The keys of a limit that operators blocked, or gave a quota (`block` or `override`). Their
    /// time may have ended.
    pub fn keys_of(&self, kind: &'static str, limit: &str) -> Vec<String> {
        let orders = self.orders.lock();
        let from = (kind, limit.to_owned(), String::new());
        let of_limit = orders
            .known
            .range(from..)
            .take_while(|((of, name, _), _)| *of == kind && name == limit);
        of_limit.map(|((.., key), _)| key.clone()).collect()
    }

    /// The last of these actions on a key.
    pub fn order(&self, kind: &'static str, limit: &str, key: &str) -> Option<Arc<Action>> {
        let orders = self.orders.lock();
        orders
            .known
            .get(&(kind, limit.to_owned(), key.to_owned()))
            .cloned()
    }

    /// The last actions, the newest first.
    pub fn recent(&self) -> Vec<Arc<Action>> {
        self.kept().iter().cloned().collect()
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<Arc<Action>>> {
        // A panic cannot leave the list half changed.
        self.recent.lock()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some((lines, thread)) = self.0.take() {
            // The end of the channel ends the thread, after the lines that wait.
            drop(lines);
            // A panic has already logged itself.
            let _ = thread.join();
        }
    }
}
