//! The program as a user runs it.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Duration,
};

/// How long a test waits for something that should happen immediately.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn tidegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    // The environment of the tests must not affect the program.
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIDEGATE_"))
    {
        command.env_remove(name);
    }
    // Tests run in parallel, and on machines with a running server.
    command.env("TIDEGATE_ADMIN", "127.0.0.1:0");
    command
}

/// An empty directory for one test.
pub fn scratch(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tidegate-cli-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

/// The running program, which is killed if a test fails.
pub struct Serving {
    pub child: Child,
    pub http: String,
    pub admin: String,
    pub resp: String,
    /// The text that it printed until it was ready.
    pub told: String,
    pub log: mpsc::Receiver<String>,
}

impl Serving {
    /// Runs `serve` on free ports with additional arguments, and waits until it is ready.
    pub fn with(arguments: &[&str]) -> Self {
        Self::run(
            tidegate()
                .args(["serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"])
                .args(arguments),
        )
    }

    pub fn run(command: &mut Command) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (line, log) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|text| line.send(text))
        });
        let mut told = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        // The last line is the last of the commands to try.
        while told
            .split_once("Try:")
            .is_none_or(|(_, commands)| commands.trim().lines().count() < 3)
        {
            assert_ne!(
                stdout.read_line(&mut told).unwrap(),
                0,
                "it ended early, having said:\n{told}"
            );
        }
        let address = |what: &str| {
            let line = told
                .lines()
                .find_map(|line| line.trim().strip_prefix(what))
                .unwrap()
                .trim();
            line.split_once("://")
                .map_or(line, |(_, address)| address)
                .to_owned()
        };
        let (http, admin, resp) = (address("HTTP"), address("admin"), address("RESP"));
        Self {
            child,
            http,
            admin,
            resp,
            told,
            log,
        }
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &id])
                .status()
                .unwrap()
                .success()
        );
    }

    /// Waits for a line of the log.
    pub fn logs(&self, words: &str) -> String {
        loop {
            let line = self.log.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|_| panic!("the log never said {words:?}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    pub fn ended(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(&self.resp).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
            .write_all(format!("{command}\r\nQUIT\r\n").as_bytes())
            .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
            .replace("\r\n", " ")
            .trim_end()
            .trim_end_matches("+OK")
            .trim_end()
            .to_owned()
    }

    pub fn get(&self, path: &str) -> String {
        let of_operators = ["/metrics", "/v1/rules"].contains(&path);
        request(
            if of_operators {
                &self.admin
            } else {
                &self.http
            },
            "GET",
            path,
            "",
        )
    }

    pub fn post(&self, body: &str) -> String {
        request(&self.http, "POST", "/v1/acquire", body)
    }
}

/// Sends one HTTP request on a new connection, and returns the whole response.
pub fn request(address: &str, method: &str, path: &str, body: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}"
    );
    stream
        .write_all(format!("{head}\r\n\r\n{body}").as_bytes())
        .unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
