//! Reports to `tidegate serve`: the statistics of each resource, for the server's page, and the
//! rules that operators push from there (feature `report`).
//!
//! ```no_run
//! use tidegate_flow::Gate;
//! use tidegate_flow_net::report::Report;
//!
//! let gate = Gate::new();
//! let report = Report::to("http://127.0.0.1:8082", "shop").token("tg_…");
//! let reporter = report.start(&gate, |outcome| if let Err(error) = outcome { eprintln!("{error}") })?;
//! assert_eq!(reporter.failure(), None);
//! # Ok::<(), tidegate_flow_net::report::ReportError>(())
//! ```
//!
//! A background thread sends a report each second over HTTP, to the address of the server's
//! `--admin`. Calls never wait for it: a server that is slow or gone costs the program nothing but
//! that thread's attempts. The seconds that could not be sent are sent with the next report, up to
//! a minute back.
//!
//! The answer to a report holds the rules that operators pushed for this application, if the
//! program does not have them yet. The gate loads them as [`Gate::load`] does: they replace the
//! rules of all kinds, and invalid ones are rejected as a whole. They stay when the server goes
//! away. A program that starts has its own rules until the first answer.

mod client;
mod message;

use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use client::ReportClient;
use message::{Collect, OwnRules, ReportReply};
use tidegate_flow::{
    Background, Gate,
    rules::LoadError,
    sources::{RuleUpdate, SourceError, yaml},
};

/// How often a report is sent.
const EVERY: Duration = Duration::from_secs(1);

/// Where a gate reports, and as what.
#[derive(Clone)]
pub struct Report {
    url: String,
    app: String,
    instance: String,
    token: Option<String>,
    authority: Option<PathBuf>,
}

impl Report {
    /// Reports to the server whose control plane has this URL, as an instance of this application.
    /// The instance is called by the machine's name and the process's number.
    #[must_use]
    pub fn to(url: impl Into<String>, app: impl Into<String>) -> Self {
        let instance = format!("{}-{}", crate::host::name(), std::process::id());
        Self {
            url: url.into(),
            app: app.into(),
            instance,
            token: None,
            authority: None,
        }
    }

    /// Sets the name of this instance, which must differ from those of the application's other
    /// instances.
    #[must_use]
    pub fn instance(self, instance: impl Into<String>) -> Self {
        Self {
            instance: instance.into(),
            ..self
        }
    }

    /// Shows this token. The server's access file gives it the role `report`.
    #[must_use]
    pub fn token(self, token: impl Into<String>) -> Self {
        Self {
            token: Some(token.into()),
            ..self
        }
    }

    /// Trusts the certificates in this file (PEM) instead of the machine's authorities.
    #[must_use]
    pub fn authority(self, file: impl Into<PathBuf>) -> Self {
        Self {
            authority: Some(file.into()),
            ..self
        }
    }

    /// Reports the gate's resources each second from a background thread, and loads the rules that
    /// operators push: see the [module](self). `on_outcome` is called with `Ok` when rules from the
    /// server were loaded, and with the error when reporting begins to fail or fails in a new way.
    ///
    /// # Errors
    /// If the options are unusable, or the thread cannot be started. A server that does not answer
    /// is not an error here.
    pub fn start(
        self,
        gate: &Gate,
        on_outcome: impl Fn(Result<(), &ReportError>) + Send + 'static,
    ) -> Result<Reporter, ReportError> {
        let client = ReportClient::new(&self)?;
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let (gate, last) = (gate.clone(), Arc::clone(&failure));
        let mut state = Reporting {
            gate,
            client,
            report: self,
            collect: Collect::default(),
            rules: Rules::default(),
            sent_version: None,
        };
        let work = move || {
            let done = state.once();
            let failed = done.as_ref().err().map(ToString::to_string);
            let was = {
                let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::replace(&mut *last, failed.clone())
            };
            match done {
                Ok(true) => on_outcome(Ok(())),
                Err(error) if was != failed => on_outcome(Err(&error)),
                Ok(false) | Err(_) => {}
            }
        };
        let thread =
            Background::spawn("tidegate-report", EVERY, work).map_err(ReportError::Thread)?;
        Ok(Reporter {
            failure,
            _thread: thread,
        })
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            url, app, instance, ..
        } = self;
        f.debug_struct("Report")
            .field("url", url)
            .field("app", app)
            .field("instance", instance)
            .finish_non_exhaustive()
    }
}

/// Why a gate could not report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The URL, the application's name, the token or the authority cannot be used.
    #[error("the report cannot be sent: {0}")]
    Options(String),
    /// The thread could not be started.
    #[error("the report's thread cannot be started: {0}")]
    Thread(#[source] io::Error),
    /// The server did not answer.
    #[error("{url} does not answer: {why}")]
    Away {
        /// The server.
        url: String,
        /// The client's error.
        why: String,
    },
    /// The server refused the report.
    #[error("{url} refused the report with {status}: {why}")]
    Refused {
        /// The server.
        url: String,
        /// The status code of its answer.
        status: u16,
        /// The reason that it gave.
        why: String,
    },
    /// The rules that operators pushed are malformed.
    #[error("the rules from the server were rejected, and the previous rules stay active: {0}")]
    Format(#[source] SourceError),
    /// The rules that operators pushed are invalid.
    #[error("the rules from the server were rejected, and the previous rules stay active: {0}")]
    Rules(#[source] LoadError),
}

/// Reports until it is dropped. Dropping it waits for a report that is under way, at most two
/// seconds.
pub struct Reporter {
    failure: Arc<Mutex<Option<String>>>,
    _thread: Background,
}

impl Reporter {
    /// Returns why the last report failed, or why the rules that it brought were rejected. `None`
    /// before the first report and after one that succeeded.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("failure", &self.failure())
            .finish_non_exhaustive()
    }
}

/// The rules that came from the server.
#[derive(Default)]
struct Rules {
    /// The version that was loaded or rejected last.
    version: Option<String>,
    /// Why it was rejected.
    rejected: Option<String>,
}

struct Reporting {
    gate: Gate,
    client: ReportClient,
    report: Report,
    collect: Collect,
    rules: Rules,
    /// The version of the gate's rules that the server has.
    sent_version: Option<u64>,
}

impl Reporting {
    /// Sends one report. Returns true if its answer brought rules that were loaded.
    fn once(&mut self) -> Result<bool, ReportError> {
        let loaded = self.gate.rules_version();
        let own = (self.sent_version != Some(loaded)).then(|| OwnRules::of(&self.gate));
        let body = self
            .collect
            .body(&self.gate, &self.report, &self.rules, own.as_ref());
        let ReportReply { rules, wants_own } = self.client.send(&body)?;
        self.collect.sent();
        self.sent_version = (!wants_own).then_some(loaded);
        let Some(pushed) = rules else {
            return Ok(false);
        };
        let loaded = yaml::parse(&pushed.text)
            .map_err(ReportError::Format)
            .and_then(|rules| {
                self.gate
                    .apply(RuleUpdate::from(rules))
                    .map_err(ReportError::Rules)
            });
        // Rejected rules are not asked for again: the server learns that they were rejected.
        self.rules = Rules {
            version: Some(pushed.version),
            rejected: loaded.as_ref().err().map(ToString::to_string),
        };
        loaded.map(|()| true)
    }
}
