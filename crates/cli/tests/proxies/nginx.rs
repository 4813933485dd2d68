//! nginx asks by `auth_request`.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
};

use tidegate_redis_servers::{eventually, free_port};

use crate::{
    get,
    program::{Serving, scratch},
};

/// A running nginx, which is killed when the test ends.
struct Nginx {
    child: Child,
    port: u16,
}

impl Nginx {
    /// The packaged configuration with other addresses, in front of a backend that answers every request with its connection.
    fn before(tidegate: &str, name: &str) -> Self {
        let directory = scratch(name);
        let [port, backend] = [free_port(), free_port()];
        let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/nginx/tidegate.conf");
        let mut site = fs::read_to_string(packaged).unwrap();
        for (from, to) in [
            ("server 127.0.0.1:8080;", format!("server {tidegate};")),
            ("server 127.0.0.1:9000;", format!("server 127.0.0.1:{backend};")),
            ("listen 80;", format!("listen 127.0.0.1:{port};")),
        ] {
            assert!(site.contains(from), "{from} is no longer in the packaged configuration");
            site = site.replace(from, &to);
        }
        let here = directory.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .fold(String::new(), |text, what| text + &format!("{what}_temp_path {here}/{what};\n"));
        let main = format!(
            "daemon off; master_process off; worker_processes 1; pid {here}/pid; error_log {here}/error.log;
             events {{ worker_connections 256; }}
             http {{ access_log off; {temporary} {site}
             server {{ listen 127.0.0.1:{backend};
                 location /broken {{ return 500 \"backend is broken\"; }}
                 location / {{ return 200 \"backend\"; }} }} }}"
        );
        let file = directory.join("nginx.conf");
        fs::write(&file, main).unwrap();
        let mut command = Command::new("nginx");
        command.arg("-c").arg(&file).arg("-p").arg(&directory).stderr(Stdio::null());
        let child = command.spawn().expect("nginx is installed by scripts/test.sh");
        let nginx = Self { child, port };
        eventually("nginx listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        nginx
    }

    /// The whole response to a request of a client that tries to choose its key, and of a web page.
    fn get(&self, path: &str) -> String {
        get(self.port, path, "x-tidegate-key: another\r\norigin: https://page.example\r\n")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serving(name: &str) -> Serving {
    let rules = scratch(name).join("rules.yaml");
    fs::write(&rules, "limits: [{name: per-address, limit: 2/1h, algorithm: sliding-log}]\n").unwrap();
    Serving::with(&["--rules", rules.to_str().unwrap()])
}

#[test]
fn nginx_denies_with_429_and_the_header_fields_over_connections_that_stay_open() {
    let server = serving("nginx-rules");
    let nginx = Nginx::before(&server.http, "nginx-denies");
    for left in [1, 0] {
        let answer = nginx.get("/");
        assert!(answer.starts_with("http/1.1 200 ") && answer.ends_with("backend"), "{answer}");
        assert!(answer.contains(&format!("\r\nratelimit: \"per-address\";r={left};t=")), "{answer}");
        assert!(answer.contains("\r\nratelimit-policy: \"per-address\";q=2;w=3600"), "{answer}");
        assert!(!answer.contains("\r\nretry-after"), "{answer}");
    }
    for _ in 0..3 {
        let answer = nginx.get("/");
        assert!(answer.starts_with("http/1.1 429 "), "{answer}");
        assert!(answer.contains("\r\nretry-after: 3") && answer.contains("\r\nratelimit: "), "{answer}");
    }
    let accepted = server.get("/metrics");
    let accepted = accepted
        .lines()
        .find(|line| line.starts_with("tidegate_connections_accepted_total{protocol=\"http\"}"));
    // nginx's connection only; the metrics are on the control plane.
    assert_eq!(accepted.and_then(|line| line.rsplit(' ').next()), Some("1"), "{accepted:?}");
}

#[test]
fn nginx_passes_on_the_backend_s_errors_and_continues_without_tidegate() {
    let server = serving("nginx-away-rules");
    let nginx = Nginx::before(&server.http, "nginx-away");
    let broken = nginx.get("/broken");
    assert!(broken.starts_with("http/1.1 500 ") && broken.ends_with("backend is broken"), "{broken}");
    // A closed port, and a listener that never replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = format!("127.0.0.1:{}", free_port());
    for (name, address) in [("nobody", nobody), ("silent", silent.local_addr().unwrap().to_string())] {
        let nginx = Nginx::before(&address, &format!("nginx-{name}"));
        for _ in 0..4 {
            let answer = nginx.get("/");
            assert!(answer.starts_with("http/1.1 200 ") && answer.ends_with("backend"), "{name}: {answer}");
        }
    }
}
