//! Following a source: a background thread loads the rules whenever the source changes.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{RuleUpdate, SourceError};
use crate::{Gate, background::Background};

/// A source of rules that may change, such as a file or a key in a store.
///
/// A separate thread calls the source, so it may block.
pub trait RuleSource: Send + 'static {
    /// Returns the source's name for messages, such as a file's path.
    fn name(&self) -> String;

    /// Returns the rules if they have changed since the last call that returned rules. The first call returns the
    /// current rules.
    ///
    /// # Errors
    /// If the source cannot be read or parsed. It will be called again.
    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError>;

    /// Returns the pause before the next call. A source that blocks until a change, with a timeout, returns zero. Default: one
    /// second.
    fn pause(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// Follows a source until it is dropped.
pub struct Follower {
    failure: Arc<Mutex<Option<String>>>,
    _thread: Background,
}

impl Follower {
    /// Returns why the active rules differ from those of the source: the last read failed, or the last rules were
    /// rejected. `None` if they are the same. After a failure the previous rules stay active.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower").field("failure", &self.failure()).finish_non_exhaustive()
    }
}

impl Gate {
    /// Loads new rules of some kinds, as [`update`](Self::update) does.
    ///
    /// # Errors
    /// Same as [`load`](Self::load).
    pub fn apply(&self, update: RuleUpdate) -> Result<(), crate::rules::LoadError> {
        self.update(|rules| update.apply(rules))
    }

    /// Loads the rules of a source, and reloads them on a background thread whenever they change. `report` is called
    /// with `Ok` after each load, and with the error when the source fails in a new way. After a failure the previous
    /// rules stay active. A panic in the source counts as a failure, and the source is called again.
    ///
    /// # Errors
    /// If the first load fails. The source is not followed then.
    pub fn follow(
        &self,
        mut source: impl RuleSource,
        report: impl Fn(Result<(), &SourceError>) + Send + 'static,
    ) -> Result<Follower, SourceError> {
        if let Asked::Refused(error) | Asked::Failed(error) = ask(self, &mut source) {
            return Err(error);
        }
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let (gate, last) = (self.clone(), failure.clone());
        // The error of the last rules, if they were rejected: the source will not return them again.
        let mut refused = None;
        let thread = Background::spawn("tidegate-rules", source.pause(), move || {
            let asked = ask(&gate, &mut source);
            match &asked {
                Asked::Loaded => refused = None,
                Asked::Refused(error) => refused = Some(error.to_string()),
                Asked::Nothing | Asked::Failed(_) => {}
            }
            let said = match &asked {
                Asked::Failed(error) => Some(error.to_string()),
                Asked::Nothing | Asked::Loaded | Asked::Refused(_) => refused.clone(),
            };
            let is_new = {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *last, said.clone()) != said
            };
            match asked {
                Asked::Loaded => report(Ok(())),
                Asked::Refused(error) | Asked::Failed(error) if is_new => report(Err(&error)),
                Asked::Nothing | Asked::Refused(_) | Asked::Failed(_) => {}
            }
        })
        .map_err(SourceError::Read)?;
        Ok(Follower { failure, _thread: thread })
    }
}

/// The result of calling a source.
enum Asked {
    /// The rules have not changed.
    Nothing,
    Loaded,
    /// The rules have changed but cannot be loaded.
    Refused(SourceError),
    /// The source could not be read.
    Failed(SourceError),
}

/// Calls the source, and loads its rules if they have changed.
fn ask(gate: &Gate, source: &mut impl RuleSource) -> Asked {
    let changed = catch_unwind(AssertUnwindSafe(|| source.changed()));
    let name = |error| SourceError::In { source_name: source.name(), error: Box::new(error) };
    match changed.unwrap_or_else(|panic| Err(SourceError::Other(said_in(&*panic).into()))) {
        Ok(None) => Asked::Nothing,
        Ok(Some(update)) => match gate.apply(update) {
            Ok(()) => Asked::Loaded,
            Err(error) => Asked::Refused(name(error.into())),
        },
        Err(error) => Asked::Failed(name(error)),
    }
}

/// Returns the message of a panic in the source's code.
fn said_in(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("reading the rules panicked: {}", text.unwrap_or("no message"))
}
