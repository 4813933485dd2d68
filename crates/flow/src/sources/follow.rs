//! Following a source: a background thread loads the rules whenever the source changes.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{RuleUpdate, SourceError};
use crate::{Gate, background::Background, rules::RuleError};

/// A source of rules that may change, such as a file or a key in a store.
///
/// A separate thread calls the source, so it may block.
pub trait RuleSource: Send + 'static {
    /// Returns the source's name for messages, such as a file's path.
    fn name(&self) -> String;

    /// Returns the rules if they have changed since the last call that returned rules. The first
    /// call returns the current rules.
    ///
    /// # Errors
    /// If the source cannot be read or parsed. It will be called again.
    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError>;

    /// Returns the pause before the next call. A source that blocks until a change, with a timeout,
    /// returns zero. Default: one second.
    fn pause(&self) -> Duration {
        Duration::from_secs(1)
    }

    /// Whether good rules are loaded although others are bad, also after the start. Default: no,
    /// the previous rules stay active.
    fn loads_good_rules(&self) -> bool {
        false
    }
}

/// A source whose good rules are loaded whenever it changes, although others are bad, instead of
/// all or none.
///
/// ```no_run
/// # use tidegate_flow::{Gate, sources::{FileSource, GoodRules}};
/// # let gate = Gate::new();
/// let _following = gate.follow(GoodRules(FileSource::yaml("rules.yaml")), |loaded| eprintln!("rules: {loaded:?}"))?;
/// # Ok::<(), tidegate_flow::sources::SourceError>(())
/// ```
#[derive(Clone, Debug)]
pub struct GoodRules<S>(
    /// The source.
    pub S,
);

impl<S: RuleSource> RuleSource for GoodRules<S> {
    fn name(&self) -> String {
        self.0.name()
    }

    fn changed(&mut self) -> Result<Option<RuleUpdate>, SourceError> {
        self.0.changed()
    }

    fn pause(&self) -> Duration {
        self.0.pause()
    }

    fn loads_good_rules(&self) -> bool {
        true
    }
}

/// Follows a source until it is dropped.
pub struct Follower {
    failure: Arc<Mutex<Option<String>>>,
    _thread: Background,
}

impl Follower {
    /// Returns why the active rules differ from those of the source: the last read failed, or the
    /// last rules were rejected in part or as a whole. `None` if they are the same.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl fmt::Debug for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follower")
            .field("failure", &self.failure())
            .finish_non_exhaustive()
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

    /// Loads those of the new rules that are valid, and returns the others.
    #[must_use]
    pub fn apply_good(&self, update: RuleUpdate) -> Vec<RuleError> {
        let mut bad = Vec::new();
        let loaded = self.update(|rules| {
            update.apply(rules);
            bad = rules
                .remove_invalid()
                .err()
                .map(|error| error.rules)
                .unwrap_or_default();
        });
        debug_assert!(loaded.is_ok(), "what is left is valid");
        bad
    }

    /// Loads the rules of a source, and reloads them on a background thread whenever they change.
    /// `report` is called with `Ok` after each load, and with the error when the source fails in a
    /// new way.
    ///
    /// At the start, good rules are loaded although others are bad, because the program would
    /// otherwise run without any; `report` and [`Follower::failure`] say what is wrong with the
    /// others. Later, rules are loaded as a whole or not at all (unless the source is in
    /// [`GoodRules`]): after a failure the previous rules stay active. A panic in the source counts
    /// as a failure, and the source is called again.
    ///
    /// # Errors
    /// If the first load fails, or has no good rule. The source is not followed then.
    pub fn follow(
        &self,
        mut source: impl RuleSource,
        report: impl Fn(Result<(), &SourceError>) + Send + 'static,
    ) -> Result<Follower, SourceError> {
        let mut asking = Asking {
            gate: self.clone(),
            takes_good: true,
            taken: None,
        };
        // The error of the last rules, if they were rejected: the source may not return them again.
        let mut refused = None;
        match asking.ask(&mut source) {
            Pulled::Refused(error) | Pulled::Failed(error) => return Err(error),
            Pulled::Partly(error) => {
                report(Err(&error));
                refused = Some(error.to_string());
            }
            Pulled::Nothing | Pulled::Loaded => {}
        }
        asking.takes_good = source.loads_good_rules();
        let failure = Arc::new(Mutex::new(refused.clone()));
        let last = failure.clone();
        let thread = Background::spawn("tidegate-rules", source.pause(), move || {
            let asked = asking.ask(&mut source);
            match &asked {
                Pulled::Loaded => refused = None,
                Pulled::Refused(error) | Pulled::Partly(error) => refused = Some(error.to_string()),
                Pulled::Nothing | Pulled::Failed(_) => {}
            }
            let said = match &asked {
                Pulled::Failed(error) => Some(error.to_string()),
                Pulled::Nothing | Pulled::Loaded | Pulled::Refused(_) | Pulled::Partly(_) => {
                    refused.clone()
                }
            };
            let is_new = {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *last, said.clone()) != said
            };
            match asked {
                Pulled::Loaded => report(Ok(())),
                Pulled::Refused(error) | Pulled::Partly(error) | Pulled::Failed(error)
                    if is_new =>
                {
                    report(Err(&error));
                }
                _ => {}
            }
        })
        .map_err(SourceError::Read)?;
        Ok(Follower {
            failure,
            _thread: thread,
        })
    }
}

/// The result of calling a source.
enum Pulled {
    /// The rules have not changed.
    Nothing,
    Loaded,
    /// The good rules are loaded, and others are not.
    Partly(SourceError),
    /// The rules have changed but cannot be loaded.
    Refused(SourceError),
    /// The source could not be read.
    Failed(SourceError),
}

/// Loads what a source returns.
struct Asking {
    gate: Gate,
    /// Whether good rules are loaded although others are bad.
    takes_good: bool,
    /// The good rules that were loaded last, which a source that still fails returns again.
    taken: Option<RuleUpdate>,
}

impl Asking {
    /// Calls the source, and loads its rules if they have changed.
    fn ask(&mut self, source: &mut impl RuleSource) -> Pulled {
        let changed = catch_unwind(AssertUnwindSafe(|| source.changed()));
        let name = |error| SourceError::In {
            source_name: source.name(),
            error: Box::new(error),
        };
        let changed =
            changed.unwrap_or_else(|panic| Err(SourceError::Other(said_in(&*panic).into())));
        let (update, error) = match changed {
            Ok(None) => return Pulled::Nothing,
            Ok(Some(update)) => match self.gate.apply(update.clone()) {
                Ok(()) => {
                    self.taken = None;
                    return Pulled::Loaded;
                }
                Err(error) => (update, error.into()),
            },
            Err(SourceError::Partial { good, why })
                if self.takes_good && self.taken.as_ref() != Some(&*good) =>
            {
                ((*good).clone(), SourceError::Partial { good, why })
            }
            Err(error) => return Pulled::Failed(name(error)),
        };
        if !self.takes_good || !update.has_good_rules() {
            return Pulled::Refused(name(error));
        }
        // The error names the others.
        let _ = self.gate.apply_good(update.clone());
        self.taken = Some(update);
        Pulled::Partly(name(error))
    }
}

/// Returns the message of a panic in the source's code.
fn said_in(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!(
        "reading the rules panicked: {}",
        text.unwrap_or("no message")
    )
}
