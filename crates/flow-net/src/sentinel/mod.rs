//! This program as Sentinel's dashboard sees it: heartbeats, and the command API that the dashboard
//! calls (feature `sentinel`).
//!
//! ```no_run
//! use tidegate_flow::Gate;
//! use tidegate_flow_net::sentinel::CommandApi;
//!
//! let gate = Gate::sentinel().build();
//! let api = CommandApi::new("shop").dashboard("127.0.0.1:8080").keep_rules("/var/lib/shop/rules");
//! let serving = api.serve(&gate)?;
//! println!("commands are answered on {}", serving.address());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A background thread answers `version`, `basicInfo`, `api`, `getRules`, `setRules`,
//! `getParamFlowRules`, `setParamFlowRules`, `metric` (of the last minute), `clusterNode`, `cnode`,
//! `jsonTree`, `origin`, `systemStatus`, `getSwitch` and `setSwitch`, and sends a heartbeat to each
//! dashboard every ten seconds. Rules that the dashboard pushes apply at once: valid ones, as in
//! Sentinel, or none if the text cannot be read.
//!
//! The protocol has no passwords: any client that reaches the port may read and change the
//! rules. It listens on loopback unless [`CommandApi::bind`] names another address, and then logs a warning.
//! A request from a web page (one with an `Origin`, or for a host by name) is refused.

mod command;
mod http;

use std::{
    fmt, fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    sync::Mutex,
    thread::JoinHandle,
};

use tidegate_flow::{
    Gate,
    rules::Rules,
    sources::{
        SourceError,
        sentinel::{self, Kind},
    },
};
use tokio::sync::oneshot;

/// The version of Sentinel whose protocol this is.
const VERSION: &str = "1.8.9";
/// How many ports after the first are tried.
const PORTS: u16 = 100;
/// The longest rules file that is read.
const MAX_FILE: u64 = 1 << 20;

/// The address of the command API, and the dashboards that get heartbeats.
#[derive(Clone, Debug)]
pub struct CommandApi {
    app: String,
    dashboards: Vec<String>,
    bind: IpAddr,
    port: u16,
    advertised: Option<String>,
    directory: Option<PathBuf>,
}

impl CommandApi {
    /// The command API of an instance of this application, on 127.0.0.1 and port 8719 or the next
    /// free one.
    #[must_use]
    pub fn new(app: impl Into<String>) -> Self {
        Self {
            app: app.into(),
            dashboards: Vec::new(),
            bind: Ipv4Addr::LOCALHOST.into(),
            port: 8719,
            advertised: None,
            directory: None,
        }
    }

    /// Sends heartbeats to the dashboard at this `host:port`. May be called more than once.
    #[must_use]
    pub fn dashboard(mut self, address: impl Into<String>) -> Self {
        self.dashboards.push(address.into());
        self
    }

    /// Listens on this address instead of loopback. Anybody who reaches it may change the rules.
    #[must_use]
    pub fn bind(self, bind: IpAddr) -> Self {
        Self { bind, ..self }
    }

    /// Listens on this port or one of the next 100. 0 is any free port. Default: 8719.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    /// Names this address to dashboards. Default: the one that it listens on, or for 0.0.0.0 the
    /// one from which the heartbeat comes.
    #[must_use]
    pub fn advertise(self, ip: impl Into<String>) -> Self {
        Self {
            advertised: Some(ip.into()),
            ..self
        }
    }

    /// Keeps pushed rules in this directory, as `flow.json`, `degrade.json` and so on, and loads
    /// them at the start.
    #[must_use]
    pub fn keep_rules(self, directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: Some(directory.into()),
            ..self
        }
    }

    /// Answers Sentinel's commands for this gate, and sends heartbeats: see the [module](self).
    /// Rules that were kept are loaded first, the good ones if some are bad.
    ///
    /// # Errors
    /// If no port is free, the directory for the rules cannot be used, or the thread cannot be
    /// started.
    pub fn serve(self, gate: &Gate) -> io::Result<Commands> {
        let listener = self.listen()?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "the command API has no passwords: anybody who reaches it may change the rules");
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _runtime = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let program = Program {
            gate: gate.clone(),
            api: self,
            address,
            paused: Mutex::default(),
        };
        program.load()?;
        let (stop, stopped) = oneshot::channel();
        let run = move || runtime.block_on(http::run(program.into(), listener, stopped));
        let thread = std::thread::Builder::new()
            .name("tidegate-commands".into())
            .spawn(run)?;
        Ok(Commands {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The first free port.
    fn listen(&self) -> io::Result<TcpListener> {
        let last = if self.port == 0 {
            0
        } else {
            self.port.saturating_add(PORTS)
        };
        let mut failed = None;
        for port in self.port..=last {
            match TcpListener::bind((self.bind, port)) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => failed = Some(error),
                bound => return bound,
            }
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }
}

/// Answers commands and sends heartbeats until it is dropped.
pub struct Commands {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Commands {
    /// The address of the command API.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl fmt::Debug for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Commands")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread reports its own panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The gate whose commands are answered.
struct Program {
    gate: Gate,
    api: CommandApi,
    address: SocketAddr,
    /// The rules that apply again once the switch is on; `None` while it is.
    paused: Mutex<Option<Rules>>,
}

impl Program {
    /// Loads the rules that were kept.
    fn load(&self) -> io::Result<()> {
        let Some(directory) = &self.api.directory else {
            return Ok(());
        };
        fs::create_dir_all(directory)?;
        for kind in Kind::OF_COMMANDS {
            let path = directory.join(kind.name()).with_extension("json");
            let text = match tidegate_config::file::read(&path, MAX_FILE) {
                Ok(text) => String::from_utf8(text).map_err(io::Error::other)?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let update = match sentinel::parse(kind, &text) {
                Ok(update) => update,
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "kept rules cannot be used");
                    let SourceError::Partial { good, .. } = error else {
                        continue;
                    };
                    *good
                }
            };
            // Each rule was validated.
            let _ = self.gate.apply_good(update);
        }
        Ok(())
    }

    /// Keeps the rules of one kind, if there is a directory.
    fn keep(&self, kind: Kind, text: &str) -> io::Result<()> {
        let Some(directory) = &self.api.directory else {
            return Ok(());
        };
        tidegate_config::file::replace(
            &directory.join(kind.name()).with_extension("json"),
            text.as_bytes(),
        )
    }
}
