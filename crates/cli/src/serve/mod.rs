//! `tidegate serve`: starts the server and its log, and runs it until a signal ends it.

mod args;
mod effects;
mod log_text;
mod ready;
mod values;

use std::{io, path::PathBuf, process::ExitCode, sync::Arc};

use tidegate_server::{
    Ended, OpenFiles, Server, connections_within, raise_open_files, signals, telemetry::Telemetry,
};
use tokio::runtime::Runtime;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    Layer as _,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use self::values::LogFormat;
use crate::{missing, systemd};

pub use self::{
    args::{Args, MAX_KEYS},
    effects::without_effect,
};

/// Why the server does not start.
#[derive(Debug, thiserror::Error)]
enum ServeError {
    #[error("cannot start threads: {0}")]
    Threads(io::Error),
    #[cfg(feature = "otlp")]
    #[error(transparent)]
    Telemetry(#[from] tidegate_server::telemetry::TelemetryError),
    #[error("cannot listen for signals: {0}")]
    Signals(io::Error),
    /// Options that lack another one.
    #[error("{0}")]
    Options(&'static str),
    #[error(transparent)]
    Sockets(#[from] systemd::SocketsError),
    #[error("--store-password-file {}: {error}", path.display())]
    PasswordFile { path: PathBuf, error: io::Error },
    #[error(transparent)]
    Start(#[from] tidegate_server::StartError),
}

/// Serves until a signal ends it; `started` sees the server when it is ready.
pub fn run_with(args: Args, started: impl FnOnce(&Server)) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let begun = runtime
        .map_err(ServeError::Threads)
        .and_then(|runtime| Ok((start_telemetry(&args, &runtime)?, runtime)));
    // Until this is dropped, a separate thread writes the log, so that a reader of standard error
    // that stops reading cannot stop the server. Lines are dropped when the buffer is full.
    let _log = start_log(
        &args,
        begun
            .as_ref()
            .ok()
            .and_then(|(telemetry, _)| telemetry.as_deref()),
    );
    let (telemetry, runtime) = match begun {
        Ok(begun) => begun,
        Err(why) => return fail(&why),
    };
    let code = runtime
        .block_on(serve(args, telemetry.clone(), started))
        .unwrap_or_else(|why| fail(&why));
    #[cfg(feature = "otlp")]
    if let Some(telemetry) = telemetry {
        crate::otlp::stop(&telemetry);
    }
    // Connections that were to be closed are not waited for.
    runtime.shutdown_background();
    code
}

#[cfg(feature = "otlp")]
fn start_telemetry(args: &Args, runtime: &Runtime) -> Result<Option<Arc<Telemetry>>, ServeError> {
    let _inside = runtime.enter();
    Ok(args.otlp.start()?)
}

#[cfg(not(feature = "otlp"))]
#[allow(
    clippy::unnecessary_wraps,
    reason = "the same form as with OpenTelemetry"
)]
fn start_telemetry(_: &Args, _: &Runtime) -> Result<Option<Arc<Telemetry>>, ServeError> {
    Ok(None)
}

async fn serve(
    args: Args,
    telemetry: Option<Arc<Telemetry>>,
    started: impl FnOnce(&Server),
) -> Result<ExitCode, ServeError> {
    // First of all, so that a signal during the start does not kill the server halfway.
    let orders = signals().map_err(ServeError::Signals)?;
    if let Some(lacks) = args.lacks() {
        return Err(ServeError::Options(lacks));
    }
    for line in &args.without_effect {
        tracing::warn!("{line}");
    }
    if args.resp_password.as_deref() == Some("") {
        tracing::warn!("--resp-password is empty: clients of the Redis protocol need no password");
    }
    for (name, meant) in missing::misspelt() {
        tracing::warn!("no option has the variable {name}, which has no effect: is it {meant}?");
    }
    let has_telemetry = telemetry.is_some();
    let mut options = args.options();
    let protocols = [&options.http, &options.resp, &options.grpc, &options.spoe];
    let listeners = protocols
        .into_iter()
        .chain([&options.sentinel, &options.sentinel_dashboard])
        .flatten()
        .count();
    if let OpenFiles::TooFew { allowed, needed } =
        raise_open_files(options.max_connections, listeners)
    {
        if args.max_connections.is_some() {
            tracing::warn!(
                allowed,
                needed,
                "too few open files for --max-connections: raise the limit (ulimit -n, or LimitNOFILE of the service), or \
                 lower --max-connections",
            );
        } else {
            // Nobody asked for the default number.
            let max_connections = connections_within(allowed, listeners);
            options.max_connections = max_connections as usize;
            tracing::debug!(
                allowed,
                max_connections,
                "as many connections as open files allow"
            );
        }
    }
    options.telemetry = telemetry;
    options.sockets = systemd::sockets()?;
    if let Some(path) = &args.store_password_file {
        std::fs::read_to_string(path).map_err(|error| ServeError::PasswordFile {
            path: path.clone(),
            error,
        })?;
    }
    let server = Server::start(options).await?;
    ready::print(&args, has_telemetry, &server);
    started(&server);
    Ok(match server.run(systemd::supervised(orders)).await {
        // Everything was answered or the grace is over; connections that were closed early were
        // logged.
        Ended::Complete | Ended::Cut => ExitCode::SUCCESS,
        // The use since the last write is lost.
        Ended::Unsaved => ExitCode::FAILURE,
    })
}

/// How many lines of the log can wait for a reader.
const LOG_LINES: usize = 10_000;

fn start_log(args: &Args, telemetry: Option<&Telemetry>) -> WorkerGuard {
    let (format, level) = (args.log_format, args.log_level);
    let (stderr, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(LOG_LINES)
        .lossy(true)
        .finish(io::stderr());
    let is_terminal = io::IsTerminal::is_terminal(&io::stderr());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(stderr)
        .with_target(false);
    let lines = match format {
        LogFormat::Text => lines
            .with_ansi(is_terminal)
            .fmt_fields(log_text::fields())
            .boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let log = tracing_subscriber::registry().with(lines.with_filter(wanted(level)));
    #[cfg(feature = "otlp")]
    if let Some(telemetry) = telemetry {
        log.with(telemetry.log_layer(level)).init();
        return guard;
    }
    #[cfg(not(feature = "otlp"))]
    let _ = telemetry;
    log.init();
    guard
}

/// Events up to this level. The libraries below the listeners log what single clients do, which
/// would let a client fill the disk: of these only errors, unless the operator asks for details.
fn wanted(level: LevelFilter) -> Targets {
    const LIBRARIES: [&str; 6] = ["h2", "hyper", "hyper_util", "rustls", "tonic", "tower"];
    let theirs = if level >= LevelFilter::DEBUG {
        level
    } else {
        level.min(LevelFilter::ERROR)
    };
    Targets::new()
        .with_default(level)
        .with_targets(LIBRARIES.map(|library| (library, theirs)))
}

fn fail(why: &ServeError) -> ExitCode {
    tracing::error!("{why}");
    ExitCode::FAILURE
}
