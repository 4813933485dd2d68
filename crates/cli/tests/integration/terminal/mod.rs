//! `tidegate top` on a terminal that `script` provides, with a control plane that always says the
//! same.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    num::NonZeroU16,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, mpsc},
};

use serde_json::{Value, json};

use crate::program::PATIENCE;

/// A control plane that notes what it is asked to change.
pub struct Control {
    pub address: String,
    pub limits: Arc<Mutex<Vec<Value>>>,
    pub conditions: Arc<Mutex<Vec<Value>>>,
    pub changes: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Control {
    pub fn new(limits: Vec<Value>, top: Value, explained: Value) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (limits, changes) = (
            Arc::new(Mutex::new(limits)),
            Arc::new(Mutex::new(Vec::new())),
        );
        let conditions = Arc::new(Mutex::new(Vec::new()));
        let (shown, noted, wrong) = (limits.clone(), changes.clone(), conditions.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (String::new(), 0);
                while !head.ends_with("\r\n\r\n") {
                    let from = head.len();
                    assert_ne!(stream.read_line(&mut head).unwrap(), 0);
                    let line = head[from..].to_ascii_lowercase();
                    length = line
                        .strip_prefix("content-length:")
                        .map_or(length, |n| n.trim().parse().unwrap());
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                let path = head.split(' ').nth(1).unwrap().split('?').next().unwrap();
                let answer = match path {
                    "/v1/limits" => json!({
                        "version": "0.1.0", "now_seconds": 9, "limits": *shown.lock().unwrap(),
                        "store": {"address": "x", "health": "up", "trouble": null, "nodes": 1},
                        "conditions": *wrong.lock().unwrap(),
                    }),
                    "/v1/top" => top.clone(),
                    "/v1/explain" => explained.clone(),
                    change => {
                        let body = serde_json::from_slice(&body).unwrap();
                        noted.lock().unwrap().push((change.to_owned(), body));
                        json!({"unblocked": true})
                    }
                };
                let answer =
                    format!("HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{answer}");
                stream.get_mut().write_all(answer.as_bytes()).unwrap();
            }
        });
        Self {
            address,
            limits,
            conditions,
            changes,
        }
    }
}

/// The program on a terminal of this size.
pub struct Terminal {
    child: Child,
    keys: ChildStdin,
    output: mpsc::Receiver<Vec<u8>>,
    screen: vt100::Parser,
}

impl Terminal {
    pub fn new(control: &Control, columns: u16, rows: u16) -> Self {
        // The data is the same each time, so that it need not be fetched again.
        let options = format!("--server {} --every 1h", control.address);
        Self::with(&options, columns, rows)
    }

    /// With these options of the program.
    pub fn with(options: &str, columns: u16, rows: u16) -> Self {
        let program = env!("CARGO_BIN_EXE_tidegate");
        let run = format!(
            "stty cols {columns} rows {rows} && exec {program} top --timeout 20s {options}"
        );
        let mut command = Command::new("script");
        command
            .args([
                "--quiet",
                "--return",
                "--flush",
                "--command",
                &run,
                "/dev/null",
            ])
            .env("TERM", "xterm");
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIDEGATE_"))
        {
            command.env_remove(name);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keys, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (sender, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(length @ 1..) = stdout.read(&mut bytes) {
                if sender.send(bytes[..length].to_vec()).is_err() {
                    break;
                }
            }
        });
        let [rows, columns] = [rows, columns].map(|size| NonZeroU16::new(size).unwrap());
        let mut terminal = Self {
            child,
            keys,
            output,
            screen: vt100::Parser::new(rows, columns, 0),
        };
        // Key strokes before that are for the shell.
        terminal.until("it runs", vt100::Screen::alternate_screen);
        terminal
    }

    fn until(&mut self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        while !is_so(self.screen.screen()) {
            let Ok(bytes) = self.output.recv_timeout(PATIENCE) else {
                panic!(
                    "{what}: not on the screen:\n{}",
                    self.screen.screen().contents()
                );
            };
            self.screen.process(&bytes);
        }
    }

    /// Types keys, and waits until the screen no longer has these words.
    pub fn without(&mut self, keys: &str, words: &str) {
        self.types(keys);
        self.until(&format!("no {words:?} after {keys:?}"), |screen| {
            !screen.contents().contains(words)
        });
    }

    /// Types keys, and waits until the screen has all of these words. Returns its lines.
    pub fn after(&mut self, keys: &str, words: &[&str]) -> Vec<String> {
        self.types(keys);
        self.until(&format!("{words:?} after {keys:?}"), |screen| {
            let text = screen.contents();
            words.iter().all(|words| text.contains(words))
        });
        let screen = self.screen.screen();
        let (rows, columns) = screen.size();
        let (rows, columns) = (rows.get(), columns.get());
        // No cell sets a colour: bold and reversed text work on any terminal.
        for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)))
        {
            let cell = screen.cell(row, column).unwrap();
            assert_eq!(
                (cell.fgcolor(), cell.bgcolor()),
                Default::default(),
                "{row}, {column}"
            );
        }
        screen
            .rows(0, columns)
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    pub fn types(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// The exit code after these keys.
    pub fn ends(mut self, keys: &str) -> Option<i32> {
        self.types(keys);
        // What it still draws must not fill the pipe.
        while self.output.recv_timeout(PATIENCE).is_ok() {}
        self.child.wait().unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
