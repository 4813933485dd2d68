//! Following a source: a thread of its own that loads what the source says whenever it changes.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{RuleUpdate, SourceError};
use crate::{Gate, background::Background};

/// Somewhere that rules come from, and change: a file, a key in a store.
///
/// It is asked on a thread of its own, so it may block.
pub trait RuleSource: Send + 'static {
    /// The source's name for messages, such as a file's path.
    fn name(&self) -> String;

    /// The rules, if they have changed since the last call that returned some; the first call returns what there is.
    ///
    /// # Errors
    /// When the source cannot be read or makes no sense. It is asked again.
    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError>;

    /// How long until it should be asked again; a source that waits for news by itself, up to its own while, returns
    /// zero. Default: a second.
    fn pause(&self) -> Duration {
        Duration::from_secs(1)
    }
}

/// A source that is being followed, until this is dropped.
pub struct Follower {
    failure: Arc<Mutex<Option<String>>>,
    _thread: Background,
}

impl Follower {
    /// Why the rules that run are not what the source says: it could not be asked the last time, or what it said last
    /// was refused. `None` if they are. The rules from before go on meanwhile.
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
    /// Loads new rules of some kinds: as [`update`](Self::update).
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn apply(&self, update: RuleUpdate) -> Result<(), crate::rules::LoadError> {
        self.update(|rules| update.apply(rules))
    }

    /// Loads what a source says, and goes on to load it whenever it changes, on a thread of its own. `report` is called
    /// after each load with `Ok`, and with the error when the source fails in a new way; the rules from before go on
    /// then. A source that panics has failed, and is asked again.
    ///
    /// # Errors
    /// When the source's rules cannot be loaded in the first place; then it is not followed.
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
        // What was said last, if it was refused: the source will not say it again.
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

/// What came of asking a source.
enum Asked {
    /// It had nothing new to say.
    Nothing,
    Loaded,
    /// It said something new that cannot be loaded.
    Refused(SourceError),
    /// It could not say anything.
    Failed(SourceError),
}

/// Asks the source, and loads its rules if they have changed.
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

/// What a panic of the source's own code said.
fn said_in(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("reading the rules panicked: {}", text.unwrap_or("it did not say why"))
}
