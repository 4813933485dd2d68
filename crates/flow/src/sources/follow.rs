//! Following a source: a thread of its own that loads what the source says whenever it changes.

use std::{
    fmt,
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
    /// What went wrong when the source was last asked; `None` if nothing did. The rules from before go on meanwhile.
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
    /// then.
    ///
    /// # Errors
    /// When the source's rules cannot be loaded in the first place; then it is not followed.
    pub fn follow(
        &self,
        mut source: impl RuleSource,
        report: impl Fn(Result<(), &SourceError>) + Send + 'static,
    ) -> Result<Follower, SourceError> {
        load_from(self, &mut source)?;
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let (gate, last) = (self.clone(), failure.clone());
        let thread = Background::spawn("tidegate-rules", source.pause(), move || {
            let result = load_from(&gate, &mut source);
            let said = result.as_ref().err().map(ToString::to_string);
            let is_new = {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *last, said.clone()) != said
            };
            match result {
                Ok(true) => report(Ok(())),
                Err(error) if is_new => report(Err(&error)),
                Ok(false) | Err(_) => {}
            }
        })
        .map_err(SourceError::Read)?;
        Ok(Follower { failure, _thread: thread })
    }
}

/// Loads the source's rules if they have changed; says whether they have.
fn load_from(gate: &Gate, source: &mut impl RuleSource) -> Result<bool, SourceError> {
    let result = source.changed().and_then(|update| match update {
        Some(update) => Ok(gate.apply(update).map(|()| true)?),
        None => Ok(false),
    });
    result.map_err(|error| SourceError::In { source_name: source.name(), error: Box::new(error) })
}
