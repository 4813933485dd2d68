//! A single server.

use std::{
    env,
    ffi::OsString,
    fs,
    net::TcpListener,
    ops::Range,
    path::PathBuf,
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::{Reply, ask, eventually, resp::ask_as};

/// Names the program to run instead of the `redis-server` on the path: another version of Redis, or
/// Valkey.
const PROGRAM: &str = "TIDEGATE_REDIS_SERVER";

/// A `redis-server` process on a free port of 127.0.0.1, in its own directory, without persistence.
///
/// The environment variable `TIDEGATE_REDIS_SERVER` names another program to run: another version
/// of Redis, or Valkey.
#[derive(Debug)]
pub struct Server {
    port: u16,
    directory: PathBuf,
    options: Vec<String>,
    /// The password of the default user.
    pub(crate) password: Option<String>,
    /// A library to load before the others, and the file with which it shifts the time.
    pub(crate) preload: Option<(PathBuf, PathBuf)>,
    process: Option<Child>,
}

/// Numbers the servers of a process, so that no two share a directory.
static NUMBER: AtomicU32 = AtomicU32::new(0);

impl Server {
    /// Starts a server with additional options, as in `["--maxmemory", "10mb"]`, and waits until it
    /// replies.
    ///
    /// # Panics
    /// When there is no `redis-server`, or it does not start.
    pub fn start(options: &[&str]) -> Self {
        let mut server = Self::bare(&[
            "--save",
            "",
            "--appendonly",
            "no",
            "--repl-diskless-sync-delay",
            "0",
        ]);
        let own = [
            "--bind",
            "127.0.0.1",
            "--port",
            &server.port.to_string(),
            "--dir",
        ]
        .map(Into::into);
        server.options.extend(own);
        server
            .options
            .push(server.directory.to_string_lossy().into_owned());
        server
            .options
            .extend(options.iter().map(|&option| option.into()));
        server.start_again();
        server
    }

    /// A server that is not running yet and has only these options.
    pub(crate) fn bare(options: &[&str]) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory =
            std::env::temp_dir().join(format!("tidegate-redis-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).expect("the temporary directory takes a directory");
        let options = options.iter().map(|&option| option.into()).collect();
        Self {
            port: free_port(),
            directory,
            options,
            password: None,
            preload: None,
            process: None,
        }
    }

    /// The port.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The value of an option with which it was started.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        let at = self.options.iter().position(|option| option == name)?;
        self.options.get(at + 1).map(String::as_str)
    }

    /// `redis://127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The server's working directory, which is removed with it.
    pub fn directory(&self) -> &std::path::Path {
        &self.directory
    }

    /// Starts the process on the same port as before, and waits until it replies.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_again(&mut self) {
        self.kill();
        // Another process may have taken the port since it was found free, or the system has not
        // released it yet.
        for _ in 0..200 {
            self.spawn();
            let mut ended = false;
            eventually("the server answers or has ended", || {
                ended = self
                    .process
                    .as_mut()
                    .is_none_or(|process| !matches!(process.try_wait(), Ok(None)));
                // A server that requires a password is up, too.
                let there =
                    |reply: Reply| reply.text() == "PONG" || reply.text().starts_with("NOAUTH");
                // Another test's server may have the port.
                let own = format!(
                    "process_id:{}\r",
                    self.process.as_ref().map_or(0, Child::id)
                );
                let info = |reply: Reply| {
                    !reply.text().contains("process_id:") || reply.text().contains(&own)
                };
                ended
                    || ask(self.port, &["PING"]).is_ok_and(there)
                        && ask(self.port, &["INFO", "server"]).is_ok_and(info)
            });
            if !ended {
                return;
            }
            std::thread::park_timeout(std::time::Duration::from_millis(50));
        }
        panic!(
            "{} does not start on port {}",
            program().display(),
            self.port
        );
    }

    /// Starts the process without waiting for it.
    ///
    /// # Panics
    /// When the program does not exist.
    pub fn launch(&mut self) {
        self.kill();
        self.spawn();
    }

    fn spawn(&mut self) {
        let mut command = Command::new(program());
        command.args(&self.options).current_dir(&self.directory);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if let Some((library, clock)) = &self.preload {
            command
                .env("LD_PRELOAD", library)
                .env("TIDEGATE_CLOCK", clock);
        }
        let process = command.spawn().unwrap_or_else(|error| {
            let (program, what) = (program(), "install redis-server, or name a program");
            panic!(
                "cannot start {}: {error}; {what} in {PROGRAM}",
                program.display()
            )
        });
        self.process = Some(process);
    }

    /// Sends a command and returns the reply.
    ///
    /// # Panics
    /// When the server does not reply.
    #[track_caller]
    pub fn ask(&self, command: &[&str]) -> Reply {
        ask_as(self.port, self.password.as_deref(), command)
            .unwrap_or_else(|error| panic!("{command:?} on port {}: {error}", self.port))
    }

    /// Waits until a replica has everything that this server has written so far. `WAIT` does not
    /// work here: it covers only the writes of the same connection.
    ///
    /// # Panics
    /// When the replica does not catch up, or one of them does not reply.
    pub fn until_replicated_to(&self, replica: &Self) {
        let info = |server: &Self| server.ask(&["INFO", "replication"]).text().to_owned();
        let offset = |info: &str| -> u64 {
            let line = info
                .lines()
                .find_map(|line| line.strip_prefix("master_repl_offset:"));
            line.and_then(|offset| offset.trim().parse().ok())
                .expect("INFO has the offset")
        };
        let written = offset(&info(self));
        eventually("the replica has what was written", || {
            let seen = info(replica);
            seen.contains("master_link_status:up") && offset(&seen) >= written
        });
    }

    /// Kills the process (SIGKILL); everything in its memory is lost.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // These fail only if the process has already ended.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Freezes the process: connections stay open, but it does not reply.
    pub fn freeze(&self) {
        self.signal("STOP");
    }

    /// Resumes a frozen process.
    pub fn thaw(&self) {
        self.signal("CONT");
    }

    fn signal(&self, name: &str) {
        if let Some(process) = &self.process {
            let order = format!("kill -{name} {}", process.id());
            let done = Command::new("sh").args(["-c", &order]).status();
            assert!(done.is_ok_and(|status| status.success()), "{order}");
        }
    }
}

fn program() -> OsString {
    env::var_os(PROGRAM)
        .filter(|program| !program.is_empty())
        .unwrap_or_else(|| "redis-server".into())
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        // If the directory cannot be removed, the system cleans it up later.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A port that is free now, with a free one 10,000 above it for the cluster bus. Both are below
/// those that systems give to connections and to listeners that choose none, so that none of these
/// has it before its server listens.
///
/// # Panics
/// When 127.0.0.1 has no free port left.
pub fn free_port() -> u16 {
    const PORTS: Range<u16> = 10_240..22_768;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    // Processes begin at different places.
    let first = process::id().wrapping_mul(97);
    PORTS
        .map(|_| {
            let place = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            PORTS.start + (place % PORTS.len() as u32) as u16
        })
        .find(|port| is_free(*port) && is_free(*port + 10_000))
        .expect("127.0.0.1 has a free port")
}
